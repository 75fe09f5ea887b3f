import { lazy, Suspense, useState } from 'react'
import type { ConsoleSandbox } from '../../../src/client/console-types.ts'
import { Confirm } from '../dialog.tsx'
import { bytes, moment, oneLine, shortId, span } from '../format.ts'
import { useShortcuts } from '../keyboard.ts'
import { useClient, useLive, useSnapshot } from '../live.ts'
import { useLoad, useNow } from '../load.ts'
import { attempt } from '../messages.tsx'
import { navigate } from '../route.ts'
import { Spark } from '../spark.tsx'
import { Badge, Button, Code, Empty, Page, Panel, Tabs } from '../ui.tsx'
import { useStateWord } from '../waiting.ts'
import { Execs } from './sandbox-execs.tsx'
import { SandboxRecords } from './trail.tsx'

const Terminal = lazy(() => import('./sandbox-terminal.tsx').then(({ Terminal }) => ({ default: Terminal })))
const Files = lazy(() => import('./sandbox-files.tsx').then(({ Files }) => ({ default: Files })))
const Network = lazy(() => import('./sandbox-network.tsx').then(({ Network }) => ({ default: Network })))
const Ports = lazy(() => import('./sandbox-ports.tsx').then(({ Ports }) => ({ default: Ports })))
const Changes = lazy(() => import('./sandbox-changes.tsx').then(({ Changes }) => ({ default: Changes })))
const WallTab = lazy(() => import('./sandbox-wall.tsx').then(({ WallTab }) => ({ default: WallTab })))

const TABS = [
  ['', 'Commands'],
  ['terminal', 'Terminal'],
  ['files', 'Files'],
  ['ports', 'Ports'],
  ['network', 'Network'],
  ['wall', 'Wall'],
  ['record', 'Record'],
] as const

/** Where changes wait for a person, they stand beside the files. */
const tabsOf = (one: ConsoleSandbox | undefined): readonly (readonly [path: string, name: string])[] =>
  one?.review ? [...TABS.slice(0, 3), ['changes', 'Changes'], ...TABS.slice(3)] : TABS

/** One sandbox: everything that goes on in it and around it. */
export function Sandbox({ id, tab }: { readonly id: string; readonly tab: string }) {
  const { sandboxes, ended } = useSnapshot()
  const client = useClient()
  const known = sandboxes.find((one) => one.id === id) ?? ended.find((one) => one.id === id)
  const fetched = useLoad(`sandbox ${id}`, async () => (await client.get(id)).info as ConsoleSandbox)
  const one = known ?? fetched.value
  useShortcuts(
    tabsOf(one).map(([path, name], index) => ({
      keys: String(index + 1),
      does: `${name} of this sandbox`,
      run: () => navigate(`/sandboxes/${id}${path === '' ? '' : `/${path}`}`),
    })),
  )
  const title = one?.metadata.name ? oneLine(one.metadata.name) : shortId(id)
  if (!one)
    return (
      <Page title={title}>
        {fetched.error ? (
          <Empty title="This sandbox is not known here" command="ringfence sandbox ls">
            {fetched.error}
          </Empty>
        ) : (
          <p className="dim">…</p>
        )}
      </Page>
    )
  const over = one.state === 'destroyed' || one.state === 'failed'
  return (
    <Page title={title} aside={<Actions one={one} over={over} />}>
      <Facts one={one} />
      <Tabs label="Parts of the sandbox" base={`/sandboxes/${id}`} current={tab} tabs={tabsOf(one)} />
      <div className="tab-body">
        <Suspense fallback={<p className="dim">…</p>}>
          <TabBody one={one} tab={tab} over={over} />
        </Suspense>
      </div>
    </Page>
  )
}

function TabBody({
  one,
  tab,
  over,
}: {
  readonly one: ConsoleSandbox
  readonly tab: string
  readonly over: boolean
}) {
  const { who } = useLive()
  if (tab === '') return <Execs id={one.id} over={over} />
  if (tab === 'record') return <SandboxRecords id={one.id} />
  if (tab === 'wall') return <WallTab id={one.id} />
  if (tab === 'changes' && one.review) return <Changes one={one} over={over} />
  if (tab === 'terminal' && !who.allow_interactive)
    return (
      <Panel title="Terminal">
        <Empty title="Terminals are switched off on this server">
          An operator can switch them on in the policy: <code>[policy] allow_interactive = true</code>
        </Empty>
      </Panel>
    )
  // An open terminal stays where it is when its sandbox ends: what it said is still worth reading.
  if (tab === 'terminal') return <Terminal id={one.id} over={over} />
  if (over)
    return (
      <Panel title="It has ended">
        <Empty title={`This sandbox is ${one.state}${one.reason ? `: ${one.reason}` : ''}`}>
          Its commands and its record are still here; its files and connections went with it
          {one.review ? ', but what it changed waits under Changes' : ''}.
        </Empty>
      </Panel>
    )
  if (tab === 'files') return <Files id={one.id} />
  if (tab === 'ports') return <Ports id={one.id} />
  if (tab === 'network') return <Network one={one} />
  return <Empty title="There is no such part">Choose one above.</Empty>
}

function Facts({ one }: { readonly one: ConsoleSandbox }) {
  const live = useLive()
  const now = useNow()
  const word = useStateWord()(one)
  const samples = live.samplesOf(one.id)
  const [cpu, memory] = samples.at(-1) ?? [0, 0]
  const age = (one.ended_at ? Date.parse(one.ended_at) : now) - Date.parse(one.created_at)
  const left = one.expires_at ? Date.parse(one.expires_at) - now : undefined
  return (
    <dl className="facts">
      <div>
        <dt>state</dt>
        <dd>
          <Badge word={word} />
          {one.reason && <span className="dim"> {oneLine(one.reason)}</span>}
        </dd>
      </div>
      <div>
        <dt>agent</dt>
        <dd>{one.agent_id ? oneLine(one.agent_id) : '–'}</dd>
      </div>
      <div>
        <dt>backend</dt>
        <dd>
          {one.backend ?? '–'} <span className="dim">{one.level}</span>
        </dd>
      </div>
      <div>
        <dt>network</dt>
        <dd>{one.network.mode}</dd>
      </div>
      <div>
        <dt>age</dt>
        <dd className="num" title={moment(one.created_at)}>
          {span(Math.max(0, age))}
          {left !== undefined && left > 0 && <span className="dim"> · {span(left)} left</span>}
        </dd>
      </div>
      {samples.length > 0 && (
        <>
          <div>
            <dt>CPU</dt>
            <dd className="num">
              <Spark
                values={samples.map(([value]) => value)}
                most={100}
                label={`${cpu} percent of a processor`}
              />{' '}
              {cpu.toFixed(0)}%
            </dd>
          </div>
          <div>
            <dt>memory</dt>
            <dd className="num">
              <Spark values={samples.map(([, value]) => value)} label={`${bytes(memory)} of memory`} />{' '}
              {bytes(memory)}
            </dd>
          </div>
        </>
      )}
      <div className="fact-id">
        <dt>id</dt>
        <dd className="mono">{one.id}</dd>
      </div>
    </dl>
  )
}

function Actions({ one, over }: { readonly one: ConsoleSandbox; readonly over: boolean }) {
  const client = useClient()
  const { who } = useLive()
  const [asking, setAsking] = useState(false)
  const [copied, setCopied] = useState<string | undefined>(undefined)
  const mayChange = !over && (who.operator || who.scopes.includes('create'))
  const act = (work: (sandbox: Awaited<ReturnType<typeof client.get>>) => Promise<unknown>, done: string) =>
    void attempt(async () => work(await client.get(one.id)), done)
  if (over) return null
  return (
    <div className="actions">
      {one.state === 'paused' ? (
        <Button disabled={!mayChange} onClick={() => act((sandbox) => sandbox.resume(), 'It goes on')}>
          Resume
        </Button>
      ) : (
        <Button
          disabled={!mayChange}
          onClick={() => act((sandbox) => sandbox.pause(), 'It stands still; its deadlines too')}
        >
          Pause
        </Button>
      )}
      <Button
        disabled={!mayChange}
        onClick={() =>
          act(async (sandbox) => setCopied(idIn(await sandbox.snapshot())), 'A snapshot is kept')
        }
      >
        Snapshot
      </Button>
      <Button
        disabled={!mayChange}
        onClick={() =>
          act(async (sandbox) => {
            const id = idIn(await sandbox.fork())
            if (id !== '') navigate(`/sandboxes/${id}`)
          }, 'This is the fork; it goes on by itself')
        }
      >
        Fork
      </Button>
      <Button disabled={!mayChange} tone="bad" onClick={() => setAsking(true)}>
        Destroy…
      </Button>
      {copied && <Code text={copied} />}
      {asking && (
        <Confirm
          title="Destroy this sandbox?"
          yes="Destroy"
          tone="bad"
          onClose={() => setAsking(false)}
          onYes={async () => {
            if (
              await attempt(
                async () => (await client.get(one.id)).close(),
                one.review ? 'It is gone; its changes wait' : 'It is gone, and nothing of it is left',
              )
            )
              setAsking(false)
          }}
        >
          <p>
            Everything in <code>{one.id}</code> ends now: its commands, its files, its connections. Its record
            stays in the trail{one.review ? ', and its changes wait for your word' : ''}.
          </p>
        </Confirm>
      )}
    </div>
  )
}

const idIn = (value: unknown): string => String((value as { id?: string } | undefined)?.id ?? '')
