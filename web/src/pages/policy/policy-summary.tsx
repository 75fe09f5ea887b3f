import type { ReactNode } from 'react'
import type { PolicyDescription } from '../../../../src/client/console-types.ts'
import { Badge } from '../../components/badge.tsx'
import { Panel } from '../../components/panel.tsx'
import { BuiltInRules, YourRules } from './rule-tables.tsx'

/** The policy in words, and its rules. */
export function PolicySummary({ description }: { readonly description: PolicyDescription }) {
  return (
    <>
      <div className="columns">
        <CommandSettings description={description} />
        <FileSettings description={description} />
        <NetworkSettings network={description.network} />
      </div>
      <YourRules rules={description.rules} />
      <BuiltInRules themes={description.built_in} />
    </>
  )
}

const ACTION_MEANING = {
  deny: 'are rejected',
  ask: 'need an approval',
  sandbox: 'run in a sandbox',
  allow: 'may run directly on the host',
} as const

/** A sentence with a list of names behind it. */
const Names = ({ label, names }: { readonly label: string; readonly names: readonly string[] }) => (
  <p>
    {label}: <code className="wrap">{names.join(' ')}</code>
  </p>
)

/** Any, none, or the listed names: three different sentences. */
function Restriction(props: {
  readonly names: readonly string[] | null
  readonly any: ReactNode
  readonly none: ReactNode
  readonly label: string
}) {
  const { names } = props
  if (names === null) return <p>{props.any}</p>
  return names.length === 0 ? <p>{props.none}</p> : <Names label={props.label} names={names} />
}

type Props = { readonly description: PolicyDescription }

function CommandSettings({ description }: Props) {
  const { default_action, programs, always_sandbox, never_sandbox, allow_interactive } = description
  return (
    <Panel title="Commands">
      <p>
        Commands that match no rule {ACTION_MEANING[default_action]}. <Badge word={default_action} />
      </p>
      <Restriction
        names={programs}
        any="All programs are allowed."
        none="No programs are allowed."
        label="Allowed programs"
      />
      {always_sandbox.length > 0 && <Names label="Always in a sandbox" names={always_sandbox} />}
      {never_sandbox.length > 0 && (
        <Names label="On the host, unless a rule is stricter" names={never_sandbox} />
      )}
      <p>Interactive terminals are {allow_interactive ? 'allowed' : 'disabled'}.</p>
    </Panel>
  )
}

const LIMIT_UNITS: Readonly<Record<string, string>> = {
  max_cpus: 'CPUs',
  max_memory_mb: 'MB of memory',
  max_disk_mb: 'MB of disk',
  max_pids: 'processes',
}

function FileSettings({ description }: Props) {
  const { limits, allowed_host_prefixes, blocked_host_patterns } = description
  const set = Object.entries(limits).filter(([, value]) => value !== null)
  return (
    <Panel title="Files and limits">
      <Restriction
        names={allowed_host_prefixes}
        any="Any host directory can be mounted, except the paths below."
        none="No host directory can be mounted."
        label="Host directories that can be mounted"
      />
      <Names label="Never mounted" names={blocked_host_patterns} />
      <p>
        {set.length === 0
          ? 'No limits per sandbox.'
          : `At most ${set.map(([name, value]) => `${value} ${LIMIT_UNITS[name] ?? name}`).join(', ')} per sandbox.`}
      </p>
    </Panel>
  )
}

function NetworkSettings({ network }: { readonly network: PolicyDescription['network'] }) {
  return (
    <Panel title="Network">
      <Names label="Allowed network modes" names={network.modes} />
      <Restriction
        names={network.allow_hosts}
        any="In fetch mode, a sandbox can be allowed any public host."
        none="In fetch mode, no host can be allowed."
        label="Hosts that can be allowed"
      />
      {network.allow_private.length > 0 && (
        <Names label="Allowed private addresses" names={network.allow_private} />
      )}
      <p>Cloud metadata addresses are always blocked.</p>
    </Panel>
  )
}
