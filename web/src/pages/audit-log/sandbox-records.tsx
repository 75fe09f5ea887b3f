import { useMemo } from 'react'
import { Link } from '../../components/link.tsx'
import { Panel } from '../../components/panel.tsx'
import { RecordTable } from './record-table.tsx'

/** The audit log of one sandbox. */
export function SandboxRecords({ id }: { readonly id: string }) {
  const query = useMemo(() => ({ event: '', agent_id: '', sandbox_id: id }), [id])
  return (
    <Panel
      title="Records"
      className="fill-height"
      aside={<Link to={`/trail?sandbox=${id}`}>Open in the audit log</Link>}
    >
      <RecordTable
        query={query}
        selected=""
        linkTo={(seq) => `/trail?sandbox=${id}&seq=${seq}`}
        isOneSandbox
      />
    </Panel>
  )
}
