import { memo, type ReactNode, useMemo } from 'react'
import type { ConsoleSandbox, Sample } from '../../../../src/client/console-types.ts'
import type { Approval } from '../../../../src/client/types.ts'
import { Badge } from '../../components/badge.tsx'
import { EmptyState } from '../../components/empty-state.tsx'
import { Link } from '../../components/link.tsx'
import { Panel } from '../../components/panel.tsx'
import { Sparkline } from '../../components/sparkline.tsx'
import { VirtualTable } from '../../components/virtual-table.tsx'
import { useLiveData, useLiveStore } from '../../data/live-context.ts'
import { useMayCreate } from '../../data/permissions.ts'
import { ageOf, usePendingApprovals, useSandboxStatus } from '../../data/sandbox-status.ts'
import { useNow } from '../../data/use-now.ts'
import { formatBytes, formatDuration, safeLine, shortId } from '../../format.ts'
import { matches, SandboxFilters, useSandboxFilter } from './sandbox-filters.tsx'

const COLUMNS = ['State', 'Sandbox', 'Agent', 'Backend', 'Age', 'CPU', 'Memory', 'Egress', 'Last command']

/** Every sandbox, searched and filtered by the URL's query. */
export function SandboxTable() {
  const store = useLiveStore()
  const { sandboxes, ended } = useLiveData()
  const now = useNow()
  const pending = usePendingApprovals()
  const statusOf = useSandboxStatus()
  const all = useMemo(() => [...sandboxes, ...ended], [sandboxes, ended])
  const shown = useFiltered(all, pending)
  return (
    <Panel
      className="fill-height"
      title="Sandboxes"
      aside={
        <div className="line">
          <SandboxFilters sandboxes={all} />
          <NewSandboxButton />
        </div>
      }
    >
      <VirtualTable
        label="Sandboxes"
        className="sandboxes"
        columns={COLUMNS}
        columnPrefix="c-"
        count={shown.length}
        rowHeight={38}
        rowKey={(index) => (shown[index] as ConsoleSandbox).id}
        row={(index) => {
          const sandbox = shown[index] as ConsoleSandbox
          return (
            <SandboxRow
              sandbox={sandbox}
              status={statusOf(sandbox)}
              pending={pending.get(sandbox.id)}
              samples={store.samplesOf(sandbox.id)}
              age={formatDuration(ageOf(sandbox, now))}
            />
          )
        }}
        empty={<NoSandboxes isFiltered={all.length > 0} />}
      />
    </Panel>
  )
}

function useFiltered(
  all: readonly ConsoleSandbox[],
  pending: ReadonlyMap<string, Approval>,
): readonly ConsoleSandbox[] {
  const { search, state, backend, agent } = useSandboxFilter()
  return useMemo(
    () => all.filter((one) => matches(one, pending.has(one.id), { search, state, backend, agent })),
    [all, pending, search, state, backend, agent],
  )
}

function NewSandboxButton() {
  if (!useMayCreate()) return null
  return (
    <Link to="/sandboxes/new" className="button primary">
      New sandbox <kbd aria-hidden="true">n</kbd>
    </Link>
  )
}

const NoSandboxes = ({ isFiltered }: { readonly isFiltered: boolean }) =>
  isFiltered ? (
    <EmptyState title="No matching sandboxes">Clear a filter to see more.</EmptyState>
  ) : (
    <EmptyState title="No sandboxes yet" command="ringfence sandbox create --agent-id me">
      Sandboxes appear here as soon as agents create them. To create one yourself, use New sandbox or a
      terminal:
    </EmptyState>
  )

type RowProps = {
  readonly sandbox: ConsoleSandbox
  readonly status: string
  /** The approval that its command waits for. */
  readonly pending: Approval | undefined
  readonly samples: readonly Sample[]
  readonly age: string
}

const SandboxRow = memo(function SandboxRow({ sandbox, status, pending, samples, age }: RowProps) {
  const { metadata, agent_id, backend, level } = sandbox
  const command = pending?.command ?? sandbox.last_command
  return (
    <>
      <Cell column="state">
        <Status sandbox={sandbox} status={status} pending={pending} />
      </Cell>
      <Cell column="sandbox">
        <Link to={`/sandboxes/${sandbox.id}`} className="mono">
          {metadata.name ? safeLine(metadata.name) : shortId(sandbox.id)}
        </Link>
      </Cell>
      <Cell column="agent">{agent_id ? safeLine(agent_id) : <span className="dim">–</span>}</Cell>
      <Cell column="backend">
        {backend ?? '–'} <span className="dim">{level}</span>
      </Cell>
      <Cell column="age num">{age}</Cell>
      <Cell column="cpu">
        <CpuUsage samples={samples} />
      </Cell>
      <Cell column="memory">
        <MemoryUsage samples={samples} />
      </Cell>
      <Cell column="egress num">
        <Egress sandbox={sandbox} />
      </Cell>
      <Cell column="last-command mono">{command ? safeLine(command) : <span className="dim">–</span>}</Cell>
    </>
  )
})

const Cell = ({ column, children }: { readonly column: string; readonly children: ReactNode }) => (
  <span role="cell" className={`c-${column}`}>
    {children}
  </span>
)

function Status({ sandbox, status, pending }: Pick<RowProps, 'sandbox' | 'status' | 'pending'>) {
  if (!pending) return <Badge word={status} {...(sandbox.reason ? { title: sandbox.reason } : {})} />
  return (
    <Link to={`/approvals/${pending.id}`}>
      <Badge word={status} />
    </Link>
  )
}

function CpuUsage({ samples }: { readonly samples: readonly Sample[] }) {
  const [cpu] = samples.at(-1) ?? [0]
  return (
    <>
      <Sparkline values={samples.map(([value]) => value)} max={100} label={`${cpu.toFixed(0)}% CPU`} />
      <span className="num">{samples.length > 0 ? `${cpu.toFixed(0)}%` : ''}</span>
    </>
  )
}

function MemoryUsage({ samples }: { readonly samples: readonly Sample[] }) {
  const [, memory] = samples.at(-1) ?? [0, 0]
  const label = formatBytes(memory)
  return (
    <>
      <Sparkline values={samples.map(([, value]) => value)} max={memory * 1.6} label={`${label} of memory`} />
      <span className="num">{samples.length > 0 ? label : ''}</span>
    </>
  )
}

function Egress({ sandbox: { egress, network } }: { readonly sandbox: ConsoleSandbox }) {
  if (!egress || network.mode !== 'fetch') return <span className="dim">{network.mode}</span>
  return (
    <span title={`${egress.allowed} allowed, ${egress.refused} blocked`}>
      {egress.allowed}
      {egress.refused > 0 && <span className="bad-text"> ✕{egress.refused}</span>}
    </span>
  )
}
