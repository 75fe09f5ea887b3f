import type { SnapshotInfo } from '../../../../src/client/types.ts'
import { EmptyState } from '../../components/empty-state.tsx'
import { Link } from '../../components/link.tsx'
import { useClient } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { formatDateTime, safeLine, shortId } from '../../format.ts'
import { type ResourceKind, ResourcePage } from './resource-page.tsx'

const KIND: ResourceKind<SnapshotInfo> = {
  title: 'Snapshots',
  noun: 'snapshot',
  columns: [
    { name: 'Name' },
    { name: 'Taken from', className: 'wide-only' },
    { name: 'Backend', className: 'wide-only' },
    { name: 'Created' },
  ],
  nameOf: ({ id, name }) => name ?? id,
  cells: ({ id, name, sandbox_id, backend, created_at }) => (
    <>
      <td>{name ? safeLine(name) : <span className="mono">{shortId(id)}</span>}</td>
      <td className="wide-only">
        {sandbox_id ? (
          <Link to={`/sandboxes/${sandbox_id}`} className="mono">
            {shortId(sandbox_id)}
          </Link>
        ) : (
          '–'
        )}
      </td>
      <td className="wide-only">{safeLine(backend)}</td>
      <td className="nowrap dim">{formatDateTime(created_at)}</td>
    </>
  ),
  consequence: 'no more sandboxes can be created from it. Sandboxes that were created from it stay.',
  empty: (
    <EmptyState title="No snapshots yet" command="ringfence sandbox snapshot ID">
      A snapshot holds the files of a sandbox at one moment, for new sandboxes. Take one on the page of a
      sandbox, or:
    </EmptyState>
  ),
}

/** The files of sandboxes, each at one moment. */
export function Snapshots() {
  const client = useClient()
  const loaded = useLoad('snapshots', () => client.snapshots())
  return (
    <ResourcePage
      kind={KIND}
      loaded={loaded}
      remove={({ id }) => client.removeSnapshot(id)}
      actions={({ id }) => (
        <Link to={`/sandboxes/new/${encodeURIComponent(id)}`} className="button">
          New sandbox
        </Link>
      )}
    />
  )
}
