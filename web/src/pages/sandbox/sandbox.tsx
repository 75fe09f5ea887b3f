import { lazy, Suspense } from 'react'
import type { ConsoleSandbox } from '../../../../src/client/console-types.ts'
import { useShortcuts } from '../../browser/keyboard.ts'
import { navigate } from '../../browser/route.ts'
import { EmptyState } from '../../components/empty-state.tsx'
import { Loading, Page } from '../../components/page.tsx'
import { Panel } from '../../components/panel.tsx'
import { Tabs } from '../../components/tabs.tsx'
import { useClient, useIdentity, useLiveData } from '../../data/live-context.ts'
import { hasEnded } from '../../data/sandbox-status.ts'
import { useLoad } from '../../data/use-load.ts'
import { safeLine, shortId } from '../../format.ts'
import { SandboxRecords } from '../audit-log/sandbox-records.tsx'
import { Commands } from './commands/commands.tsx'
import { SandboxActions } from './sandbox-actions.tsx'
import { SandboxFacts } from './sandbox-facts.tsx'

const Terminal = lazy(() => import('./terminal.tsx').then(({ Terminal }) => ({ default: Terminal })))
const Files = lazy(() => import('./files/files.tsx').then(({ Files }) => ({ default: Files })))
const Network = lazy(() => import('./network/network.tsx').then(({ Network }) => ({ default: Network })))
const Ports = lazy(() => import('./ports.tsx').then(({ Ports }) => ({ default: Ports })))
const Changes = lazy(() => import('./changes/changes.tsx').then(({ Changes }) => ({ default: Changes })))
const SandboxTimeline = lazy(() =>
  import('./timeline/timeline.tsx').then(({ SandboxTimeline }) => ({ default: SandboxTimeline })),
)
const Isolation = lazy(() =>
  import('./isolation/isolation.tsx').then(({ Isolation }) => ({ default: Isolation })),
)

type Tab = readonly [path: string, name: string]
const TABS: readonly Tab[] = [
  ['', 'Commands'],
  ['terminal', 'Terminal'],
  ['files', 'Files'],
  ['ports', 'Ports'],
  ['network', 'Network'],
  ['wall', 'Isolation'],
  ['timeline', 'Timeline'],
  ['record', 'Audit log'],
]

/** A sandbox in review mode also has Changes, beside Files. */
const tabsOf = (sandbox: ConsoleSandbox | undefined): readonly Tab[] =>
  sandbox?.review ? [...TABS.slice(0, 3), ['changes', 'Changes'], ...TABS.slice(3)] : TABS

/** One sandbox. */
export function Sandbox({ id, tab }: { readonly id: string; readonly tab: string }) {
  const { sandbox, error } = useSandbox(id)
  const tabs = tabsOf(sandbox)
  useTabShortcuts(id, tabs)
  const title = sandbox?.metadata.name ? safeLine(sandbox.metadata.name) : shortId(id)
  if (!sandbox) return <Page title={title}>{error ? <NotFound error={error} /> : <Loading />}</Page>
  return (
    <Page title={title} aside={!hasEnded(sandbox) && <SandboxActions sandbox={sandbox} />}>
      <SandboxFacts sandbox={sandbox} />
      <Tabs label="Sandbox sections" base={`/sandboxes/${id}`} current={tab} tabs={tabs} />
      <div className="tab-body">
        <Suspense fallback={<Loading />}>
          <TabContent sandbox={sandbox} tab={tab} />
        </Suspense>
      </div>
    </Page>
  )
}

/** From the live data, else fetched. */
function useSandbox(id: string): {
  readonly sandbox: ConsoleSandbox | undefined
  readonly error: string | undefined
} {
  const { sandboxes, ended } = useLiveData()
  const client = useClient()
  const live = sandboxes.find((one) => one.id === id) ?? ended.find((one) => one.id === id)
  const fetched = useLoad(`sandbox ${id}`, async () => (await client.get(id)).info as ConsoleSandbox)
  return { sandbox: live ?? fetched.value, error: fetched.error }
}

function useTabShortcuts(id: string, tabs: readonly Tab[]): void {
  useShortcuts(
    tabs.map(([path, name], index) => ({
      keys: String(index + 1),
      label: `Open ${name}`,
      run: () => navigate(`/sandboxes/${id}${path === '' ? '' : `/${path}`}`),
    })),
  )
}

const NotFound = ({ error }: { readonly error: string }) => (
  <EmptyState title="Sandbox not found" command="ringfence sandbox ls">
    {error}
  </EmptyState>
)

function TabContent({ sandbox, tab }: { readonly sandbox: ConsoleSandbox; readonly tab: string }) {
  const { allow_interactive } = useIdentity()
  const { id } = sandbox
  const isEnded = hasEnded(sandbox)
  if (tab === '') return <Commands id={id} isEnded={isEnded} />
  if (tab === 'record') return <SandboxRecords id={id} />
  if (tab === 'timeline') return <SandboxTimeline sandbox={sandbox} />
  if (tab === 'wall') return <Isolation id={id} />
  if (tab === 'changes' && sandbox.review) return <Changes id={id} isEnded={isEnded} />
  if (tab === 'terminal' && !allow_interactive) return <TerminalsDisabled />
  // An open terminal stays when its sandbox ends, so that its output can still be read.
  if (tab === 'terminal') return <Terminal id={id} isEnded={isEnded} />
  if (isEnded) return <Ended sandbox={sandbox} />
  if (tab === 'files') return <Files id={id} />
  if (tab === 'ports') return <Ports id={id} />
  if (tab === 'network') return <Network sandbox={sandbox} />
  return <EmptyState title="No such section">Select one above.</EmptyState>
}

const TerminalsDisabled = () => (
  <Panel title="Terminal">
    <EmptyState title="Terminals are disabled on this server">
      An operator can enable them in the policy: <code>[policy] allow_interactive = true</code>
    </EmptyState>
  </Panel>
)

function Ended({ sandbox: { state, reason, review } }: { readonly sandbox: ConsoleSandbox }) {
  return (
    <Panel title="Sandbox ended">
      <EmptyState title={`State: ${state}${reason ? ` (${reason})` : ''}`}>
        Its commands and audit log are still available. Its files and connections are gone
        {review ? '; its pending changes are under Changes' : ''}.
      </EmptyState>
    </Panel>
  )
}
