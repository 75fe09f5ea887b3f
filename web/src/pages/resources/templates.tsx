import { useState } from 'react'
import type { TemplateInfo } from '../../../../src/client/types.ts'
import { EmptyState } from '../../components/empty-state.tsx'
import { Link } from '../../components/link.tsx'
import { useClient } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { formatDateTime, safeLine } from '../../format.ts'
import { BuildDialog } from './build-dialog.tsx'
import { BuildLog } from './build-log.tsx'
import { type ResourceKind, ResourcePage } from './resource-page.tsx'

const KIND: ResourceKind<TemplateInfo> = {
  title: 'Templates',
  noun: 'template',
  columns: [
    { name: 'Name' },
    { name: 'Tags', className: 'wide-only' },
    { name: 'Backend', className: 'wide-only' },
    { name: 'Created' },
  ],
  nameOf: ({ id, name }) => name ?? id,
  cells: ({ id, name, tags, backend, created_at }) => (
    <>
      <td>{safeLine(name ?? id)}</td>
      <td className="wide-only">{tags.length === 0 ? '–' : safeLine(tags.join(', '))}</td>
      <td className="wide-only">{safeLine(backend)}</td>
      <td className="nowrap dim">{formatDateTime(created_at)}</td>
    </>
  ),
  consequence: 'no more sandboxes can be created from it. Sandboxes that were created from it stay.',
  empty: (
    <EmptyState title="No templates yet" command="ringfence template build -t tools .">
      A template holds the files and settings that sandboxes start from. To build one from a directory with a
      Dockerfile:
    </EmptyState>
  ),
}

/** What sandboxes start from. */
export function Templates() {
  const client = useClient()
  const loaded = useLoad('templates', () => client.templates())
  const [isBuilding, setBuilding] = useState(false)
  const [build, setBuild] = useState<string | undefined>(undefined)
  return (
    <ResourcePage
      kind={KIND}
      loaded={loaded}
      remove={({ id }) => client.removeTemplate(id)}
      createLabel="Build template…"
      onCreate={() => setBuilding(true)}
      actions={({ id, name }) => (
        <Link to={`/sandboxes/new/${encodeURIComponent(name ?? id)}`} className="button">
          New sandbox
        </Link>
      )}
    >
      {build && <BuildLog key={build} id={build} onEnd={loaded.reload} />}
      {isBuilding && <BuildDialog onClose={() => setBuilding(false)} onStarted={setBuild} />}
    </ResourcePage>
  )
}
