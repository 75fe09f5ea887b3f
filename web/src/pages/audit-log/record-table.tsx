import type { ReactNode } from 'react'
import type { TrailRecord } from '../../../../src/client/types.ts'
import { recordResult, recordSummary } from '../../audit/record-summary.ts'
import { Badge } from '../../components/badge.tsx'
import { EmptyState } from '../../components/empty-state.tsx'
import { Link } from '../../components/link.tsx'
import { ErrorMessage, Loading } from '../../components/page.tsx'
import { VirtualTable } from '../../components/virtual-table.tsx'
import { useSandboxName } from '../../data/sandbox-status.ts'
import { formatDateTime, formatMoment, safeLine } from '../../format.ts'
import { type RecordQuery, useRecords } from './use-records.ts'

const COLUMNS = ['Record', 'Time', 'Event', 'Result', 'Sandbox', 'Summary']

/** Records of the audit log; `isOneSandbox` hides the column that would be the same in every row. */
export function RecordTable(props: {
  readonly query: RecordQuery
  readonly selected: string
  readonly linkTo: (seq: number) => string
  readonly isOneSandbox?: boolean
}) {
  const { records, loadMore, isComplete, error } = useRecords(props.query)
  return (
    <>
      <ErrorMessage text={error} />
      <VirtualTable
        label="Records"
        className={props.isOneSandbox ? 'records one-sandbox' : 'records'}
        columns={COLUMNS}
        columnPrefix="t-"
        count={records.length}
        rowHeight={30}
        onEndReached={loadMore}
        rowKey={(index) => (records[index] as TrailRecord).seq}
        row={(index) => {
          const record = records[index] as TrailRecord
          return (
            <RecordRow
              record={record}
              to={props.linkTo(record.seq)}
              isSelected={props.selected === String(record.seq)}
            />
          )
        }}
        empty={
          isComplete ? (
            <EmptyState title="No matching records">Clear a filter to see more.</EmptyState>
          ) : (
            <Loading />
          )
        }
      />
    </>
  )
}

function RecordRow(props: {
  readonly record: TrailRecord
  readonly to: string
  readonly isSelected: boolean
}) {
  const { record } = props
  const nameOf = useSandboxName()
  const result = recordResult(record)
  return (
    <>
      <Cell column="record">
        <Link to={props.to} className="num" current={props.isSelected}>
          #{record.seq}
        </Link>
      </Cell>
      <Cell column="time num dim" title={formatDateTime(record.time)}>
        {formatMoment(record.time)}
      </Cell>
      <Cell column="event">{record.event}</Cell>
      <Cell column="result">{result && <Badge word={result} />}</Cell>
      <Cell column="sandbox mono dim" title={String(record.sandbox_id ?? '')}>
        {typeof record.sandbox_id === 'string' ? nameOf(record.sandbox_id) : ''}
      </Cell>
      <Cell column="summary">{safeLine(recordSummary(record))}</Cell>
    </>
  )
}

function Cell(props: { readonly column: string; readonly title?: string; readonly children: ReactNode }) {
  return (
    <span role="cell" className={`t-${props.column}`} title={props.title}>
      {props.children}
    </span>
  )
}
