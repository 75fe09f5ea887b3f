import { ErrorMessage, Loading, Page } from '../../components/page.tsx'
import { Tabs } from '../../components/tabs.tsx'
import { useClient, useIdentity, useLiveData } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { PolicyEdit } from './policy-edit.tsx'
import { PolicySummary } from './policy-summary.tsx'
import { PolicyTest } from './policy-test.tsx'
import { Suggestions } from './suggestions.tsx'

const TABS = [
  ['', 'Rules'],
  ['try', 'Test'],
] as const
const OPERATOR_TABS = [
  ['edit', 'Edit'],
  ['suggestions', 'Suggestions'],
] as const

/** The active policy: its rules, a way to test it, and for operators to change it. */
export function Policy({ tab }: { readonly tab: string }) {
  const client = useClient()
  const { operator } = useIdentity()
  const { policy: hash, records } = useLiveData()
  const lastReload = records.findLast(
    (one) => one.event === 'PolicyDecision' && one.subject === 'reload',
  )?.seq
  const { value, error, reload } = useLoad(`policy ${hash} ${lastReload}`, () => client.policy())
  const tabs = operator ? [...TABS, ...OPERATOR_TABS] : TABS
  return (
    <Page title="Policy" aside={value && <span className="dim mono">active: {value.policy}</span>}>
      <Tabs label="Policy sections" base="/policy" current={tab} tabs={tabs} />
      <div className="tab-body">
        <ErrorMessage text={error} />
        {!value && !error && <Loading />}
        {tab === '' && value && <PolicySummary description={value.description} />}
        {tab === 'try' && <PolicyTest ruleCount={value?.description.rules.length ?? 0} />}
        {tab === 'edit' && operator && value && (
          <PolicyEdit key={value.base} policy={value} onSaved={reload} />
        )}
        {tab === 'suggestions' && operator && <Suggestions policy={value} onSaved={reload} />}
      </div>
    </Page>
  )
}
