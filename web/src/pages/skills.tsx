import type { Finding, SkillUsage, SkillView } from '../../../src/client/console-types.ts'
import type { TrailRecord } from '../../../src/client/types.ts'
import { Field } from '../fields.tsx'
import { bytes, clock, count, millis, oneLine, plain } from '../format.ts'
import { useClient, useSnapshot } from '../live.ts'
import { useLoad } from '../load.ts'
import { useParam } from '../route.ts'
import { Bars } from '../spark.tsx'
import { Badge, Empty, Link, Page, Panel } from '../ui.tsx'

/** Packaged code: what it asks for, what it did, what it used. */
export function Skills() {
  const client = useClient()
  const { records } = useSnapshot()
  const [search, setSearch] = useParam('q')
  const last = records.findLast(({ event }) => event === 'SkillRun')?.seq ?? -1
  const skills = useLoad('skills', () => client.skills())
  const usage = useLoad(`usage ${last}`, () => client.skillUsage())
  const runs = useLoad(
    `runs ${last}`,
    async () => (await client.trail({ event: 'SkillRun', order: 'desc', limit: 500 })).items,
  )
  const stops = useLoad(
    `stops ${last}`,
    async () => (await client.trail({ event: 'SandboxViolation', order: 'desc', limit: 500 })).items,
  )
  const shown = (skills.value ?? []).filter(({ name }) => name.includes(search))
  return (
    <Page
      title="Skills"
      aside={
        <Field
          label="Search"
          hideLabel
          type="search"
          value={search}
          onChange={setSearch}
          placeholder="Search  /"
        />
      }
    >
      {skills.error && (
        <p role="alert" className="problem">
          ✕ {skills.error}
        </p>
      )}
      {skills.value && shown.length === 0 && (
        <Panel title="No skill here yet">
          <Empty
            title="A skill appears once somebody has looked at it"
            command="ringfence skill inspect examples/skills/word-count"
          >
            Inspecting shows what it asks for and remembers its hash; if it changes, it does not run until it
            is inspected again:
          </Empty>
        </Panel>
      )}
      {shown.map((skill) => (
        <Skill
          key={skill.name}
          skill={skill}
          usage={usage.value?.find((one) => one.skill === skill.name)}
          runs={(runs.value ?? []).filter((one) => one.skill === skill.name && one.state !== 'started')}
          stops={(stops.value ?? []).filter((one) => one.skill === skill.name)}
        />
      ))}
    </Page>
  )
}

type Props = {
  readonly skill: SkillView
  readonly usage: SkillUsage | undefined
  readonly runs: readonly TrailRecord[]
  readonly stops: readonly TrailRecord[]
}

function Skill({ skill, usage, runs, stops }: Props) {
  const { inspection } = skill
  const latest = [...runs].slice(0, 60).reverse()
  const flags = inspection?.redFlags ?? []
  return (
    <Panel
      className="skill"
      title={<span className="mono">{oneLine(skill.name)}</span>}
      aside={
        <span className="line">
          {flags.length > 0 && (
            <span className="bad-text">
              ✕ {flags.length} red {flags.length === 1 ? 'flag' : 'flags'}
            </span>
          )}
          <Badge word={skill.state} />
          <span className="dim">
            {skill.version ?? ''} {skill.runtime ?? ''}
          </span>
        </span>
      }
    >
      {inspection?.description && <p>{plain(inspection.description)}</p>}
      <div className="columns three">
        <div>
          <h3>Asks for</h3>
          <dl className="pairs">
            {Object.entries(inspection?.asks ?? {}).map(([kind, values]) => (
              <div key={kind}>
                <dt>{kind}</dt>
                <dd className="mono wrap">{values.map(oneLine).join(' ')}</dd>
              </div>
            ))}
          </dl>
          {Object.keys(inspection?.asks ?? {}).length === 0 && <p className="dim">nothing at all</p>}
        </div>
        <div>
          <h3>Red flags and findings</h3>
          <Findings list={[...flags, ...(inspection?.findings ?? [])]} />
          {(inspection?.undeclared.length ?? 0) > 0 && (
            <p className="dim">
              reads undeclared variables: <code>{inspection?.undeclared.join(' ')}</code>
            </p>
          )}
        </div>
        <div>
          <h3>Runs</h3>
          {usage ? (
            <p className="num">
              {count(usage.runs)} runs · {count(usage.fuel)} fuel · {millis(usage.duration_ms)}
              {usage.violations > 0 && <span className="bad-text"> · ✕ {usage.violations} stopped</span>}
            </p>
          ) : (
            <Empty title="It has not run yet" command={`ringfence skill run ${skill.name}`} />
          )}
          {latest.length > 0 && (
            <div className="charts">
              <figure>
                <figcaption>fuel</figcaption>
                <Bars
                  values={latest.map((one) => Number(one.fuel ?? 0))}
                  bad={latest.map(({ outcome }) => outcome !== 'ok')}
                  label={`fuel of the last ${latest.length} runs`}
                />
              </figure>
              <figure>
                <figcaption>time</figcaption>
                <Bars
                  values={latest.map((one) => Number(one.duration_ms ?? 0))}
                  bad={latest.map(({ outcome }) => outcome !== 'ok')}
                  label={`time of the last ${latest.length} runs`}
                />
              </figure>
            </div>
          )}
        </div>
      </div>
      {stops.length > 0 && (
        <ol className="stops">
          {stops.slice(0, 5).map((one) => (
            <li key={one.seq}>
              <time dateTime={one.time}>{clock(one.time)}</time>
              <Badge word="block" />
              <span className="what">{oneLine(String(one.details ?? ''))}</span>
              <Link to={`/trail?seq=${one.seq}`} className="dim">
                #{one.seq}
              </Link>
            </li>
          ))}
        </ol>
      )}
      <p className="dim foot">
        <span className="mono">{skill.hash.slice(0, 16)}</span>
        {inspection && ` · ${inspection.files} files, ${bytes(inspection.bytes)}`} ·{' '}
        <span className="mono" title={skill.dir}>
          {oneLine(skill.dir.split('/').slice(-3).join('/'))}
        </span>
      </p>
    </Panel>
  )
}

function Findings({ list }: { readonly list: readonly Finding[] }) {
  if (list.length === 0) return <p className="dim">none</p>
  return (
    <ul className="findings">
      {list.map(({ severity, what }) => (
        <li key={severity + what}>
          <Badge word={severity} /> <span>{plain(what)}</span>
        </li>
      ))}
    </ul>
  )
}
