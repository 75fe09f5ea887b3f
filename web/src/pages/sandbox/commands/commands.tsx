import { useEffect, useState } from 'react'
import type { ExecView } from '../../../../../src/client/console-types.ts'
import type { Approval } from '../../../../../src/client/types.ts'
import { Badge } from '../../../components/badge.tsx'
import { EmptyState } from '../../../components/empty-state.tsx'
import { Link } from '../../../components/link.tsx'
import { Panel } from '../../../components/panel.tsx'
import { useClient, useIdentity, useLiveData } from '../../../data/live-context.ts'
import { useLoad } from '../../../data/use-load.ts'
import { formatTime, plural, safeLine } from '../../../format.ts'
import { CommandForm } from './command-form.tsx'
import { CommandItem } from './command-item.tsx'

/** The commands of a sandbox with their output, and a form to run another one. */
export function Commands({ id, isEnded }: { readonly id: string; readonly isEnded: boolean }) {
  const { operator, scopes } = useIdentity()
  const { approvals } = useLiveData()
  const pending = approvals.filter(({ sandbox_id }) => sandbox_id === id)
  const { execs, reload } = useExecs(id, pending)
  const [openId, setOpenId] = useOpenCommand(execs)
  const mayRun = !isEnded && (operator || scopes.includes('exec'))
  const onStarted = (execId: string): void => {
    setOpenId(execId)
    reload()
  }
  return (
    <Panel
      title="Commands"
      aside={<span className="dim">{execs.length > 0 ? plural(execs.length, 'command') : ''}</span>}
    >
      {mayRun && <CommandForm id={id} onStarted={onStarted} />}
      {pending.length > 0 && <PendingCommands approvals={pending} />}
      {execs.length === 0 && pending.length === 0 && (
        <EmptyState title="No commands yet" command={`ringfence sandbox exec ${id} -c 'echo hello'`}>
          {mayRun ? 'Run one above, or from a terminal:' : 'Commands that run in this sandbox appear here.'}
        </EmptyState>
      )}
      {execs.length > 0 && (
        <ul className="execs">
          {execs.map((exec) => (
            <CommandItem
              key={exec.exec_id}
              sandboxId={id}
              exec={exec}
              isOpen={openId === exec.exec_id}
              onToggle={() => setOpenId(openId === exec.exec_id ? '' : exec.exec_id)}
            />
          ))}
        </ul>
      )}
    </Panel>
  )
}

/** The command whose output is open: a running one by itself, until somebody opens or closes one. */
function useOpenCommand(execs: readonly ExecView[]) {
  const [openId, setOpenId] = useState<string | undefined>(undefined)
  const runningId = execs.find(({ state, terminal }) => state === 'running' && !terminal)?.exec_id
  useEffect(() => {
    // Stays open when the command ends.
    if (runningId !== undefined) setOpenId((before) => before ?? runningId)
  }, [runningId])
  return [openId, setOpenId] as const
}

/** Fetched again whenever a record of one of its commands arrives. */
function useExecs(
  id: string,
  pending: readonly Approval[],
): { readonly execs: readonly ExecView[]; readonly reload: () => void } {
  const client = useClient()
  const { records } = useLiveData()
  const last = records.findLast((one) => one.sandbox_id === id && typeof one.exec_id === 'string')?.seq ?? -1
  const { value, reload } = useLoad(`execs ${id} ${last}`, () => client.execs(id))
  const [execs, setExecs] = useState<readonly ExecView[]>([])
  useEffect(() => {
    if (value) setExecs(value.items)
  }, [value])
  // A pending command is listed with its approval instead.
  const waiting = new Set(pending.map(({ exec_id }) => exec_id))
  return { execs: execs.filter(({ exec_id }) => !waiting.has(exec_id)), reload }
}

/** Commands that wait for an approval. */
function PendingCommands({ approvals }: { readonly approvals: readonly Approval[] }) {
  const { operator } = useIdentity()
  return (
    <ul className="execs pending" aria-label="Pending commands">
      {approvals.map((approval) => (
        <li className="exec" key={approval.id}>
          <Link to={`/approvals/${approval.id}`} className="exec-head">
            <time dateTime={approval.asked_at} className="num dim">
              {formatTime(approval.asked_at)}
            </time>
            <code>{safeLine(approval.command)}</code>
            <span className="exec-result">
              <span className="dim">{safeLine(approval.decision.reason)}</span>
              <Badge word={operator ? 'needs approval' : 'awaiting approval'} />
            </span>
          </Link>
        </li>
      ))}
    </ul>
  )
}
