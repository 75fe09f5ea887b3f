import { useRef } from 'react'
import type { ExecView } from '../../../../../src/client/console-types.ts'
import type { Outcome } from '../../../../../src/model/command.ts'
import { Badge } from '../../../components/badge.tsx'
import { Button } from '../../../components/button.tsx'
import { attempt } from '../../../components/toasts.tsx'
import { useClient } from '../../../data/live-context.ts'
import { formatMillis, formatTime, safeLine, safeText } from '../../../format.ts'
import { CommandOutput } from './command-output.tsx'

type Props = {
  readonly sandboxId: string
  readonly exec: ExecView
  readonly isOpen: boolean
  readonly onToggle: () => void
}

/** One command; expands to its decision and output. */
export function CommandItem({ sandboxId, exec, isOpen, onToggle }: Props) {
  return (
    <li className={isOpen ? 'exec open' : 'exec'}>
      <button type="button" className="exec-head" aria-expanded={isOpen} onClick={onToggle}>
        <time dateTime={exec.started_at} className="num dim">
          {formatTime(exec.started_at)}
        </time>
        <code>{safeLine(exec.command)}</code>
        <span className="exec-result">
          {exec.terminal && <span className="dim">terminal</span>}
          {exec.violations > 0 && <span className="bad-text">✕ {exec.violations} blocked</span>}
          <Result exec={exec} />
          <span className="num dim">{formatMillis(exec.duration_ms)}</span>
        </span>
      </button>
      {isOpen && <CommandDetails sandboxId={sandboxId} exec={exec} />}
    </li>
  )
}

function Result({ exec: { outcome, state } }: { readonly exec: ExecView }) {
  if (outcome === null) return <Badge word={state} />
  const isSuccess = outcome.kind === 'exited' && outcome.code === 0
  return (
    <span className={isSuccess ? 'dim' : 'bad-text'}>
      {isSuccess ? '✓ ' : '✕ '}
      {outcomeText(outcome)}
    </span>
  )
}

function outcomeText(outcome: Outcome): string {
  if (outcome.kind === 'exited') return `exit ${outcome.code}`
  return outcome.kind === 'signaled' ? `signal ${outcome.signal}` : `stopped: ${outcome.limit} limit`
}

function CommandDetails({ sandboxId, exec }: { readonly sandboxId: string; readonly exec: ExecView }) {
  const client = useClient()
  // Output that is on the screen stays there when the sandbox ends and the server drops it.
  const wasAvailable = useRef(false)
  wasAvailable.current ||= exec.held
  const terminate = (): void =>
    void attempt(async () => (await client.get(sandboxId)).signal(exec.exec_id, 'SIGTERM'), 'SIGTERM sent')
  return (
    <div className="exec-body">
      <p>
        <Badge word={exec.action} /> <span>{safeText(exec.reason)}</span>
        {exec.state === 'running' && (
          <Button tone="danger" onClick={terminate}>
            Terminate
          </Button>
        )}
      </p>
      {wasAvailable.current ? (
        <CommandOutput sandboxId={sandboxId} execId={exec.exec_id} />
      ) : (
        <p className="dim">The output is no longer stored. The result is in the audit log.</p>
      )}
    </div>
  )
}
