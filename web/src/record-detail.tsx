import { useState } from 'react'
import type { TrailRecord } from '../../src/client/types.ts'
import { moment, plain } from './format.ts'
import { useClient } from './live.ts'
import { useLoad } from './load.ts'
import { pinnedKey } from './pinned-key.ts'
import { said } from './session.ts'
import { Button, Link, Panel } from './ui.tsx'
import { checkProof } from './verify.ts'

const FIRST = ['seq', 'time', 'event', 'agent_id', 'sandbox_id', 'exec_id']
const LAST = ['policy', 'prev_hash', 'hash']

type Proven = { readonly ok: boolean; readonly text: string }

/** One record in full, and the proof that it is in the trail. */
export function RecordDetail({ seq, onClose }: { readonly seq: number; readonly onClose: () => void }) {
  const client = useClient()
  const { value: record, error } = useLoad(`record ${seq}`, async () => {
    const { items } = await client.trail({ order: 'desc', before: seq + 1, limit: 1 })
    if (items[0]?.seq !== seq) throw new Error(`there is no record ${seq}`)
    return items[0]
  })
  const [proven, setProven] = useState<Proven | undefined>(undefined)
  const prove = async (): Promise<void> => {
    setProven({ ok: true, text: 'checking…' })
    try {
      const proof = await client.proof(seq)
      const problem = await checkProof(proof, await pinnedKey(client))
      setProven(
        problem === undefined
          ? {
              ok: true,
              text: `proven in this browser: ${proof.path.length} hashes lead from it to the root that was signed over ${proof.head.count} records`,
            }
          : { ok: false, text: problem },
      )
    } catch (problem) {
      setProven({ ok: false, text: said(problem) })
    }
  }
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
      {error && (
        <p role="alert" className="problem">
          ✕ {error}
        </p>
      )}
      {record && <Fields record={record} />}
      <div className="answer">
        <Button onClick={() => void prove()} tone="main">
          Prove it
        </Button>
        {proven && (
          <span role="status" className={proven.ok ? 'good-text' : 'bad-text'}>
            {proven.ok ? '✓ ' : '✕ '}
            {proven.text}
          </span>
        )}
      </div>
    </Panel>
  )
}

function Fields({ record }: { readonly record: TrailRecord }) {
  const middle = Object.keys(record).filter((name) => !FIRST.includes(name) && !LAST.includes(name))
  const names = [...FIRST, ...middle, ...LAST].filter((name) => record[name] !== undefined)
  return (
    <dl className="pairs record">
      {names.map((name) => (
        <div key={name}>
          <dt>{plain(name)}</dt>
          <dd className="mono wrap">
            <Value name={name} value={record[name]} />
          </dd>
        </div>
      ))}
    </dl>
  )
}

function Value({ name, value }: { readonly name: string; readonly value: unknown }) {
  if (name === 'sandbox_id') return <Link to={`/sandboxes/${String(value)}`}>{plain(String(value))}</Link>
  if (name === 'approval_id') return <Link to={`/approvals/${String(value)}`}>{plain(String(value))}</Link>
  if (name === 'time')
    return (
      <>
        {moment(String(value))} <span className="dim">{String(value)}</span>
      </>
    )
  return <>{plain(typeof value === 'string' ? value : JSON.stringify(value, null, 1))}</>
}
