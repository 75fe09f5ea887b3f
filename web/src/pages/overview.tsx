import { memo, useMemo } from 'react'
import type { ConsoleSandbox, Sample } from '../../../src/client/console-types.ts'
import type { Approval, TrailRecord } from '../../../src/client/types.ts'
import { Choice, Field } from '../fields.tsx'
import { ago, bytes, clock, count, oneLine, shortId, span } from '../format.ts'
import { useLive, useSnapshot } from '../live.ts'
import { useNow } from '../load.ts'
import { setParams, useParam } from '../route.ts'
import { Spark } from '../spark.tsx'
import { Timeline } from '../timeline.tsx'
import { Badge, Empty, Link, Page, Panel } from '../ui.tsx'
import { WindowList } from '../window-list.tsx'

const HOUR_MS = 3_600_000

export const isViolation = (record: TrailRecord): boolean =>
  record.event === 'SandboxViolation' || (record.event === 'PolicyDecision' && record.action === 'deny')

/** What runs, what was stopped, and first of all what waits for a person. */
export function Overview() {
  const { approvals, sandboxes, records } = useSnapshot()
  const now = useNow()
  const running = sandboxes.filter(({ state }) => state === 'executing').length
  // Once a minute is often enough for what falls out of the hour.
  const edge = Math.floor(now / 60_000)
  const stopped = useMemo(
    () => records.filter((one) => isViolation(one) && Date.parse(one.time) > edge * 60_000 - HOUR_MS),
    [records, edge],
  )
  return (
    <Page
      title="Overview"
      aside={
        <dl className="figures">
          <Figure name="live" value={sandboxes.length} />
          <Figure name="busy" value={running} />
          <Figure name="waiting for you" value={approvals.length} urgent={approvals.length > 0} />
          <Figure name="stopped in the last hour" value={stopped.length} />
        </dl>
      }
    >
      {approvals.length > 0 && <NeedsYou approvals={approvals} now={now} />}
      <Stopped records={stopped} now={now} />
      <Sandboxes />
    </Page>
  )
}

function Figure(props: { readonly name: string; readonly value: number; readonly urgent?: boolean }) {
  return (
    <div className={props.urgent ? 'figure urgent' : 'figure'}>
      <dt>{props.name}</dt>
      <dd>{count(props.value)}</dd>
    </div>
  )
}

function NeedsYou({ approvals, now }: { readonly approvals: readonly Approval[]; readonly now: number }) {
  return (
    <Panel
      title="Needs you"
      className="needs-you"
      aside={
        <span className="dim for-keyboards">
          <kbd>g</kbd> <kbd>a</kbd> opens them all
        </span>
      }
    >
      <ul className="asks">
        {approvals.slice(0, 4).map((one) => (
          <li key={one.id}>
            <Link to={`/approvals/${one.id}`} className="ask-card">
              <code>{oneLine(one.command)}</code>
              <span className="why">{oneLine(one.decision.reason)}</span>
              <span className="dim">
                {one.agent_id ? oneLine(one.agent_id) : 'no agent named'} · asked {ago(one.asked_at, now)} ago
                · {span(Math.max(0, Date.parse(one.expires_at) - now))} left
              </span>
            </Link>
          </li>
        ))}
      </ul>
      {approvals.length > 4 && (
        <Link to="/approvals" className="more">
          and {approvals.length - 4} more
        </Link>
      )}
    </Panel>
  )
}

/** The last hour as bars that can be brushed; what is in the brush is listed. */
function Stopped({ records, now }: { readonly records: readonly TrailRecord[]; readonly now: number }) {
  const [from] = useParam('from')
  const [to] = useParam('to')
  // Whatever somebody wrote into the address.
  const asked = /^\d{12,14}$/.test(from) && /^\d{12,14}$/.test(to) && Number(from) < Number(to)
  const brush = asked ? ([Number(from), Number(to)] as const) : undefined
  const shown = records.filter(
    ({ time }) => !brush || (Date.parse(time) >= brush[0] && Date.parse(time) <= brush[1]),
  )
  return (
    <Panel
      title="Stopped in the last hour"
      aside={
        brush ? (
          <button type="button" className="link" onClick={() => setParams({ from: '', to: '' })}>
            {clock(new Date(brush[0]).toISOString())} – {clock(new Date(brush[1]).toISOString())} · clear
          </button>
        ) : (
          <span className="dim">drag, or use the arrow keys, to look at a stretch</span>
        )
      }
    >
      <Timeline
        times={records.map(({ time }) => Date.parse(time))}
        end={Math.ceil(now / 60_000) * 60_000}
        lengthMs={HOUR_MS}
        brush={brush}
        onBrush={(next) => setParams({ from: next ? String(next[0]) : '', to: next ? String(next[1]) : '' })}
      />
      {shown.length > 0 ? (
        <ol className="stops">
          {shown
            .slice(-(brush ? 12 : 4))
            .reverse()
            .map((one) => (
              <li key={one.seq}>
                <time dateTime={one.time}>{clock(one.time)}</time>
                <Badge word={one.event === 'PolicyDecision' ? 'deny' : 'block'} />
                <span className="what">{oneLine(whatWasStopped(one))}</span>
                {typeof one.sandbox_id === 'string' && (
                  <Link to={`/sandboxes/${one.sandbox_id}`} className="mono dim">
                    {shortId(one.sandbox_id)}
                  </Link>
                )}
                <Link to={`/trail?seq=${one.seq}`} className="dim">
                  #{one.seq}
                </Link>
              </li>
            ))}
        </ol>
      ) : (
        <p className="dim quiet-line">
          Nothing was stopped{brush ? ' in this stretch' : ''}. Walls are quiet when agents keep to what they
          were given.
        </p>
      )}
    </Panel>
  )
}

function whatWasStopped(record: TrailRecord): string {
  if (record.event === 'PolicyDecision')
    return `${String(record.command ?? record.subject ?? '')}: ${String(record.reason ?? '')}`
  return `${String(record.guarantee ?? record.violation_type ?? '')}: ${String(record.details ?? '')}`
}

const ENDED = ['destroyed', 'failed']

function Sandboxes() {
  const live = useLive()
  const { sandboxes, ended } = useSnapshot()
  const now = useNow()
  const [search, setSearch] = useParam('q')
  const [state, setState] = useParam('state')
  const [backend, setBackend] = useParam('backend')
  const [owner, setOwner] = useParam('owner')
  const everyone = useMemo(() => [...sandboxes, ...ended], [sandboxes, ended])
  const shown = useMemo(
    () => everyone.filter((one) => fits(one, { search, state, backend, owner })),
    [everyone, search, state, backend, owner],
  )
  const options = (values: readonly (string | null | undefined)[], all: string) => [
    ['', all] as const,
    ...[...new Set(values.filter((value) => value))]
      .sort()
      .map((value) => [value as string, oneLine(value as string)] as const),
  ]
  return (
    <Panel
      className="grows"
      title="Sandboxes"
      aside={
        <search className="filters">
          <Field
            label="Search"
            hideLabel
            type="search"
            value={search}
            onChange={setSearch}
            placeholder="Search  /"
          />
          <Choice
            label="State"
            hideLabel
            value={state}
            onChange={setState}
            options={[
              ['', 'any state'],
              ['live', 'live'],
              ['executing', 'executing'],
              ['ready', 'ready'],
              ['paused', 'paused'],
              ['ended', 'ended'],
            ]}
          />
          <Choice
            label="Backend"
            hideLabel
            value={backend}
            onChange={setBackend}
            options={options(
              everyone.map((one) => one.backend),
              'any backend',
            )}
          />
          <Choice
            label="Owner"
            hideLabel
            value={owner}
            onChange={setOwner}
            options={options(
              everyone.map((one) => one.agent_id),
              'any agent',
            )}
          />
        </search>
      }
    >
      <WindowList
        label="Sandboxes"
        className="sandboxes"
        count={shown.length}
        rowHeight={38}
        rowKey={(index) => (shown[index] as ConsoleSandbox).id}
        head={['State', 'Sandbox', 'Agent', 'Backend', 'Age', 'CPU', 'Memory', 'Egress', 'Last command'].map(
          (name) => (
            <span role="columnheader" key={name} className={`c-${name.toLowerCase().replace(' ', '-')}`}>
              {name}
            </span>
          ),
        )}
        row={(index) => {
          const one = shown[index] as ConsoleSandbox
          const age = one.ended_at
            ? Date.parse(one.ended_at) - Date.parse(one.created_at)
            : now - Date.parse(one.created_at)
          return <Row one={one} samples={live.samplesOf(one.id)} age={span(Math.max(0, age))} />
        }}
        empty={
          everyone.length === 0 ? (
            <Empty title="No sandbox is running" command="ringfence sandbox create --agent-id me">
              Everything that agents start on this server appears here by itself. Try it in a terminal:
            </Empty>
          ) : (
            <Empty title="No sandbox fits these filters">Take one away to see more.</Empty>
          )
        }
      />
    </Panel>
  )
}

type Filters = {
  readonly search: string
  readonly state: string
  readonly backend: string
  readonly owner: string
}

function fits(one: ConsoleSandbox, { search, state, backend, owner }: Filters): boolean {
  const over = ENDED.includes(one.state)
  if (state === 'live' ? over : state === 'ended' ? !over : state !== '' && one.state !== state) return false
  if (backend !== '' && one.backend !== backend) return false
  if (owner !== '' && one.agent_id !== owner) return false
  if (search === '') return true
  const text = [
    one.id,
    one.agent_id,
    one.last_command,
    one.backend,
    one.tenant,
    ...Object.values(one.metadata),
  ].join('\n')
  return text.toLowerCase().includes(search.toLowerCase())
}

const Row = memo(function Row(props: {
  readonly one: ConsoleSandbox
  readonly samples: readonly Sample[]
  readonly age: string
}) {
  const { one, samples } = props
  const [cpu, memory] = samples.at(-1) ?? [0, 0]
  const name = one.metadata.name
  return (
    <>
      <span role="cell" className="c-state">
        <Badge word={one.state} {...(one.reason ? { title: one.reason } : {})} />
      </span>
      <span role="cell" className="c-sandbox">
        <Link to={`/sandboxes/${one.id}`} className="mono">
          {name ? oneLine(name) : shortId(one.id)}
        </Link>
      </span>
      <span role="cell" className="c-agent">
        {one.agent_id ? oneLine(one.agent_id) : <span className="dim">–</span>}
      </span>
      <span role="cell" className="c-backend">
        {one.backend ?? '–'} <span className="dim">{one.level}</span>
      </span>
      <span role="cell" className="c-age num">
        {props.age}
      </span>
      <span role="cell" className="c-cpu">
        <Spark
          values={samples.map(([value]) => value)}
          most={100}
          label={`${cpu.toFixed(0)} percent of a processor`}
        />
        <span className="num">{samples.length > 0 ? `${cpu.toFixed(0)}%` : ''}</span>
      </span>
      <span role="cell" className="c-memory">
        <Spark
          values={samples.map(([, value]) => value)}
          most={memory * 1.6}
          label={`${bytes(memory)} of memory`}
        />
        <span className="num">{samples.length > 0 ? bytes(memory) : ''}</span>
      </span>
      <span role="cell" className="c-egress num">
        {one.egress && one.network.mode === 'fetch' ? (
          <span title={`${one.egress.allowed} allowed, ${one.egress.refused} refused`}>
            {one.egress.allowed}
            {one.egress.refused > 0 && <span className="bad-text"> ✕{one.egress.refused}</span>}
          </span>
        ) : (
          <span className="dim">{one.network.mode}</span>
        )}
      </span>
      <span role="cell" className="c-last-command mono">
        {one.last_command ? oneLine(one.last_command) : <span className="dim">nothing yet</span>}
      </span>
    </>
  )
})
