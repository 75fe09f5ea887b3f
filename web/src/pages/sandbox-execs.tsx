import { useEffect, useRef, useState } from 'react'
import type { ExecView } from '../../../src/client/console-types.ts'
import type { Approval } from '../../../src/client/types.ts'
import type { Outcome } from '../../../src/model/command.ts'
import { Field } from '../fields.tsx'
import { clock, millis, oneLine, plain } from '../format.ts'
import { useClient, useLive, useSnapshot } from '../live.ts'
import { useLoad } from '../load.ts'
import { attempt } from '../messages.tsx'
import { said } from '../session.ts'
import { Badge, Button, Empty, Link, Panel } from '../ui.tsx'

export function outcomeText(outcome: Outcome | null): string {
  if (outcome === null) return ''
  if (outcome.kind === 'exited') return outcome.code === 0 ? 'exit 0' : `exit ${outcome.code}`
  return outcome.kind === 'signaled' ? `signal ${outcome.signal}` : `stopped: ${outcome.limit} limit`
}

/** Commands that run and ran, with what they say, and a line to run one more. */
export function Execs({ id, over }: { readonly id: string; readonly over: boolean }) {
  const client = useClient()
  const { who } = useLive()
  const { records, approvals } = useSnapshot()
  const asked = approvals.filter((one) => one.sandbox_id === id)
  const [open, setOpen] = useState<string | undefined>(undefined)
  // Its own records say when the list has changed.
  const last = records.findLast((one) => one.sandbox_id === id && typeof one.exec_id === 'string')?.seq ?? -1
  const { value, again } = useLoad(`execs ${id} ${last}`, () => client.execs(id))
  const [kept, setKept] = useState<readonly ExecView[]>([])
  useEffect(() => {
    if (value) setKept(value.items)
  }, [value])
  const mayRun = !over && (who.operator || who.scopes.includes('exec'))
  return (
    <Panel
      title="Commands"
      aside={<span className="dim">{kept.length > 0 ? `${kept.length} on record` : ''}</span>}
    >
      {mayRun && (
        <RunLine
          id={id}
          onStarted={(execId) => {
            setOpen(execId)
            again()
          }}
        />
      )}
      {asked.length > 0 && <Asked asked={asked} />}
      {kept.length === 0 && asked.length === 0 ? (
        <Empty title="Nothing ran in it yet" command={`ringfence sandbox exec ${id} -c 'echo hello'`}>
          {mayRun ? 'Type a command above, or use a terminal:' : 'What runs in it appears here.'}
        </Empty>
      ) : (
        <ul className="execs">
          {kept.map((one) => (
            <Exec
              key={one.exec_id}
              id={id}
              one={one}
              open={open === one.exec_id}
              onToggle={() => setOpen(open === one.exec_id ? undefined : one.exec_id)}
            />
          ))}
        </ul>
      )}
    </Panel>
  )
}

/** Commands that have not begun: each waits for a person. */
function Asked({ asked }: { readonly asked: readonly Approval[] }) {
  const { who } = useLive()
  return (
    <ul className="execs asked" aria-label="Waiting commands">
      {asked.map((one) => (
        <li className="exec" key={one.id}>
          <Link to={`/approvals/${one.id}`} className="exec-head">
            <time dateTime={one.asked_at} className="num dim">
              {clock(one.asked_at)}
            </time>
            <code>{oneLine(one.command)}</code>
            <span className="exec-end">
              <span className="dim">{oneLine(one.decision.reason)}</span>
              <Badge word={who.operator ? 'waiting for you' : 'waiting'} />
            </span>
          </Link>
        </li>
      ))}
    </ul>
  )
}

function RunLine({ id, onStarted }: { readonly id: string; readonly onStarted: (execId: string) => void }) {
  const client = useClient()
  const [line, setLine] = useState('')
  const [waiting, setWaiting] = useState<string | undefined>(undefined)
  const [problem, setProblem] = useState<string | undefined>(undefined)
  const run = async (): Promise<void> => {
    if (line.trim() === '') return
    setProblem(undefined)
    setLine('')
    try {
      const sandbox = await client.get(id)
      for await (const event of sandbox.stream(line, { background: true })) {
        if (event.type === 'approval') setWaiting(event.id)
        if (event.type !== 'start') continue
        setWaiting(undefined)
        onStarted(event.exec_id)
        return
      }
    } catch (error) {
      setWaiting(undefined)
      setProblem(said(error))
    }
  }
  return (
    <div className="run-line">
      <form
        onSubmit={(event) => {
          event.preventDefault()
          void run()
        }}
      >
        <Field
          label="Run a command in it"
          hideLabel
          mono
          value={line}
          onChange={setLine}
          placeholder="Run a command in it"
        />
        <Button onClick={() => {}} submit tone="main" disabled={line.trim() === ''}>
          Run
        </Button>
      </form>
      {waiting && (
        <p role="status">
          <Badge word="pending" /> policy asks a person first:{' '}
          <Link to={`/approvals/${waiting}`}>look at it</Link>
        </p>
      )}
      {problem && (
        <p role="alert" className="problem">
          <span aria-hidden="true">✕ </span>
          {problem}
        </p>
      )}
    </div>
  )
}

function Exec(props: {
  readonly id: string
  readonly one: ExecView
  readonly open: boolean
  readonly onToggle: () => void
}) {
  const { one, open } = props
  const client = useClient()
  // What is on the screen stays there when its sandbox ends.
  const shown = useRef(false)
  shown.current = open && (shown.current || one.held)
  const failed = one.outcome !== null && (one.outcome.kind !== 'exited' || one.outcome.code !== 0)
  return (
    <li className={open ? 'exec open' : 'exec'}>
      <button type="button" className="exec-head" aria-expanded={open} onClick={props.onToggle}>
        <time dateTime={one.started_at} className="num dim">
          {clock(one.started_at)}
        </time>
        <code>{oneLine(one.command)}</code>
        <span className="exec-end">
          {one.terminal && <span className="dim">terminal</span>}
          {one.violations > 0 && <span className="bad-text">✕ {one.violations} stopped</span>}
          {one.outcome === null ? (
            <Badge word={one.state} />
          ) : (
            <span className={failed ? 'bad-text' : 'dim'}>
              {failed ? '✕ ' : '✓ '}
              {outcomeText(one.outcome)}
            </span>
          )}
          <span className="num dim">{millis(one.duration_ms)}</span>
        </span>
      </button>
      {open && (
        <div className="exec-body">
          <p>
            <Badge word={one.action} /> <span>{plain(one.reason)}</span>
            {one.state === 'running' && (
              <Button
                tone="bad"
                onClick={() =>
                  void attempt(
                    async () => (await client.get(props.id)).signal(one.exec_id, 'SIGTERM'),
                    'Asked to end',
                  )
                }
              >
                End it
              </Button>
            )}
          </p>
          {shown.current ? (
            <Output id={props.id} execId={one.exec_id} />
          ) : (
            <p className="dim">What it printed is no longer held; how it ended is on record.</p>
          )}
        </div>
      )}
    </li>
  )
}

const MOST_SHOWN = 200_000

/** What a command prints, as it prints it. Only ever text. */
function Output({ id, execId }: { readonly id: string; readonly execId: string }) {
  const client = useClient()
  const box = useRef<HTMLPreElement>(null)
  const [text, setText] = useState('')
  const [why, setWhy] = useState('')
  useEffect(() => {
    const stop = new AbortController()
    const decoder = new TextDecoder()
    const read = async (): Promise<void> => {
      const sandbox = await client.get(id)
      for await (const event of sandbox.attach(execId, 0, stop.signal)) {
        if (event.type === 'stdout' || event.type === 'stderr')
          setText((before) => (before + decoder.decode(event.data, { stream: true })).slice(-MOST_SHOWN))
        if (event.type === 'end') setWhy(event.result.cut?.message ?? '')
      }
    }
    read().catch((error: unknown) => !stop.signal.aborted && setWhy(said(error)))
    return () => stop.abort()
  }, [client, id, execId])
  // biome-ignore lint/correctness/useExhaustiveDependencies: follows the text to its end
  useEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight
  }, [text])
  return (
    <>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
      <pre className="output" ref={box} tabIndex={0} role="log" aria-label="What it printed">
        {text === '' ? <span className="dim">(nothing printed)</span> : withoutEscapes(text)}
      </pre>
      {why !== '' && (
        <p className="dim" role="status">
          {plain(why)}
        </p>
      )}
    </>
  )
}

/** Colours and cursor movements mean nothing in a plain box. */
const withoutEscapes = (text: string): string =>
  plain(
    text
      .replace(/\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])/g, '')
      .replace(/\r\n?/g, '\n'),
  )
