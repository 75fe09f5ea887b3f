import type { Finding, SkillUsage, SkillView } from '../../../../src/client/console-types.ts'
import type { TrailRecord } from '../../../../src/client/types.ts'
import { Badge } from '../../components/badge.tsx'
import { RecordLink } from '../../components/link.tsx'
import { Panel } from '../../components/panel.tsx'
import { formatBytes, formatTime, plural, safeLine, safeText } from '../../format.ts'
import { SkillRuns } from './skill-runs.tsx'

const MAX_VIOLATIONS = 5

export function SkillPanel(props: {
  readonly skill: SkillView
  readonly usage: SkillUsage | undefined
  readonly runs: readonly TrailRecord[]
  readonly violations: readonly TrailRecord[]
}) {
  const { skill, violations } = props
  const { inspection } = skill
  return (
    <Panel
      className="skill"
      title={<span className="mono">{safeLine(skill.name)}</span>}
      aside={<SkillState skill={skill} />}
    >
      {inspection?.description && <p>{safeText(inspection.description)}</p>}
      <div className="columns three">
        <RequestedAccess access={inspection?.asks ?? {}} />
        <Findings inspection={inspection} />
        <SkillRuns name={skill.name} usage={props.usage} runs={props.runs} />
      </div>
      {violations.length > 0 && <Violations records={violations.slice(0, MAX_VIOLATIONS)} />}
      <p className="dim foot">
        <span className="mono">{skill.hash.slice(0, 16)}</span>
        {inspection && ` · ${plural(inspection.files, 'file')}, ${formatBytes(inspection.bytes)}`} ·{' '}
        <span className="mono" title={skill.dir}>
          {safeLine(skill.dir.split('/').slice(-3).join('/'))}
        </span>
      </p>
    </Panel>
  )
}

function SkillState({ skill }: { readonly skill: SkillView }) {
  const flags = skill.inspection?.redFlags.length ?? 0
  return (
    <span className="line">
      {flags > 0 && <span className="bad-text">✕ {plural(flags, 'red flag')}</span>}
      <Badge word={skill.state} />
      <span className="dim">
        {skill.version ?? ''} {skill.runtime ?? ''}
      </span>
    </span>
  )
}

function RequestedAccess({ access }: { readonly access: Readonly<Record<string, readonly string[]>> }) {
  const entries = Object.entries(access)
  return (
    <div>
      <h3>Requested access</h3>
      {entries.length === 0 && <p className="dim">None</p>}
      <dl className="pairs">
        {entries.map(([kind, values]) => (
          <div key={kind}>
            <dt>{kind}</dt>
            <dd className="mono wrap">{values.map(safeLine).join(' ')}</dd>
          </div>
        ))}
      </dl>
    </div>
  )
}

function Findings({ inspection }: { readonly inspection: SkillView['inspection'] }) {
  const findings: readonly Finding[] = [...(inspection?.redFlags ?? []), ...(inspection?.findings ?? [])]
  const undeclared = inspection?.undeclared ?? []
  return (
    <div>
      <h3>Findings</h3>
      {findings.length === 0 && <p className="dim">None</p>}
      <ul className="findings">
        {findings.map(({ severity, what }) => (
          <li key={severity + what}>
            <Badge word={severity} /> <span>{safeText(what)}</span>
          </li>
        ))}
      </ul>
      {undeclared.length > 0 && (
        <p className="dim">
          Reads undeclared environment variables: <code>{undeclared.join(' ')}</code>
        </p>
      )}
    </div>
  )
}

function Violations({ records }: { readonly records: readonly TrailRecord[] }) {
  return (
    <ol className="blocked-list">
      {records.map((record) => (
        <li key={record.seq}>
          <time dateTime={record.time}>{formatTime(record.time)}</time>
          <Badge word="block" />
          <span className="details">{safeLine(String(record.details ?? ''))}</span>
          <RecordLink seq={record.seq} />
        </li>
      ))}
    </ol>
  )
}
