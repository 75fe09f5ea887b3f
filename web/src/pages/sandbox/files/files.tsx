import { useState } from 'react'
import { useParam } from '../../../browser/route.ts'
import { EmptyState } from '../../../components/empty-state.tsx'
import { Panel } from '../../../components/panel.tsx'
import { useClient } from '../../../data/live-context.ts'
import { useLoad } from '../../../data/use-load.ts'
import { Directory } from './directory.tsx'
import { FileView } from './file-view.tsx'
import { joinPath } from './paths.ts'

/** The sandbox's files. SECURITY: contents are shown as text only, and a download never opens as a page. */
export function Files({ id }: { readonly id: string }) {
  const client = useClient()
  const [dirParam] = useParam('dir')
  const [file, setFile] = useParam('file')
  // Bumped to list the directory again.
  const [version, setVersion] = useState(0)
  const wall = useLoad(`wall ${id}`, () => client.wall(id))
  const dir = dirParam || wall.value?.cwd || ''
  const refresh = (): void => setVersion((before) => before + 1)
  const onDeleted = (): void => {
    setFile('')
    refresh()
  }
  return (
    <div className="split files">
      <Directory id={id} dir={dir} version={version} onChanged={refresh} />
      {file === '' ? (
        <NoFile id={id} dir={dir} />
      ) : (
        <FileView key={file} id={id} path={file} onDeleted={onDeleted} onSaved={refresh} />
      )}
    </div>
  )
}

const NoFile = ({ id, dir }: { readonly id: string; readonly dir: string }) => (
  <Panel title="File">
    <EmptyState
      title="No file selected"
      command={`ringfence sandbox cp data.csv ${id}:${joinPath(dir || '/tmp', 'data.csv')}`}
    >
      Select a file to view it. To copy one into the sandbox from a terminal:
    </EmptyState>
  </Panel>
)
