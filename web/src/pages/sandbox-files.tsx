import { useRef, useState } from 'react'
import type { FileInfo } from '../../../src/client/types.ts'
import { Confirm } from '../dialog.tsx'
import { DiffView } from '../diff-view.tsx'
import { Field } from '../fields.tsx'
import { bytes, moment, oneLine } from '../format.ts'
import { useClient } from '../live.ts'
import { useLoad } from '../load.ts'
import { attempt, tell } from '../messages.tsx'
import { useParam } from '../route.ts'
import { Button, Empty, Panel } from '../ui.tsx'

const MOST_VIEWED = 512 * 1024

const parentOf = (path: string): string => path.replace(/\/[^/]*$/, '') || '/'
const join = (dir: string, name: string): string => `${dir === '/' ? '' : dir}/${name}`

/** The files as the sandbox sees them. SECURITY: whatever they hold is text here, and a download is never a page of ours. */
export function Files({ id }: { readonly id: string }) {
  const client = useClient()
  const [dir, setDir] = useParam('dir')
  const [file, setFile] = useParam('file')
  const [newName, setNewName] = useState('')
  const upload = useRef<HTMLInputElement>(null)
  const wall = useLoad(`wall ${id}`, () => client.wall(id))
  const here = dir || wall.value?.cwd || ''
  const list = useLoad(`list ${id} ${here}`, async () =>
    here === '' ? [] : (await client.get(id)).files.list(here),
  )
  const entries = [...(list.value ?? [])].sort(
    (a, b) => Number(b.kind === 'dir') - Number(a.kind === 'dir') || (a.name < b.name ? -1 : 1),
  )
  const take = async (files: FileList | null): Promise<void> => {
    for (const one of files ?? [])
      await attempt(
        async () =>
          (await client.get(id)).files.write(join(here, one.name), new Uint8Array(await one.arrayBuffer())),
        `${one.name} is in ${here}`,
      )
    if (upload.current) upload.current.value = ''
    list.again()
  }
  return (
    <div className="split files">
      <Panel
        title={
          <Crumbs
            dir={here}
            onOpen={(path) => {
              setDir(path)
              setFile('')
            }}
          />
        }
        aside={
          <span className="line">
            <input
              ref={upload}
              type="file"
              multiple
              hidden
              aria-label="Files to upload"
              onChange={(event) => void take(event.target.files)}
            />
            <Button onClick={() => upload.current?.click()}>Upload</Button>
          </span>
        }
      >
        {list.error && (
          <p role="alert" className="problem">
            ✕ {list.error}
          </p>
        )}
        <ul className="file-list" aria-label={`Files in ${here}`}>
          {here !== '/' && here !== '' && (
            <li>
              <button type="button" onClick={() => setDir(parentOf(here))}>
                <span className="kind" aria-hidden="true">
                  ▸
                </span>{' '}
                ..
              </button>
            </li>
          )}
          {entries.map((one) => (
            <li key={one.path}>
              <button
                type="button"
                aria-current={one.path === file ? 'true' : undefined}
                onClick={() => (one.kind === 'dir' ? setDir(one.path) : setFile(one.path))}
              >
                <span className="kind" aria-hidden="true">
                  {one.kind === 'dir' ? '▸' : one.kind === 'link' ? '↗' : '·'}
                </span>
                <span className="name">
                  {oneLine(one.name)}
                  {one.kind === 'dir' ? '/' : ''}
                </span>
                <span className="dim num">
                  {one.kind === 'file' ? bytes(one.size) : one.kind === 'dir' ? '' : one.kind}
                </span>
              </button>
            </li>
          ))}
        </ul>
        {list.value && entries.length === 0 && <p className="dim quiet-line">Nothing in it yet.</p>}
        <form
          className="run-line"
          onSubmit={(event) => {
            event.preventDefault()
            void attempt(
              async () => (await client.get(id)).files.write(join(here, newName), ''),
              'made',
            ).then((ok) => {
              if (!ok) return
              setFile(join(here, newName))
              setNewName('')
              list.again()
            })
          }}
        >
          <Field
            label="New file"
            hideLabel
            mono
            value={newName}
            onChange={setNewName}
            placeholder="new file"
          />
          <Button onClick={() => {}} submit disabled={newName === '' || newName.includes('/')}>
            Make
          </Button>
        </form>
      </Panel>
      {file === '' ? (
        <Panel title="File">
          <Empty
            title="Choose a file to look into"
            command={`ringfence sandbox cp data.csv ${id}:${join(here || '/tmp', 'data.csv')}`}
          >
            Or bring one in:
          </Empty>
        </Panel>
      ) : (
        <FileView
          key={file}
          id={id}
          path={file}
          onGone={() => {
            setFile('')
            list.again()
          }}
          onSaved={list.again}
        />
      )}
    </div>
  )
}

function Crumbs({ dir, onOpen }: { readonly dir: string; readonly onOpen: (path: string) => void }) {
  const parts = dir.split('/').filter(Boolean)
  return (
    <span className="crumbs mono">
      <button type="button" className="link" onClick={() => onOpen('/')} aria-label="the root">
        /
      </button>
      {parts.map((part, index) => (
        <span key={index}>
          {index > 0 && '/'}
          <button
            type="button"
            className="link"
            onClick={() => onOpen(`/${parts.slice(0, index + 1).join('/')}`)}
          >
            {oneLine(part)}
          </button>
        </span>
      ))}
    </span>
  )
}

type Content = {
  readonly info: FileInfo
  readonly data: Uint8Array | undefined
  readonly text: string | undefined
}

function textIn(data: Uint8Array): string | undefined {
  if (data.includes(0)) return undefined
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(data)
  } catch {
    return undefined
  }
}

function FileView(props: {
  readonly id: string
  readonly path: string
  readonly onGone: () => void
  readonly onSaved: () => void
}) {
  const { id, path } = props
  const client = useClient()
  const [draft, setDraft] = useState<string | undefined>(undefined)
  const [asking, setAsking] = useState<'save' | 'remove' | undefined>(undefined)
  const { value, error, again } = useLoad<Content>(`file ${id} ${path}`, async () => {
    const { files } = await client.get(id)
    const info = await files.stat(path)
    const data = info.kind === 'file' && info.size <= MOST_VIEWED ? await files.read(path) : undefined
    return { info, data, text: data && textIn(data) }
  })
  const download = (): void =>
    void attempt(async () => {
      const data = await (await client.get(id)).files.read(path)
      const address = URL.createObjectURL(
        new Blob([data as Uint8Array<ArrayBuffer>], { type: 'application/octet-stream' }),
      )
      const link = document.createElement('a')
      link.href = address
      link.download = path.split('/').at(-1) ?? 'file'
      link.click()
      URL.revokeObjectURL(address)
    })
  const name = oneLine(path.split('/').at(-1) ?? path)
  const editing = draft !== undefined
  return (
    <Panel
      title={<span className="mono">{name}</span>}
      className="file-view"
      aside={
        <span className="line">
          {value?.text !== undefined && !editing && (
            <Button onClick={() => setDraft(value.text)}>Edit</Button>
          )}
          {editing && (
            <Button tone="main" disabled={draft === value?.text} onClick={() => setAsking('save')}>
              Save…
            </Button>
          )}
          {editing && (
            <Button tone="quiet" onClick={() => setDraft(undefined)}>
              Drop
            </Button>
          )}
          {!editing && <Button onClick={download}>Download</Button>}
          {!editing && (
            <Button tone="bad" onClick={() => setAsking('remove')}>
              Remove…
            </Button>
          )}
        </span>
      }
    >
      {error && (
        <p role="alert" className="problem">
          ✕ {error}
        </p>
      )}
      {value && (
        <p className="dim">
          {bytes(value.info.size)} · mode {(value.info.mode & 0o777).toString(8)} · changed{' '}
          {moment(value.info.modified_at)}
        </p>
      )}
      {editing ? (
        <Field label={`Text of ${name}`} hideLabel mono lines={22} value={draft} onChange={setDraft} />
      ) : value?.text !== undefined ? (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
        <pre className="output file" tabIndex={0}>
          {value.text || <span className="dim">(empty)</span>}
        </pre>
      ) : (
        value && (
          <p className="dim">
            {value.data === undefined
              ? 'Too large to show here, or no plain file; it can be downloaded.'
              : 'Not text; it can be downloaded.'}
          </p>
        )
      )}
      {asking === 'save' && (
        <Confirm
          title={`Save ${name}?`}
          yes="Save"
          onClose={() => setAsking(undefined)}
          onYes={async () => {
            if (!(await attempt(async () => (await client.get(id)).files.write(path, draft ?? ''), 'saved')))
              return
            setAsking(undefined)
            setDraft(undefined)
            again()
            props.onSaved()
          }}
        >
          <DiffView before={value?.text ?? ''} after={draft ?? ''} />
        </Confirm>
      )}
      {asking === 'remove' && (
        <Confirm
          title={`Remove ${name}?`}
          yes="Remove"
          tone="bad"
          onClose={() => setAsking(undefined)}
          onYes={async () => {
            if (!(await attempt(async () => (await client.get(id)).files.remove(path)))) return
            tell(`${name} is gone`)
            props.onGone()
          }}
        >
          <p>It cannot be brought back.</p>
        </Confirm>
      )}
    </Panel>
  )
}
