import type { Approval } from '../../../../src/client/types.ts'
import { useShortcuts } from '../../browser/keyboard.ts'
import { navigate, setParams, useParam } from '../../browser/route.ts'
import { Button } from '../../components/button.tsx'
import { EmptyState } from '../../components/empty-state.tsx'
import { type Option, Select } from '../../components/fields.tsx'
import { ErrorMessage, Loading, Page } from '../../components/page.tsx'
import { Panel } from '../../components/panel.tsx'
import { useClient, useLiveData } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { ApprovalDetail } from './approval-detail.tsx'
import { ApprovalList } from './approval-list.tsx'

const STATES: readonly Option[] = [
  ['', 'All'],
  ['pending', 'Pending'],
  ['approved', 'Approved'],
  ['rejected', 'Rejected'],
  ['expired', 'Expired'],
]

/** Approval requests: the pending ones first, then the decided ones. */
export function Approvals({ id }: { readonly id: string | undefined }) {
  const [state, setState] = useParam('state')
  const approvals = useApprovals(state)
  const selected = approvals.find((one) => one.id === id) ?? (id === undefined ? approvals[0] : undefined)
  useSelectionShortcuts(approvals, selected?.id)
  return (
    <Page
      title="Approvals"
      aside={<Select label="State" value={state} onChange={setState} options={STATES} />}
    >
      {approvals.length === 0 && id === undefined ? (
        <NoApprovals isFiltered={state !== ''} />
      ) : (
        <div className="split">
          <ApprovalList approvals={approvals} selected={selected?.id} />
          {selected ? (
            <ApprovalDetail key={selected.id} approval={selected} />
          ) : (
            <UnlistedApproval id={id as string} />
          )}
        </div>
      )}
    </Page>
  )
}

/** Pending approvals from the stream; decided ones are fetched again whenever one is decided. */
function useApprovals(state: string): readonly Approval[] {
  const client = useClient()
  const { approvals, records } = useLiveData()
  const lastDecision = records.findLast(({ event }) => event === 'Approval')?.seq ?? -1
  const past = useLoad(`approvals ${state} ${lastDecision}`, () =>
    client.approvals((state || undefined) as Approval['state']),
  )
  const pending = state === '' || state === 'pending' ? approvals : []
  return [...pending, ...(past.value?.items ?? []).filter((approval) => approval.state !== 'pending')]
}

function useSelectionShortcuts(approvals: readonly Approval[], selected: string | undefined): void {
  const move = (step: number): void => {
    const index = approvals.findIndex(({ id }) => id === selected)
    const next = approvals[Math.max(0, Math.min(approvals.length - 1, index + step))]
    if (next) navigate(`/approvals/${next.id}${location.search}`, true)
  }
  useShortcuts([
    { keys: 'j, ArrowDown', label: 'Next approval', run: () => move(1) },
    { keys: 'k, ArrowUp', label: 'Previous approval', run: () => move(-1) },
  ])
}

function NoApprovals({ isFiltered }: { readonly isFiltered: boolean }) {
  if (isFiltered)
    return (
      <Panel title="No matching approvals">
        <Button onClick={() => setParams({ state: '' })}>Show all</Button>
      </Panel>
    )
  return (
    <Panel title="No approvals yet">
      <EmptyState
        title="Commands that need your approval appear here"
        command={'ringfence sandbox exec SANDBOX -c "git push origin main"'}
      >
        To try it, run a command that the built-in policy asks about:
      </EmptyState>
    </Panel>
  )
}

/** An approval opened by its URL that is not in the list. */
function UnlistedApproval({ id }: { readonly id: string }) {
  const client = useClient()
  const { value, error } = useLoad(`approval ${id}`, () => client.approval(id))
  if (value) return <ApprovalDetail approval={value} />
  return <Panel title="Approval">{error ? <ErrorMessage text={error} /> : <Loading />}</Panel>
}
