import { memo, useMemo } from 'react'
import type { ConsoleSandbox, Sample } from '../../../src/client/console-types.ts'
import type { Approval } from '../../../src/client/types.ts'
import { Choice, Field } from '../fields.tsx'
import { bytes, oneLine, shortId, span } from '../format.ts'
import { useLive, useSnapshot } from '../live.ts'
import { useNow } from '../load.ts'
import { useParam } from '../route.ts'
import { Spark } from '../spark.tsx'
import { Badge, Empty, Link, Panel } from '../ui.tsx'
import { useStateWord, useWaiting } from '../waiting.ts'
import { WindowList } from '../window-list.tsx'

const ENDED = ['destroyed', 'failed']

/** Every sandbox, searched and filtered by what stands in the address. */
export function Sandboxes() {
  const live = useLive()
  const { sandboxes, ended } = useSnapshot()
  const now = useNow()
  const [search, setSearch] = useParam('q')
  const [state, setState] = useParam('state')
  const [backend, setBackend] = useParam('backend')
  const [owner, setOwner] = useParam('owner')
  const waiting = useWaiting()
  const wordOf = useStateWord()
  const everyone = useMemo(() => [...sandboxes, ...ended], [sandboxes, ended])
  const shown = useMemo(
    () => everyone.filter((one) => fits(one, waiting.has(one.id), { search, state, backend, owner })),
    [everyone, waiting, search, state, backend, owner],
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
              ['waiting', 'waiting for you'],
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
          return (
            <Row
              one={one}
              word={wordOf(one)}
              asked={waiting.get(one.id)}
              samples={live.samplesOf(one.id)}
              age={span(Math.max(0, age))}
            />
          )
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

function fits(one: ConsoleSandbox, waits: boolean, { search, state, backend, owner }: Filters): boolean {
  if (!isIn(one, waits, state)) return false
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

function isIn(one: ConsoleSandbox, waits: boolean, state: string): boolean {
  const over = ENDED.includes(one.state)
  if (state === '') return true
  if (state === 'live' || state === 'ended') return over === (state === 'ended')
  if (state === 'waiting') return waits
  return one.state === state && !waits
}

const Row = memo(function Row(props: {
  readonly one: ConsoleSandbox
  readonly word: string
  /** What it waits for an answer to. */
  readonly asked: Approval | undefined
  readonly samples: readonly Sample[]
  readonly age: string
}) {
  const { one, samples, asked } = props
  const [cpu, memory] = samples.at(-1) ?? [0, 0]
  const name = one.metadata.name
  return (
    <>
      <span role="cell" className="c-state">
        {asked ? (
          <Link to={`/approvals/${asked.id}`}>
            <Badge word={props.word} />
          </Link>
        ) : (
          <Badge word={props.word} {...(one.reason ? { title: one.reason } : {})} />
        )}
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
        {asked || one.last_command ? (
          oneLine(asked?.command ?? (one.last_command as string))
        ) : (
          <span className="dim">nothing yet</span>
        )}
      </span>
    </>
  )
})
