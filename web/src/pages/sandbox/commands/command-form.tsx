import { type FormEvent, useState } from 'react'
import { Badge } from '../../../components/badge.tsx'
import { Button } from '../../../components/button.tsx'
import { TextField } from '../../../components/fields.tsx'
import { Link } from '../../../components/link.tsx'
import { ErrorMessage } from '../../../components/page.tsx'
import { errorText } from '../../../data/error-text.ts'
import { useClient } from '../../../data/live-context.ts'

/** Runs a command in the sandbox; says so when it needs an approval first. */
export function CommandForm(props: { readonly id: string; readonly onStarted: (execId: string) => void }) {
  const [line, setLine] = useState('')
  const { approvalId, error, run } = useRun(props.id, props.onStarted)
  const submit = (event: FormEvent): void => {
    event.preventDefault()
    if (line.trim() === '') return
    setLine('')
    void run(line)
  }
  return (
    <div className="inline-form">
      <form onSubmit={submit}>
        <TextField
          label="Run a command"
          hideLabel
          mono
          value={line}
          onChange={setLine}
          placeholder="Run a command"
        />
        <Button tone="primary" disabled={line.trim() === ''}>
          Run
        </Button>
      </form>
      {approvalId && (
        <p role="status">
          <Badge word="pending" /> Needs approval.{' '}
          <Link to={`/approvals/${approvalId}`}>Review the request</Link>
        </p>
      )}
      <ErrorMessage text={error} />
    </div>
  )
}

function useRun(id: string, onStarted: (execId: string) => void) {
  const client = useClient()
  const [approvalId, setApprovalId] = useState<string | undefined>(undefined)
  const [error, setError] = useState<string | undefined>(undefined)
  const run = async (line: string): Promise<void> => {
    setError(undefined)
    try {
      const sandbox = await client.get(id)
      for await (const event of sandbox.stream(line, { background: true })) {
        if (event.type === 'approval') setApprovalId(event.id)
        if (event.type !== 'start') continue
        setApprovalId(undefined)
        return onStarted(event.exec_id)
      }
    } catch (problem) {
      setApprovalId(undefined)
      setError(errorText(problem))
    }
  }
  return { approvalId, error, run }
}
