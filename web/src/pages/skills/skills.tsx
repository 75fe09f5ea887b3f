import { useParam } from '../../browser/route.ts'
import { EmptyState } from '../../components/empty-state.tsx'
import { SearchField } from '../../components/fields.tsx'
import { ErrorMessage, Page } from '../../components/page.tsx'
import { Panel } from '../../components/panel.tsx'
import { useClient, useLiveData } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { SkillPanel } from './skill-panel.tsx'

/** Inspected skills: what each one requests, what was found in it, and its runs. */
export function Skills() {
  const client = useClient()
  const [search, setSearch] = useParam('q')
  const skills = useLoad('skills', () => client.skills())
  const { usage, runs, violations } = useSkillActivity()
  const shown = (skills.value ?? []).filter(({ name }) => name.includes(search))
  return (
    <Page title="Skills" aside={<SearchField value={search} onChange={setSearch} />}>
      <ErrorMessage text={skills.error} />
      {skills.value && shown.length === 0 && <NoSkills isFiltered={skills.value.length > 0} />}
      {shown.map((skill) => (
        <SkillPanel
          key={skill.name}
          skill={skill}
          usage={usage.find((one) => one.skill === skill.name)}
          runs={runs.filter((one) => one.skill === skill.name && one.state !== 'started')}
          violations={violations.filter((one) => one.skill === skill.name)}
        />
      ))}
    </Page>
  )
}

/** Usage, runs and violations of all skills; loaded again after each run. */
function useSkillActivity() {
  const client = useClient()
  const { records } = useLiveData()
  const lastRun = records.findLast(({ event }) => event === 'SkillRun')?.seq ?? -1
  const latest = async (event: string) => (await client.trail({ event, order: 'desc', limit: 500 })).items
  const usage = useLoad(`usage ${lastRun}`, () => client.skillUsage())
  const runs = useLoad(`runs ${lastRun}`, () => latest('SkillRun'))
  const violations = useLoad(`violations ${lastRun}`, () => latest('SandboxViolation'))
  return { usage: usage.value ?? [], runs: runs.value ?? [], violations: violations.value ?? [] }
}

const NoSkills = ({ isFiltered }: { readonly isFiltered: boolean }) =>
  isFiltered ? (
    <EmptyState title="No matching skills" />
  ) : (
    <Panel title="No skills yet">
      <EmptyState
        title="Skills appear here after their first inspection"
        command="ringfence skill inspect examples/skills/word-count"
      >
        Inspection lists what a skill requests and records its hash. A changed skill must be inspected again
        before it can run:
      </EmptyState>
    </Panel>
  )
