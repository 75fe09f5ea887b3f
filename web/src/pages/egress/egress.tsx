import type { HostTraffic } from '../../../../src/client/types.ts'
import { EmptyState } from '../../components/empty-state.tsx'
import { ErrorMessage, Loading, Page } from '../../components/page.tsx'
import { type Column, Table } from '../../components/table.tsx'
import { useClient, useLiveData } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { formatCount, formatTime, safeLine } from '../../format.ts'

const COLUMNS: readonly Column[] = [
  { name: 'Host' },
  { name: 'Connections', className: 'wide-only' },
  { name: 'Allowed', className: 'num' },
  { name: 'Blocked', className: 'num' },
  { name: 'Sandboxes', className: 'num wide-only' },
  { name: 'Last', className: 'wide-only' },
  { name: 'Reason of the last block', className: 'wide-only' },
]

/** Which hosts the sandboxes reach, and which they were kept from. */
export function Egress() {
  const client = useClient()
  const { records } = useLiveData()
  const last = records.findLast(({ event, host }) => event === 'Connection' || typeof host === 'string')
  const { value, error } = useLoad(`traffic ${last?.seq}`, () => client.traffic())
  const most = Math.max(1, ...(value?.items ?? []).map(({ allowed, blocked }) => allowed + blocked))
  return (
    <Page title="Egress" aside={value?.since && <span className="dim">Since {formatTime(value.since)}</span>}>
      <ErrorMessage text={error} />
      {!value && !error && <Loading text="Loading connections…" />}
      {value?.items.length === 0 && (
        <EmptyState
          title="No connections yet"
          command="ringfence sandbox create --network fetch --allow-host pypi.org"
        >
          Sandboxes in fetch mode connect through a proxy that records every connection:
        </EmptyState>
      )}
      {value && value.items.length > 0 && (
        <Table label="Hosts" columns={COLUMNS}>
          {value.items.map((traffic) => (
            <HostRow key={traffic.host} traffic={traffic} most={most} />
          ))}
        </Table>
      )}
    </Page>
  )
}

function HostRow({ traffic, most }: { readonly traffic: HostTraffic; readonly most: number }) {
  const { host, allowed, blocked, sandboxes, last_at, reason } = traffic
  return (
    <tr>
      <td className="mono">{safeLine(host)}</td>
      <td className="wide-only">
        <Share allowed={allowed / most} blocked={blocked / most} />
      </td>
      <td className="num">{formatCount(allowed)}</td>
      <td className="num">{blocked > 0 ? <span className="bad-text">✕ {formatCount(blocked)}</span> : 0}</td>
      <td className="num wide-only">{sandboxes}</td>
      <td className="nowrap wide-only">{formatTime(last_at)}</td>
      <td className="dim wide-only">{safeLine(reason ?? '')}</td>
    </tr>
  )
}

const WIDTH = 120

/** Allowed and blocked connections as one bar, as long as its share of the busiest host. The numbers are beside it. */
const Share = ({ allowed, blocked }: { readonly allowed: number; readonly blocked: number }) => (
  <svg className="share" width={WIDTH} height={10} aria-hidden="true">
    <rect width={allowed * WIDTH} height={10} className="allowed" />
    <rect x={allowed * WIDTH} width={blocked * WIDTH} height={10} className="blocked" />
  </svg>
)
