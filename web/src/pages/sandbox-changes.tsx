import { useState } from 'react'
import type { ConsoleSandbox } from '../../../src/client/console-types.ts'
import type { Applied, Change } from '../../../src/client/types.ts'
import { Confirm } from '../dialog.tsx'
import { DiffView } from '../diff-view.tsx'
import { bytes, oneLine } from '../format.ts'
import { useClient, useLive, useSnapshot } from '../live.ts'
import { useLoad } from '../load.ts'
import { attempt } from '../messages.tsx'
import { useParam } from '../route.ts'
import { Button, Empty, Panel } from '../ui.tsx'

const SIGNS = { added: '+', changed: '~', deleted: '−', mode: '#' } as const

/** What a reviewed sandbox would change: looked at one by one, then made real or dropped. */
export function Changes({ one, over }: { readonly one: ConsoleSandbox; readonly over: boolean }) {
  const client = useClient()
  const { who } = useLive()
  const { records } = useSnapshot()
  const [path, setPath] = useParam('path')
  const [ticked, setTicked] = useState<ReadonlySet<string>>(new Set())
  const [refused, setRefused] = useState<Applied['refused']>([])
  // Its own records say when there may be more.
  const last = records.findLast((record) => record.sandbox_id === one.id)?.seq ?? -1
  const { value, error, again } = useLoad(`changes ${one.id} ${over} ${last}`, async () =>
    (await client.get(one.id)).changes(),
  )
  const items = value?.items ?? []
  const chosen = items.filter((change) => ticked.has(change.path))
  const shown = items.find((change) => change.path === path) ?? items[0]
  const tick = (name: string): void => {
    const next = new Set(ticked)
    if (!next.delete(name)) next.add(name)
    setTicked(next)
  }
  const done = (answer: Applied | undefined): void => {
    setTicked(new Set())
    setRefused(answer?.refused ?? [])
    again()
  }
  if (value && items.length === 0)
    return (
      <Panel title="Changes">
        <Refused refused={refused} />
        <Empty title={over ? 'Nothing waits any more' : 'It has changed nothing yet'}>
          {over
            ? 'What it changed was applied or dropped, or it changed nothing; the record says which.'
            : 'What it writes to the host’s directories lands here first, and becomes real when somebody says so.'}
        </Empty>
      </Panel>
    )
  return (
    <div className="split changes">
      <Panel
        title={`${value?.total ?? '…'} ${value?.total === 1 ? 'change waits' : 'changes wait'}`}
        aside={
          who.operator && items.length > 0 ? (
            <Decide one={one} over={over} items={items} chosen={chosen} onDone={done} />
          ) : (
            <span className="dim">an operator applies or drops them</span>
          )
        }
      >
        {error && (
          <p role="alert" className="problem">
            ✕ {error}
          </p>
        )}
        <Refused refused={refused} />
        <ul className="change-list" aria-label="Changes">
          {items.map((change) => (
            <Row
              key={change.path}
              change={change}
              base={commonDir(items)}
              current={change.path === shown?.path}
              ticked={ticked.has(change.path)}
              onOpen={() => setPath(change.path)}
              onTick={who.operator ? () => tick(change.path) : undefined}
            />
          ))}
        </ul>
        {value && value.total > items.length && (
          <p className="dim quiet-line">
            The first {items.length} of {value.total} are shown; when these are decided the others follow.
          </p>
        )}
      </Panel>
      {shown && <Shown key={`${shown.path} ${shown.version}`} id={one.id} change={shown} />}
    </div>
  )
}

/** Where all of them lie, so that it is said once. */
function commonDir(items: readonly Change[]): string {
  const [first = '', ...others] = items.map(({ path }) => path.replace(/[^/]*$/, ''))
  let dir = first
  while (dir !== '' && !others.every((one) => one.startsWith(dir))) dir = dir.replace(/[^/]*\/$/, '')
  return dir
}

function Row(props: {
  readonly change: Change
  readonly base: string
  readonly current: boolean
  readonly ticked: boolean
  readonly onOpen: () => void
  readonly onTick: (() => void) | undefined
}) {
  const { change, onTick } = props
  const name = oneLine(change.path.slice(props.base.length) || change.path)
  return (
    <li>
      {onTick && (
        <input type="checkbox" checked={props.ticked} onChange={onTick} aria-label={`choose ${name}`} />
      )}
      <button
        type="button"
        aria-current={props.current ? 'true' : undefined}
        onClick={props.onOpen}
        title={oneLine(change.path)}
      >
        <span className={`change ${change.change}`}>
          <span aria-hidden="true">{SIGNS[change.change]}</span> {change.change}
        </span>
        <span className="name">
          {name}
          {change.kind === 'dir' ? '/' : ''}
        </span>
        <span className="dim num">{noteOf(change)}</span>
      </button>
    </li>
  )
}

function noteOf({ change, kind, mode, size }: Change): string {
  if (change === 'mode') return mode.toString(8)
  if (kind === 'file') return change === 'deleted' ? '' : bytes(size)
  return kind === 'dir' ? '' : kind
}

function Refused({ refused }: { readonly refused: Applied['refused'] }) {
  if (refused.length === 0) return null
  return (
    <div role="alert" className="problem refused">
      <p>
        ✕ {refused.length === 1 ? 'One was' : `${refused.length} were`} not applied and{' '}
        {refused.length === 1 ? 'waits' : 'wait'} as before:
      </p>
      <ul>
        {refused.slice(0, 8).map(({ path, why }) => (
          <li key={path}>
            <code>{oneLine(path)}</code> {oneLine(why)}
          </li>
        ))}
      </ul>
    </div>
  )
}

function Shown({ id, change }: { readonly id: string; readonly change: Change }) {
  const client = useClient()
  const { value, error } = useLoad(`diff ${id} ${change.path}`, async () =>
    (await client.get(id)).diff(change.path),
  )
  return (
    <Panel
      className="change-view"
      title={<span className="mono">{oneLine(change.path.split('/').at(-1) ?? change.path)}</span>}
      aside={<span className="dim mono">{oneLine(change.path)}</span>}
    >
      {error && (
        <p role="alert" className="problem">
          ✕ {error}
        </p>
      )}
      {value && typeof value.before === 'string' && typeof value.after === 'string' ? (
        <DiffView before={value.before} after={value.after} />
      ) : (
        value && <p>{inWords(change)}</p>
      )}
    </Panel>
  )
}

/** For what has no text to compare. */
function inWords({ change, kind, mode, size, target, binary }: Change): string {
  const what = { file: 'file', dir: 'directory', link: 'link', other: 'pipe, socket or device' }[kind]
  if (kind === 'other') return `A ${what}. It cannot be applied; it goes when the rest is dropped.`
  if (change === 'mode') return `The same ${what} with another mode: ${mode.toString(8)}.`
  if (change === 'deleted') return `The ${what} and all that is in it would be gone.`
  if (kind === 'link') return `A link to ${oneLine(target ?? '')}.`
  if (kind === 'dir') return `A new directory, mode ${mode.toString(8)}.`
  return `${bytes(size)}${binary ? ' that are no text' : ', too long to show here'}; look at it under Files.`
}

type Asking = 'apply' | 'drop'

function Decide(props: {
  readonly one: ConsoleSandbox
  readonly over: boolean
  readonly items: readonly Change[]
  readonly chosen: readonly Change[]
  readonly onDone: (answer: Applied | undefined) => void
}) {
  const { one, over, items, chosen, onDone } = props
  const client = useClient()
  const [asking, setAsking] = useState<Asking | undefined>(undefined)
  // What stood on the screen when the button was pressed is what is applied, and nothing that came since.
  const [meant, setMeant] = useState<readonly Change[]>([])
  const ask = (): void => {
    setMeant(chosen.length > 0 ? chosen : items)
    setAsking('apply')
  }
  const apply = async (): Promise<void> => {
    const seen = Object.fromEntries(meant.map(({ path, version }) => [path, version]))
    const answered = await attempt(async () => onDone(await (await client.get(one.id)).apply({ seen })))
    if (answered) setAsking(undefined)
  }
  const drop = async (): Promise<void> => {
    const dropped = await attempt(async () => {
      const sandbox = await client.get(one.id)
      if (!over) await sandbox.close()
      await sandbox.drop()
      onDone(undefined)
    }, 'Dropped; nothing of it became real')
    if (dropped) setAsking(undefined)
  }
  return (
    <span className="line">
      <Button tone="main" onClick={ask}>
        {chosen.length > 0 ? `Apply ${chosen.length}…` : 'Apply all…'}
      </Button>
      <Button tone="bad" onClick={() => setAsking('drop')}>
        {over ? 'Drop all…' : 'End and drop…'}
      </Button>
      {asking === 'apply' && (
        <Confirm
          title={`Make ${meant.length === 1 ? 'this change' : `these ${meant.length} changes`} real?`}
          yes="Apply"
          onClose={() => setAsking(undefined)}
          onYes={apply}
        >
          <Meant changes={meant} />
          <p className="dim">
            What the sandbox changes meanwhile is left out, and so is what somebody else changed on the host.
          </p>
        </Confirm>
      )}
      {asking === 'drop' && (
        <Confirm
          title={over ? 'Drop all of them?' : 'End this sandbox and drop its changes?'}
          yes={over ? 'Drop' : 'End and drop'}
          tone="bad"
          onClose={() => setAsking(undefined)}
          onYes={drop}
        >
          <p>
            {over ? '' : 'A running sandbox stands on its changes, so it ends first. '}
            {items.length === 1 ? 'The change is' : `The ${items.length} changes are`} forgotten; the host’s
            files stay as they are.
          </p>
        </Confirm>
      )}
    </span>
  )
}

const MOST_NAMED = 8

/** What is about to become real, by name. */
function Meant({ changes }: { readonly changes: readonly Change[] }) {
  const base = commonDir(changes)
  return (
    <>
      <p>
        {summary(changes)} below <code>{oneLine(base)}</code>, exactly as you see it now:
      </p>
      <ul className="meant mono">
        {changes.slice(0, MOST_NAMED).map((change) => (
          <li key={change.path} className={`change ${change.change}`}>
            {SIGNS[change.change]} {oneLine(change.path.slice(base.length))}
          </li>
        ))}
      </ul>
      {changes.length > MOST_NAMED && <p className="dim">and {changes.length - MOST_NAMED} more</p>}
    </>
  )
}

function summary(changes: readonly Change[]): string {
  const count = (kind: Change['change'], name: string): string => {
    const found = changes.filter(({ change }) => change === kind).length
    return found === 0 ? '' : `${found} ${name}`
  }
  return [
    count('added', 'added'),
    count('changed', 'changed'),
    count('deleted', 'deleted'),
    count('mode', 'with another mode'),
  ]
    .filter(Boolean)
    .join(', ')
}
