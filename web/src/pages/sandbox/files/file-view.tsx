import { useState } from 'react'
import type { ConsoleClient } from '../../../../../src/client/console.ts'
import type { FileInfo } from '../../../../../src/client/types.ts'
import { download } from '../../../browser/download.ts'
import { Button } from '../../../components/button.tsx'
import { TextField } from '../../../components/fields.tsx'
import { ErrorMessage } from '../../../components/page.tsx'
import { Panel } from '../../../components/panel.tsx'
import { attempt } from '../../../components/toasts.tsx'
import { useClient } from '../../../data/live-context.ts'
import { useLoad } from '../../../data/use-load.ts'
import { formatBytes, formatDateTime, safeLine } from '../../../format.ts'
import { DeleteFileDialog, SaveFileDialog } from './file-dialogs.tsx'
import { baseName } from './paths.ts'

type Props = {
  readonly id: string
  readonly path: string
  readonly onDeleted: () => void
  readonly onSaved: () => void
}

/** One file: its text, edited, downloaded or deleted. */
export function FileView({ id, path, onDeleted, onSaved }: Props) {
  const client = useClient()
  const [draft, setDraft] = useState<string | undefined>(undefined)
  const [dialog, setDialog] = useState<'save' | 'delete' | undefined>(undefined)
  const { value, error, reload } = useLoad(`file ${id} ${path}`, () => loadFile(client, id, path))
  const close = (): void => setDialog(undefined)
  const onWritten = (): void => {
    close()
    setDraft(undefined)
    reload()
    onSaved()
  }
  const target = { id, path, onClose: close }
  const viewActions = (
    <ViewActions
      id={id}
      path={path}
      onEdit={value?.text === undefined ? undefined : () => setDraft(value.text)}
      onDelete={() => setDialog('delete')}
    />
  )
  const editActions = (
    <EditActions
      isUnchanged={draft === value?.text}
      onSave={() => setDialog('save')}
      onCancel={() => setDraft(undefined)}
    />
  )
  return (
    <Panel
      title={<span className="mono">{safeLine(baseName(path))}</span>}
      className="file-view"
      aside={draft === undefined ? viewActions : editActions}
    >
      <ErrorMessage text={error} />
      {value && <Metadata info={value.info} />}
      {draft === undefined ? (
        value && <Contents file={value} />
      ) : (
        <Editor name={safeLine(baseName(path))} text={draft} onChange={setDraft} />
      )}
      {dialog === 'save' && (
        <SaveFileDialog {...target} before={value?.text ?? ''} after={draft ?? ''} onSaved={onWritten} />
      )}
      {dialog === 'delete' && <DeleteFileDialog {...target} onDeleted={onDeleted} />}
    </Panel>
  )
}

const MAX_VIEWED = 512 * 1024

/** `text` is undefined for a file that is binary, too large to show, or not a regular file. */
type LoadedFile = {
  readonly info: FileInfo
  readonly isRead: boolean
  readonly text: string | undefined
}

async function loadFile(client: ConsoleClient, id: string, path: string): Promise<LoadedFile> {
  const { files } = await client.get(id)
  const info = await files.stat(path)
  const isRead = info.kind === 'file' && info.size <= MAX_VIEWED
  return { info, isRead, text: isRead ? decodeText(await files.read(path)) : undefined }
}

/** Valid UTF-8 without NUL bytes is text. */
function decodeText(data: Uint8Array): string | undefined {
  if (data.includes(0)) return undefined
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(data)
  } catch {
    return undefined
  }
}

function ViewActions(props: {
  readonly id: string
  readonly path: string
  readonly onEdit: (() => void) | undefined
  readonly onDelete: () => void
}) {
  const client = useClient()
  const save = (): void =>
    void attempt(async () => {
      const data = (await (await client.get(props.id)).files.read(props.path)) as Uint8Array<ArrayBuffer>
      download(new Blob([data], { type: 'application/octet-stream' }), baseName(props.path))
    })
  return (
    <span className="line">
      {props.onEdit && <Button onClick={props.onEdit}>Edit</Button>}
      <Button onClick={save}>Download</Button>
      <Button tone="danger" onClick={props.onDelete}>
        Delete…
      </Button>
    </span>
  )
}

function EditActions(props: {
  readonly isUnchanged: boolean
  readonly onSave: () => void
  readonly onCancel: () => void
}) {
  return (
    <span className="line">
      <Button tone="primary" disabled={props.isUnchanged} onClick={props.onSave}>
        Save…
      </Button>
      <Button tone="quiet" onClick={props.onCancel}>
        Cancel
      </Button>
    </span>
  )
}

const Metadata = ({ info }: { readonly info: FileInfo }) => (
  <p className="dim">
    {formatBytes(info.size)} · mode {(info.mode & 0o777).toString(8)} · modified{' '}
    {formatDateTime(info.modified_at)}
  </p>
)

function Contents({ file: { text, isRead } }: { readonly file: LoadedFile }) {
  if (text === undefined)
    return (
      <p className="dim">
        {isRead
          ? 'Binary file. Download it to view it.'
          : 'Too large to show, or not a regular file. Download it to view it.'}
      </p>
    )
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable by keyboard
    <pre className="output file" tabIndex={0}>
      {text || <span className="dim">(empty)</span>}
    </pre>
  )
}

function Editor(props: {
  readonly name: string
  readonly text: string
  readonly onChange: (text: string) => void
}) {
  return (
    <TextField
      label={`Contents of ${props.name}`}
      hideLabel
      mono
      lines={22}
      value={props.text}
      onChange={props.onChange}
    />
  )
}
