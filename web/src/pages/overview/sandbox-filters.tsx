import type { ConsoleSandbox } from '../../../../src/client/console-types.ts'
import { useParam } from '../../browser/route.ts'
import { type Option, SearchField, Select } from '../../components/fields.tsx'
import { hasEnded } from '../../data/sandbox-status.ts'
import { safeLine } from '../../format.ts'

export type SandboxFilter = {
  readonly search: string
  readonly state: string
  readonly backend: string
  readonly agent: string
}

/** The filter in the URL. */
export function useSandboxFilter(): SandboxFilter {
  const [search] = useParam('q')
  const [state] = useParam('state')
  const [backend] = useParam('backend')
  const [agent] = useParam('owner')
  return { search, state, backend, agent }
}

export function matches(sandbox: ConsoleSandbox, isWaiting: boolean, filter: SandboxFilter): boolean {
  if (!hasState(sandbox, isWaiting, filter.state)) return false
  if (filter.backend !== '' && sandbox.backend !== filter.backend) return false
  if (filter.agent !== '' && sandbox.agent_id !== filter.agent) return false
  if (filter.search === '') return true
  const { id, agent_id, last_command, backend, tenant, metadata } = sandbox
  const text = [id, agent_id, last_command, backend, tenant, ...Object.values(metadata)].join('\n')
  return text.toLowerCase().includes(filter.search.toLowerCase())
}

function hasState(sandbox: ConsoleSandbox, isWaiting: boolean, state: string): boolean {
  if (state === '') return true
  if (state === 'live' || state === 'ended') return hasEnded(sandbox) === (state === 'ended')
  if (state === 'waiting') return isWaiting
  return sandbox.state === state && !isWaiting
}

const STATES: readonly Option[] = [
  ['', 'All states'],
  ['live', 'Active'],
  ['waiting', 'Needs approval'],
  ['executing', 'Executing'],
  ['ready', 'Ready'],
  ['paused', 'Paused'],
  ['ended', 'Ended'],
]

export function SandboxFilters({ sandboxes }: { readonly sandboxes: readonly ConsoleSandbox[] }) {
  const [search, setSearch] = useParam('q')
  const [state, setState] = useParam('state')
  const [backend, setBackend] = useParam('backend')
  const [agent, setAgent] = useParam('owner')
  const backends = optionsOf(
    'All backends',
    sandboxes.map((sandbox) => sandbox.backend),
  )
  const agents = optionsOf(
    'All agents',
    sandboxes.map((sandbox) => sandbox.agent_id),
  )
  return (
    <search className="filters">
      <SearchField value={search} onChange={setSearch} />
      <Select label="State" value={state} onChange={setState} options={STATES} />
      <Select label="Backend" value={backend} onChange={setBackend} options={backends} />
      <Select label="Agent" value={agent} onChange={setAgent} options={agents} />
    </search>
  )
}

function optionsOf(all: string, values: readonly (string | null | undefined)[]): readonly Option[] {
  const distinct = [...new Set(values.filter((value) => typeof value === 'string' && value !== ''))].sort()
  return [['', all], ...(distinct as string[]).map((value): Option => [value, safeLine(value)])]
}
