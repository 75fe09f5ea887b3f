import type { EgressView } from '../../../../../src/client/console-types.ts'
import { Badge } from '../../../components/badge.tsx'
import { Button } from '../../../components/button.tsx'
import { type Column, Table } from '../../../components/table.tsx'
import { formatBytes, formatCount, formatMillis, formatTime, safeLine } from '../../../format.ts'

type HostTraffic = {
  readonly host: string
  readonly allowed: number
  readonly blocked: number
  readonly received: number
  readonly sent: number
  /** Why the last blocked connection was blocked. */
  readonly reason: string
}

/** Totals per host, hosts with blocked connections first. */
export function trafficByHost(connections: readonly EgressView[]): readonly HostTraffic[] {
  const hosts = new Map<string, HostTraffic>()
  for (const { host, verdict, bytes_in, bytes_out, reason } of connections) {
    const before = hosts.get(host) ?? { host, allowed: 0, blocked: 0, received: 0, sent: 0, reason: '' }
    hosts.set(host, {
      host,
      allowed: before.allowed + (verdict === 'allow' ? 1 : 0),
      blocked: before.blocked + (verdict === 'deny' ? 1 : 0),
      received: before.received + bytes_in,
      sent: before.sent + bytes_out,
      reason: verdict === 'deny' ? reason : before.reason,
    })
  }
  return [...hosts.values()].sort((a, b) => b.blocked - a.blocked || b.allowed - a.allowed)
}

const HOST_COLUMNS: readonly Column[] = [
  { name: 'Host' },
  { name: 'Allowed', className: 'num wide-only' },
  { name: 'Blocked', className: 'num' },
  { name: 'Received', className: 'num wide-only' },
  { name: 'Sent', className: 'num wide-only' },
  { name: 'Reason', className: 'wide-only' },
  { name: 'Action', isHidden: true },
]

export function HostTable(props: {
  readonly hosts: readonly HostTraffic[]
  readonly allowed: readonly string[]
  readonly onAllow: (host: string) => void
}) {
  return (
    <Table label="Hosts" columns={HOST_COLUMNS}>
      {props.hosts.map(({ host, allowed, blocked, received, sent, reason }) => (
        <tr key={host}>
          <td className="mono">{safeLine(host)}</td>
          <td className="num wide-only">{formatCount(allowed)}</td>
          <td className="num">
            {blocked > 0 ? <span className="bad-text">✕ {formatCount(blocked)}</span> : 0}
          </td>
          <td className="num wide-only">{formatBytes(received)}</td>
          <td className="num wide-only">{formatBytes(sent)}</td>
          <td className="dim wide-only">{safeLine(reason)}</td>
          <td className="row-actions">
            {blocked > 0 && !props.allowed.includes(host) && (
              <Button onClick={() => props.onAllow(host)}>Allow this host</Button>
            )}
          </td>
        </tr>
      ))}
    </Table>
  )
}

const CONNECTION_COLUMNS: readonly Column[] = [
  { name: 'Time' },
  { name: 'Decision' },
  { name: 'Host' },
  { name: 'Protocol', className: 'wide-only' },
  { name: 'Received', className: 'num wide-only' },
  { name: 'Sent', className: 'num wide-only' },
  { name: 'Duration', className: 'num wide-only' },
]
const MAX_CONNECTIONS = 200

export function ConnectionTable({ connections }: { readonly connections: readonly EgressView[] }) {
  return (
    <Table label="Connections" columns={CONNECTION_COLUMNS}>
      {connections.slice(0, MAX_CONNECTIONS).map((connection, index) => (
        <tr key={index}>
          <td className="nowrap">{connection.at ? formatTime(connection.at) : '–'}</td>
          <td>
            <Badge word={connection.verdict} title={connection.reason} />
          </td>
          <td className="mono">
            {safeLine(connection.host)}:{connection.port}
          </td>
          <td className="wide-only">{connection.protocol}</td>
          <td className="num wide-only">{formatBytes(connection.bytes_in)}</td>
          <td className="num wide-only">{formatBytes(connection.bytes_out)}</td>
          <td className="num wide-only">{formatMillis(connection.duration_ms)}</td>
        </tr>
      ))}
    </Table>
  )
}
