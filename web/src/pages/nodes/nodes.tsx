import { useEffect, useState } from 'react'
import type { NodeInfo } from '../../../../src/client/types.ts'
import { Badge } from '../../components/badge.tsx'
import { Button } from '../../components/button.tsx'
import { EmptyState } from '../../components/empty-state.tsx'
import { ErrorMessage, Loading, Page } from '../../components/page.tsx'
import { type Column, Table } from '../../components/table.tsx'
import { errorText } from '../../data/error-text.ts'
import { useClient } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { safeLine } from '../../format.ts'

const REFRESH_MS = 5000

const COLUMNS: readonly Column[] = [
  { name: 'State' },
  { name: 'Node' },
  { name: 'Role', className: 'wide-only' },
  { name: 'Takes new' },
  { name: 'Sandboxes' },
  { name: 'CPU reserved', className: 'wide-only' },
  { name: 'Memory reserved', className: 'wide-only' },
  { name: 'Lease', className: 'wide-only' },
  { name: 'Version', className: 'wide-only' },
  { name: 'Actions', isHidden: true },
]

/** The nodes of a cluster: what they run, and whether they take more. */
export function Nodes() {
  const client = useClient()
  const [turn, setTurn] = useState(0)
  const [problem, setProblem] = useState<string>()
  const { value, error } = useLoad(`nodes ${turn}`, () => client.nodes())
  const shown = value?.items
  useEffect(() => {
    const timer = setInterval(() => setTurn((last) => last + 1), REFRESH_MS)
    return () => clearInterval(timer)
  }, [])
  const schedule = async (node: NodeInfo, verb: Verb): Promise<void> => {
    setProblem(undefined)
    await client.scheduleNode(node.id, verb).catch((cause: unknown) => setProblem(errorText(cause)))
    setTurn((last) => last + 1)
  }
  return (
    <Page title="Nodes">
      <ErrorMessage text={problem ?? error} />
      {!shown && !error && <Loading text="Loading nodes…" />}
      {shown?.length === 0 && (
        <EmptyState title="This server is alone" command="ringfence cluster init">
          Several servers on one PostgreSQL are a cluster (docs/cluster.md). To begin one:
        </EmptyState>
      )}
      {shown && shown.length > 0 && (
        <Table label="Nodes" columns={COLUMNS}>
          {shown.map((node) => (
            <NodeRow key={node.id} node={node} onSchedule={schedule} />
          ))}
        </Table>
      )}
    </Page>
  )
}

type Verb = 'cordon' | 'drain' | 'uncordon'

const stateOf = ({ state, failing }: NodeInfo): string => (state === 'up' && failing ? 'failing' : state)

const takesNew = ({ role, state, schedule }: NodeInfo): string => {
  if (role === 'api' || state !== 'up') return 'no'
  return schedule === 'open' ? 'yes' : `no, ${schedule}`
}

const percent = (used: number, all: number): string => `${all > 0 ? Math.round((100 * used) / all) : 0} %`

function NodeRow({
  node,
  onSchedule,
}: {
  readonly node: NodeInfo
  readonly onSchedule: (node: NodeInfo, verb: Verb) => Promise<void>
}) {
  const { capacity, used } = node
  const isUp = node.state === 'up'
  return (
    <tr className={isUp ? '' : 'revoked'}>
      <td>
        <Badge word={stateOf(node)} />
      </td>
      <td>
        {safeLine(node.name)} {node.self && <span className="dim">(this server)</span>}
        <div className="mono dim">{node.id}</div>
      </td>
      <td className="wide-only">{node.role}</td>
      <td>{takesNew(node)}</td>
      <td className="num">{isUp ? `${used.sandboxes} of ${capacity.sandboxes}` : '–'}</td>
      <td className="num wide-only">{isUp ? percent(used.cpus, capacity.cpus) : '–'}</td>
      <td className="num wide-only">{isUp ? percent(used.memory_mb, capacity.memory_mb) : '–'}</td>
      <td className="num wide-only">
        {node.lease_left_ms === null ? '–' : `${(node.lease_left_ms / 1000).toFixed(1)} s left`}
      </td>
      <td className="wide-only">{safeLine(node.version)}</td>
      <td className="row-actions">
        {isUp && node.role !== 'api' && (
          <NodeActions node={node} onSchedule={(verb) => void onSchedule(node, verb)} />
        )}
      </td>
    </tr>
  )
}

function NodeActions({
  node: { schedule },
  onSchedule,
}: {
  readonly node: NodeInfo
  readonly onSchedule: (verb: Verb) => void
}) {
  if (schedule !== 'open') return <Button onClick={() => onSchedule('uncordon')}>Uncordon</Button>
  return (
    <>
      <Button onClick={() => onSchedule('cordon')}>Cordon</Button>
      <Button onClick={() => onSchedule('drain')}>Drain</Button>
    </>
  )
}
