import type { ReactNode } from 'react'
import type { Wall } from '../../../../../src/client/console-types.ts'
import { GUARANTEES, type Guarantee } from '../../../../../src/model/guarantee.ts'
import { EmptyState } from '../../../components/empty-state.tsx'
import { ErrorMessage, Loading } from '../../../components/page.tsx'
import { Panel } from '../../../components/panel.tsx'
import { type Column, Table } from '../../../components/table.tsx'
import { useClient, useLiveData } from '../../../data/live-context.ts'
import { useLoad } from '../../../data/use-load.ts'
import { safeLine } from '../../../format.ts'
import { IsolationDiagram } from './diagram.tsx'

/** What isolates the sandbox from the host: as a diagram, then layers, guarantees, mounts and limits. */
export function Isolation({ id }: { readonly id: string }) {
  const { wall, error } = useWall(id)
  if (!wall) return error ? <ErrorMessage text={error} /> : <Loading />
  if (!wall.open) return <Ended layers={wall.layers} />
  return (
    <>
      <Panel title="Isolation" aside={<span className="dim">What the sandbox can access</span>}>
        <IsolationDiagram wall={wall} />
      </Panel>
      <div className="columns">
        <Layers layers={wall.layers} />
        <Guarantees wall={wall} />
        <Mounts wall={wall} />
        <Limits wall={wall} />
      </div>
    </>
  )
}

/** The isolation of a sandbox, with its allowed hosts as they are now. */
function useWall(id: string): { readonly wall: Wall | undefined; readonly error: string | undefined } {
  const client = useClient()
  const { sandboxes } = useLiveData()
  const live = sandboxes.find((sandbox) => sandbox.id === id)?.network.allow_hosts
  const { value, error } = useLoad(`wall ${id} ${live?.join(' ')}`, () => client.wall(id))
  if (!value || !live) return { wall: value, error }
  const mode = value.network?.mode ?? 'offline'
  return { wall: { ...value, network: { mode, allow_hosts: live } }, error }
}

const Ended = ({ layers }: { readonly layers: readonly string[] }) => (
  <Panel title="Isolation">
    <EmptyState title="The sandbox has ended">
      It ran with these layers: {layers.join(', ') || 'none recorded'}.
    </EmptyState>
  </Panel>
)

const Layers = ({ layers }: { readonly layers: readonly string[] }) => (
  <Panel title="Layers, as reported by the kernel">
    <ol className="layers">
      {layers.map((layer) => (
        <li key={layer}>{layer}</li>
      ))}
    </ol>
  </Panel>
)

function Guarantees({ wall }: { readonly wall: Wall }) {
  return (
    <Panel title="Guarantees">
      <ul className="guarantees">
        {(wall.needs ?? []).map((name) => (
          <GuaranteeItem key={name} name={name}>
            <span className="good-text">
              ✓<span className="hidden"> provided </span>
            </span>
          </GuaranteeItem>
        ))}
        {(wall.waived ?? []).map((name) => (
          <GuaranteeItem key={name} name={name}>
            <span className="warn-text">! waived</span>
          </GuaranteeItem>
        ))}
      </ul>
    </Panel>
  )
}

const GuaranteeItem = ({ name, children }: { readonly name: string; readonly children: ReactNode }) => (
  <li>
    {children} <code>{name}</code> <span className="dim">{GUARANTEES[name as Guarantee]}</span>
  </li>
)

const MOUNT_COLUMNS: readonly Column[] = [
  { name: 'In the sandbox' },
  { name: 'On the host' },
  { name: 'Mode' },
]

function Mounts({ wall: { mounts = [], cwd } }: { readonly wall: Wall }) {
  return (
    <Panel title="Mounts">
      {mounts.length === 0 ? (
        <p className="dim">
          No host directories. <code>{cwd}</code> is private and deleted with the sandbox.
        </p>
      ) : (
        <Table label="Mounts" columns={MOUNT_COLUMNS}>
          {mounts.map(({ source, target, mode, own, review }) => (
            <tr key={target}>
              <td className="mono">{safeLine(target)}</td>
              <td className="mono dim">
                {own ? 'private, deleted with the sandbox' : source === null ? '–' : safeLine(source)}
              </td>
              <td>{review ? 'rw, reviewed' : mode}</td>
            </tr>
          ))}
        </Table>
      )}
    </Panel>
  )
}

function Limits({ wall }: { readonly wall: Wall }) {
  return (
    <Panel title="Limits and environment">
      <dl className="pairs">
        {Object.entries(wall.limits ?? {}).map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd className="num">
              {String(value)}
              {wall.nets?.includes(name) && <span className="dim"> (default)</span>}
            </dd>
          </div>
        ))}
        <div>
          <dt>Environment</dt>
          <dd className="mono wrap">{wall.env?.join(' ') || 'none'}</dd>
        </div>
        <div>
          <dt>Protected</dt>
          <dd className="mono wrap">{wall.protection?.join(' ') || 'none'}</dd>
        </div>
      </dl>
    </Panel>
  )
}
