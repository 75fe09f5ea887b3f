import { useState } from 'react'
import type { ConsoleClient } from '../../../../src/client/console.ts'
import type { TrailRecord } from '../../../../src/client/types.ts'
import { pinnedKey } from '../../audit/pinned-key.ts'
import { checkProof } from '../../audit/verifier.ts'
import { Button } from '../../components/button.tsx'
import { Link } from '../../components/link.tsx'
import { ErrorMessage } from '../../components/page.tsx'
import { Panel } from '../../components/panel.tsx'
import { errorText } from '../../data/error-text.ts'
import { useClient } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { formatDateTime, safeText } from '../../format.ts'

/** One record in full, and the proof that the audit log includes it. */
export function RecordDetail({ seq, onClose }: { readonly seq: number; readonly onClose: () => void }) {
  const client = useClient()
  const { value: record, error } = useLoad(`record ${seq}`, () => fetchRecord(client, seq))
  return (
    <Panel
      title={`Record #${seq}`}
      className="record-detail"
      aside={
        <Button tone="quiet" onClick={onClose}>
          Close
        </Button>
      }
    >
      <ErrorMessage text={error} />
      {record && <Fields record={record} />}
      <InclusionProof seq={seq} />
    </Panel>
  )
}

async function fetchRecord(client: ConsoleClient, seq: number): Promise<TrailRecord> {
  const { items } = await client.trail({ order: 'desc', before: seq + 1, limit: 1 })
  if (items[0]?.seq !== seq) throw new Error(`no record ${seq}`)
  return items[0]
}

type ProofState = { readonly isValid: boolean; readonly text: string }

function InclusionProof({ seq }: { readonly seq: number }) {
  const client = useClient()
  const [state, setState] = useState<ProofState | undefined>(undefined)
  const verify = async (): Promise<void> => setState(await verifyInclusion(client, seq))
  return (
    <div className="decision-bar">
      <Button onClick={() => void verify()} tone="primary">
        Verify record
      </Button>
      {state && (
        <span role="status" className={state.isValid ? 'good-text' : 'bad-text'}>
          {state.isValid ? '✓ ' : '✕ '}
          {state.text}
        </span>
      )}
    </div>
  )
}

async function verifyInclusion(client: ConsoleClient, seq: number): Promise<ProofState> {
  try {
    const proof = await client.proof(seq)
    const problem = await checkProof(proof, await pinnedKey(client))
    if (problem !== undefined) return { isValid: false, text: problem }
    const { path, head } = proof
    return {
      isValid: true,
      text: `Verified in this browser: ${path.length} hashes lead to the signed root of ${head.count} records`,
    }
  } catch (error) {
    return { isValid: false, text: errorText(error) }
  }
}

const FIRST = ['seq', 'time', 'event', 'agent_id', 'sandbox_id', 'exec_id']
const LAST = ['policy', 'prev_hash', 'hash']

function Fields({ record }: { readonly record: TrailRecord }) {
  const middle = Object.keys(record).filter((name) => !FIRST.includes(name) && !LAST.includes(name))
  const names = [...FIRST, ...middle, ...LAST].filter((name) => record[name] !== undefined)
  return (
    <dl className="pairs record">
      {names.map((name) => (
        <div key={name}>
          <dt>{safeText(name)}</dt>
          <dd className="mono wrap">
            <Value name={name} value={record[name]} />
          </dd>
        </div>
      ))}
    </dl>
  )
}

function Value({ name, value }: { readonly name: string; readonly value: unknown }) {
  const text = safeText(typeof value === 'string' ? value : JSON.stringify(value, null, 1))
  if (name === 'sandbox_id') return <Link to={`/sandboxes/${String(value)}`}>{text}</Link>
  if (name === 'approval_id') return <Link to={`/approvals/${String(value)}`}>{text}</Link>
  if (name !== 'time') return text
  return (
    <>
      {formatDateTime(String(value))} <span className="dim">{text}</span>
    </>
  )
}
