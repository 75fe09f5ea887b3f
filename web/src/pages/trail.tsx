import { useCallback, useEffect, useMemo, useRef, useState } from 'react'
import type { TrailRecord } from '../../../src/client/types.ts'
import { EVENT_NAMES } from '../../../src/model/event.ts'
import { Choice, Field } from '../fields.tsx'
import { clock, count, moment, oneLine, shortId } from '../format.ts'
import { useClient, useLive, useSnapshot } from '../live.ts'
import { attempt } from '../messages.tsx'
import { RecordDetail } from '../record-detail.tsx'
import { useParam } from '../route.ts'
import { Badge, Button, Empty, Link, Page, Panel } from '../ui.tsx'
import { Verification } from '../verification.tsx'
import { WindowList } from '../window-list.tsx'

const PAGE = 500

type Query = { readonly event: string; readonly agent_id: string; readonly sandbox_id: string }

const fits = (record: TrailRecord, query: Query): boolean =>
  (query.event === '' || record.event === query.event) &&
  (query.agent_id === '' || record.agent_id === query.agent_id) &&
  (query.sandbox_id === '' || record.sandbox_id === query.sandbox_id)

/** Records newest first: what is new comes by the stream, what is older is fetched when somebody scrolls there. */
function useRecords(query: Query): {
  readonly records: readonly TrailRecord[]
  readonly more: () => void
  readonly done: boolean
  readonly error: string | undefined
} {
  const client = useClient()
  const { records: fresh } = useSnapshot()
  const [older, setOlder] = useState<readonly TrailRecord[]>([])
  const [done, setDone] = useState(false)
  const [error, setError] = useState<string | undefined>(undefined)
  const busy = useRef(false)
  const name = JSON.stringify(query)
  const current = useRef(name)
  current.current = name
  const load = useCallback(
    async (before: number | undefined, of: string): Promise<void> => {
      if (busy.current) return
      busy.current = true
      try {
        const { event, agent_id, sandbox_id } = JSON.parse(of) as Query
        const asked = {
          order: 'desc',
          limit: PAGE,
          before,
          event: event || undefined,
          agent_id: agent_id || undefined,
          sandbox_id: sandbox_id || undefined,
        }
        const { items } = await client.trail(asked)
        if (current.current !== of) return
        setOlder((known) => (before === undefined ? items : [...known, ...items]))
        setDone(items.length < PAGE)
        setError(undefined)
      } catch (problem) {
        setError((problem as Error).message)
      } finally {
        busy.current = false
      }
    },
    [client],
  )
  useEffect(() => {
    setOlder([])
    setDone(false)
    busy.current = false
    void load(undefined, name)
  }, [name, load])
  const records = useMemo(() => {
    const top = older[0]?.seq ?? -1
    const wanted = JSON.parse(name) as Query
    return [...fresh.filter((one) => one.seq > top && fits(one, wanted)).reverse(), ...older]
  }, [fresh, older, name])
  const last = records.at(-1)?.seq
  const more = useCallback(() => {
    if (!done && last !== undefined) void load(last, name)
  }, [done, last, load, name])
  return { records, more, done, error }
}

/** What a record says, in one line. */
export function gist(record: TrailRecord): string {
  const of = (name: string): string => (record[name] === undefined ? '' : String(record[name]))
  switch (record.event) {
    case 'PolicyDecision':
      return `${of('command') || [of('subject'), of('operation'), of('path')].filter(Boolean).join(' ')} — ${of('reason')}`
    case 'SandboxState':
      return `${of('state')}${of('backend') ? ` on ${of('backend')}` : ''}${of('reason') ? `: ${of('reason')}` : ''}`
    case 'Exec': {
      const outcome = record.outcome as
        | { kind?: string; code?: number; signal?: string; limit?: string }
        | undefined
      return outcome
        ? `${outcome.kind} ${outcome.code ?? outcome.signal ?? outcome.limit ?? ''} after ${of('duration_ms')} ms`
        : of('state')
    }
    case 'SandboxViolation':
      return `${of('guarantee') || of('violation_type')}: ${of('details')}`
    case 'Connection':
      return `${of('host')}:${of('port')} ${of('address')}`
    case 'Approval':
      return `${of('state') || (record.approved === true ? 'approved' : 'not approved')}${of('reason') ? `: ${of('reason')}` : ''}`
    case 'Review':
      return `${of('count')} ${record.count === 1 ? 'change' : 'changes'}${refusedIn(record)}`
    case 'SkillRun':
      return `${of('skill')} ${of('state')} ${of('outcome')}`
    case 'Pruning':
      return `${of('sandboxes')} sandboxes, ${of('approvals')} approvals and ${of('files')} files of before ${of('ended_before')} removed`
    case 'Checkpoint':
      return `signed head over ${String((record.head as { count?: number } | undefined)?.count ?? '')} records`
    default:
      return ''
  }
}

const refusedIn = ({ refused }: TrailRecord): string =>
  Array.isArray(refused) && refused.length > 0 ? `, ${refused.length} refused` : ''

const wordOf = (record: TrailRecord): string => {
  if (record.event === 'PolicyDecision') return String(record.action ?? '')
  if (record.event === 'SandboxViolation') return 'block'
  if (record.event === 'Connection') return String(record.verdict ?? '')
  return String(
    record.state ?? (record.approved === true ? 'approved' : record.approved === false ? 'rejected' : ''),
  )
}

function Rows(props: {
  readonly query: Query
  readonly chosen: string
  readonly link: (seq: number) => string
  readonly narrow?: boolean
}) {
  const { records, more, done, error } = useRecords(props.query)
  return (
    <>
      {error && (
        <p role="alert" className="problem">
          ✕ {error}
        </p>
      )}
      <WindowList
        label="Records"
        className={props.narrow ? 'records own' : 'records'}
        count={records.length}
        rowHeight={30}
        onEnd={more}
        rowKey={(index) => (records[index] as TrailRecord).seq}
        head={['Record', 'Time', 'Event', 'Verdict', 'Sandbox', 'What'].map((name) => (
          <span role="columnheader" key={name} className={`t-${name.toLowerCase()}`}>
            {name}
          </span>
        ))}
        row={(index) => {
          const record = records[index] as TrailRecord
          const word = wordOf(record)
          return (
            <>
              <span role="cell" className="t-record">
                <Link
                  to={props.link(record.seq)}
                  className="num"
                  current={props.chosen === String(record.seq)}
                >
                  #{record.seq}
                </Link>
              </span>
              <span role="cell" className="t-time num dim" title={moment(record.time)}>
                {clock(record.time)}
              </span>
              <span role="cell" className="t-event">
                {record.event}
              </span>
              <span role="cell" className="t-verdict">
                {word && <Badge word={word} />}
              </span>
              <span role="cell" className="t-sandbox mono dim">
                {typeof record.sandbox_id === 'string' ? shortId(record.sandbox_id) : ''}
              </span>
              <span role="cell" className="t-what">
                {oneLine(gist(record))}
              </span>
            </>
          )
        }}
        empty={
          done ? (
            <Empty title="No record fits">Take a filter away to see more.</Empty>
          ) : (
            <p className="dim quiet-line">…</p>
          )
        }
      />
    </>
  )
}

/** Everything that happened, checked in this browser. */
export function Trail() {
  const client = useClient()
  const { who } = useLive()
  const { seq: newest } = useSnapshot()
  const [event, setEvent] = useParam('event')
  const [agent, setAgent] = useParam('agent')
  const [sandbox, setSandbox] = useParam('sandbox')
  const [seq, setSeq] = useParam('seq')
  const query = { event, agent_id: agent, sandbox_id: sandbox }
  const link = (one: number): string => {
    const params = new URLSearchParams(location.search)
    params.set('seq', String(one))
    return `/trail?${params}`
  }
  const save = (): void =>
    void attempt(async () => {
      const address = URL.createObjectURL(await client.trailExport())
      const anchor = document.createElement('a')
      anchor.href = address
      anchor.download = 'ringfence-trail.jsonl'
      anchor.click()
      URL.revokeObjectURL(address)
    }, 'The canonical lines are saved; `ringfence audit verify` reads them too')
  return (
    <Page
      title="Trail"
      aside={
        <search className="filters">
          <span className="dim num">{newest >= 0 ? `${count(newest + 1)} records` : ''}</span>
          <Choice
            label="Event"
            hideLabel
            value={event}
            onChange={setEvent}
            options={[['', 'every event'], ...EVENT_NAMES.map((name) => [name, name] as const)]}
          />
          <Field label="Agent" hideLabel value={agent} onChange={setAgent} placeholder="agent" />
          <Field
            label="Sandbox"
            hideLabel
            type="search"
            value={sandbox}
            onChange={setSandbox}
            placeholder="sandbox id  /"
            mono
          />
          {who.operator && <Button onClick={save}>Export</Button>}
        </search>
      }
    >
      <Verification />
      <div className={seq === '' ? 'trail' : 'trail split-right'}>
        <Panel title="Records" className="grows" aside={<span className="dim">newest first</span>}>
          <Rows query={query} chosen={seq} link={link} />
        </Panel>
        {seq !== '' && <RecordDetail key={seq} seq={Number(seq)} onClose={() => setSeq('')} />}
      </div>
    </Page>
  )
}

/** The records of one sandbox, on its own page. */
export function SandboxRecords({ id }: { readonly id: string }) {
  const query = useMemo(() => ({ event: '', agent_id: '', sandbox_id: id }), [id])
  return (
    <Panel title="Record" className="grows" aside={<Link to={`/trail?sandbox=${id}`}>in the trail</Link>}>
      <Rows query={query} chosen="" link={(seq) => `/trail?sandbox=${id}&seq=${seq}`} narrow />
    </Panel>
  )
}
