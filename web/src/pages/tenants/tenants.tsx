import type { TenantInfo } from '../../../../src/client/types.ts'
import { ErrorMessage, Loading, Page } from '../../components/page.tsx'
import { type Column, Table } from '../../components/table.tsx'
import { useClient } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { safeLine } from '../../format.ts'

const COLUMNS: readonly Column[] = [
  { name: 'Tenant' },
  { name: 'Keys', className: 'num' },
  { name: 'Sandboxes', className: 'num' },
  { name: 'Backends', className: 'wide-only' },
  { name: 'Network', className: 'wide-only' },
  { name: 'Hosts', className: 'wide-only' },
  { name: 'Beyond the defaults' },
]

/** The tenants of this server: what each may have and what it uses. */
export function Tenants() {
  const client = useClient()
  const { value, error } = useLoad('tenants', () => client.tenants())
  return (
    <Page title="Tenants">
      <p className="dim note">
        A tenant has the defaults unless the configuration has a <code>[[tenant]]</code> for it. Keys are on
        the Keys page.
      </p>
      <ErrorMessage text={error} />
      {!value && !error && <Loading text="Loading tenants…" />}
      {value && (
        <Table label="Tenants" columns={COLUMNS}>
          {value.items.map((tenant) => (
            <TenantRow key={tenant.name} tenant={tenant} />
          ))}
        </Table>
      )}
    </Page>
  )
}

function TenantRow({ tenant }: { readonly tenant: TenantInfo }) {
  const { name, configured, keys, sandboxes, max_sandboxes, backends, network_modes, allow_hosts } = tenant
  const extra = extrasOf(tenant)
  return (
    <tr>
      <td>
        {safeLine(name)}
        <div className="dim">{configured ? 'configured' : 'defaults'}</div>
      </td>
      <td className="num">{keys}</td>
      <td className="num">
        {sandboxes} of {max_sandboxes}
      </td>
      <td className="wide-only">{backends.join(', ')}</td>
      <td className="wide-only">{network_modes.join(', ')}</td>
      <td className="wide-only">{allow_hosts === null ? 'as the server' : listOf(allow_hosts)}</td>
      <td>
        {extra.length === 0 ? (
          <span className="dim">nothing of the host</span>
        ) : (
          <ul className="plain">
            {extra.map((line) => (
              <li key={line}>{safeLine(line)}</li>
            ))}
          </ul>
        )}
      </td>
    </tr>
  )
}

const listOf = (hosts: readonly string[]): string =>
  hosts.length === 0 ? 'none' : hosts.map(safeLine).join(', ')

/** What the operator granted that the defaults do not have. */
function extrasOf({
  host_paths,
  waive,
  backends,
  network_modes,
  public_ports,
}: TenantInfo): readonly string[] {
  return [
    ...host_paths.map(({ path, mode }) => `${path} (${mode === 'rw' ? 'read and write' : 'read'})`),
    ...waive.map((guarantee) => `may waive ${guarantee}`),
    ...(backends.includes('native') ? ['may run without isolation (native)'] : []),
    ...(network_modes.includes('full') ? ['may have the whole network (full)'] : []),
    ...(public_ports ? [] : ['no public ports']),
  ]
}
