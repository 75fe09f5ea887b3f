import type { BackendView, SnapshotInfo, TemplateInfo } from '../../../../src/client/types.ts'
import { type Option, Select, TextField } from '../../components/fields.tsx'
import { ErrorMessage } from '../../components/page.tsx'
import { Panel } from '../../components/panel.tsx'
import { useClient, useIdentity } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { isIsolating, safeLine } from '../../format.ts'
import type { SandboxForm } from './request.ts'

/** The fields of the form that creates a sandbox, by subject. */

type FieldsProps = {
  readonly form: SandboxForm
  readonly onChange: (change: Partial<SandboxForm>) => void
}

export function NameFields({
  form,
  onChange,
  badLabels,
}: FieldsProps & { readonly badLabels: readonly string[] }) {
  return (
    <Panel title="Identity">
      <div className="field-grid">
        <TextField
          label="Name"
          value={form.name}
          onChange={(name) => onChange({ name })}
          placeholder="e.g. api-tests"
          autoFocus
        />
        <TextField
          label="Agent"
          value={form.agent}
          onChange={(agent) => onChange({ agent })}
          placeholder="e.g. claude-code"
          hint="Recorded in the audit log."
        />
        <TextField
          label="Labels"
          value={form.labels}
          onChange={(labels) => onChange({ labels })}
          placeholder="team=search tier=test"
          hint="KEY=VALUE, separated by spaces."
        />
      </div>
      {badLabels.length > 0 && <ErrorMessage text={`Not KEY=VALUE: ${badLabels.map(safeLine).join(', ')}`} />}
    </Panel>
  )
}

export function EnvironmentFields({ form, onChange }: FieldsProps) {
  const client = useClient()
  const { operator } = useIdentity()
  const { value: backends } = useLoad('backends', () => client.backends())
  const { value: templates } = useLoad('templates', () => client.templates())
  const { value: snapshots } = useLoad('snapshots', () => client.snapshots())
  return (
    <Panel title="Environment">
      <div className="field-grid">
        <Select
          label="Template"
          showLabel
          value={form.template}
          onChange={(template) => onChange({ template })}
          options={templateOptions(templates?.items ?? [], snapshots?.items ?? [], form.template)}
        />
        <Select
          label="Backend"
          showLabel
          value={form.backend}
          onChange={(backend) => onChange({ backend })}
          options={backendOptions(backends?.backends ?? [], operator)}
        />
        {operator && (
          <TextField
            label="Workspace"
            mono
            value={form.workspace}
            onChange={(workspace) => onChange({ workspace })}
            placeholder="/path/on/the/server"
            hint="A writable directory of the server’s host."
          />
        )}
      </div>
      {form.backend !== '' && !isIsolating(form.backend) && (
        <p className="warn-text" role="status">
          ! The backend {form.backend} does not isolate commands from the host.
        </p>
      )}
    </Panel>
  )
}

function templateOptions(
  templates: readonly TemplateInfo[],
  snapshots: readonly SnapshotInfo[],
  chosen: string,
): readonly Option[] {
  const built = templates.map(({ id, name }): Option => [name ?? id, safeLine(name ?? id), 'Templates'])
  const taken = snapshots.map(({ id, name }): Option => [id, safeLine(name ?? id), 'Snapshots'])
  const known = [...built, ...taken]
  // The one from the link, until the lists have loaded.
  const linked: Option[] =
    chosen === '' || known.some(([value]) => value === chosen) ? [] : [[chosen, safeLine(chosen)]]
  return [['', 'None: the host’s programs, read-only'], ...linked, ...known]
}

/** A tenant gets backends without isolation only by a grant of the operator, which the command line can use. */
function backendOptions(backends: readonly BackendView[], operator: boolean): readonly Option[] {
  const optionOf = ({ name, level, emulated }: BackendView): Option => [
    name,
    `${name} (${level}${emulated ? ', emulated' : ''})`,
    isIsolating(name) ? 'Isolating' : 'No isolation',
  ]
  const usable = backends.filter(({ available }) => available)
  const walls = usable.filter(({ name }) => isIsolating(name))
  const others = usable.filter(({ name }) => operator && !isIsolating(name))
  return [['', 'Automatic'], ...[...walls, ...others].map(optionOf)]
}

const NETWORKS: readonly Option<SandboxForm['network']>[] = [
  ['', 'Default of the server'],
  ['offline', 'offline: no network'],
  ['loopback', 'loopback: only inside the sandbox'],
  ['fetch', 'fetch: allowed hosts, through the proxy'],
  ['full', 'full: the host’s network'],
]

export function NetworkFields({ form, onChange }: FieldsProps) {
  const { operator } = useIdentity()
  const hasHosts = form.network === '' || form.network === 'fetch'
  return (
    <Panel title="Network">
      <div className="field-grid">
        <Select
          label="Mode"
          showLabel
          value={form.network}
          onChange={(network) => onChange({ network })}
          options={NETWORKS.filter(([mode]) => operator || mode !== 'full')}
        />
        {hasHosts && (
          <TextField
            label="Allowed hosts"
            mono
            value={form.hosts}
            onChange={(hosts) => onChange({ hosts })}
            placeholder="pypi.org *.github.com"
            hint="Separated by spaces. The policy still applies."
          />
        )}
      </div>
    </Panel>
  )
}

type LimitName = 'cpus' | 'memoryMb' | 'diskMb' | 'pids' | 'lifetimeMinutes' | 'idleMinutes'
/** Zero minutes means no end; every other limit starts above zero. */
const LIMITS: readonly (readonly [name: LimitName, label: string, min: number, step: number | 'any'])[] = [
  ['cpus', 'CPUs', 0.1, 'any'],
  ['memoryMb', 'Memory (MB)', 1, 1],
  ['diskMb', 'Disk (MB)', 1, 1],
  ['pids', 'Processes', 1, 1],
  ['lifetimeMinutes', 'Lifetime (minutes)', 0, 'any'],
  ['idleMinutes', 'Idle time (minutes)', 0, 'any'],
]

export function LimitFields({ form, onChange }: FieldsProps) {
  return (
    <Panel title="Limits">
      <div className="field-grid narrow-fields">
        {LIMITS.map(([name, label, min, step]) => (
          <TextField
            key={name}
            label={label}
            type="number"
            min={min}
            step={step}
            value={form[name]}
            onChange={(value) => onChange({ [name]: value })}
            placeholder="default"
          />
        ))}
      </div>
      <p className="hint">
        The sandbox ends after its lifetime, or after the idle time without a command. 0 minutes: unlimited.
      </p>
    </Panel>
  )
}
