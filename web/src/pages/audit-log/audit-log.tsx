import { EVENT_NAMES } from '../../../../src/model/event.ts'
import { download } from '../../browser/download.ts'
import { useParam } from '../../browser/route.ts'
import { Button } from '../../components/button.tsx'
import { type Option, SearchField, Select, TextField } from '../../components/fields.tsx'
import { Page } from '../../components/page.tsx'
import { Panel } from '../../components/panel.tsx'
import { attempt } from '../../components/toasts.tsx'
import { useClient, useIdentity, useLiveData } from '../../data/live-context.ts'
import { formatCount } from '../../format.ts'
import { RecordDetail } from './record-detail.tsx'
import { RecordTable } from './record-table.tsx'
import { Verification } from './verification.tsx'

/** The audit log: filtered, verified in this browser, one record in detail. */
export function AuditLog() {
  const [event] = useParam('event')
  const [agent] = useParam('agent')
  const [sandbox] = useParam('sandbox')
  const [seq, setSeq] = useParam('seq')
  return (
    <Page title="Audit log" aside={<RecordFilters />}>
      <Verification />
      <div className={seq === '' ? 'audit-log' : 'audit-log split-right'}>
        <Panel title="Records" className="fill-height" aside={<span className="dim">Newest first</span>}>
          <RecordTable
            query={{ event, agent_id: agent, sandbox_id: sandbox }}
            selected={seq}
            linkTo={linkTo}
          />
        </Panel>
        {seq !== '' && <RecordDetail key={seq} seq={Number(seq)} onClose={() => setSeq('')} />}
      </div>
    </Page>
  )
}

/** Selects a record and keeps the filters. */
function linkTo(seq: number): string {
  const params = new URLSearchParams(location.search)
  params.set('seq', String(seq))
  return `/trail?${params}`
}

const EVENTS: readonly Option[] = [['', 'All events'], ...EVENT_NAMES.map((name): Option => [name, name])]

function RecordFilters() {
  const { operator } = useIdentity()
  const { seq: newest } = useLiveData()
  const [event, setEvent] = useParam('event')
  const [agent, setAgent] = useParam('agent')
  const [sandbox, setSandbox] = useParam('sandbox')
  return (
    <search className="filters">
      <span className="dim num">{newest >= 0 ? `${formatCount(newest + 1)} records` : ''}</span>
      <Select label="Event" value={event} onChange={setEvent} options={EVENTS} />
      <TextField label="Agent" hideLabel value={agent} onChange={setAgent} placeholder="Agent" />
      <SearchField label="Sandbox ID" value={sandbox} onChange={setSandbox} />
      {operator && <ExportButton />}
    </search>
  )
}

function ExportButton() {
  const client = useClient()
  const save = (): void =>
    void attempt(
      async () => download(await client.trailExport(), 'ringfence-audit-log.jsonl'),
      'Audit log exported. Verify the file with `ringfence audit verify`.',
    )
  return <Button onClick={save}>Export</Button>
}
