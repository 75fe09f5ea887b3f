import { type FormEvent, useRef, useState } from 'react'
import type { FileInfo } from '../../../../../src/client/types.ts'
import { setParams, useParam } from '../../../browser/route.ts'
import { Button } from '../../../components/button.tsx'
import { TextField } from '../../../components/fields.tsx'
import { ErrorMessage } from '../../../components/page.tsx'
import { Panel } from '../../../components/panel.tsx'
import { attempt } from '../../../components/toasts.tsx'
import { useClient } from '../../../data/live-context.ts'
import { useLoad } from '../../../data/use-load.ts'
import { formatBytes, safeLine } from '../../../format.ts'
import { joinPath, parentOf } from './paths.ts'

type DirectoryProps = { readonly id: string; readonly dir: string; readonly onChanged: () => void }

/** One directory of the sandbox: navigate, upload and create files. */
export function Directory({ version, ...props }: DirectoryProps & { readonly version: number }) {
  const { id, dir } = props
  const client = useClient()
  const [, setDir] = useParam('dir')
  const [file, setFile] = useParam('file')
  const { value, error } = useLoad(`list ${id} ${dir} ${version}`, async () =>
    dir === '' ? [] : (await client.get(id)).files.list(dir),
  )
  const entries = [...(value ?? [])].sort(directoriesFirst)
  return (
    <Panel title={<Breadcrumbs dir={dir} />} aside={<UploadButton {...props} />}>
      <ErrorMessage text={error} />
      <ul className="file-list" aria-label={`Files in ${dir}`}>
        {dir !== '/' && dir !== '' && (
          <li>
            <button type="button" onClick={() => setDir(parentOf(dir))}>
              <span className="kind" aria-hidden="true">
                ▸
              </span>{' '}
              ..
            </button>
          </li>
        )}
        {entries.map((entry) => (
          <Entry
            key={entry.path}
            entry={entry}
            isCurrent={entry.path === file}
            onClick={() => (entry.kind === 'dir' ? setDir(entry.path) : setFile(entry.path))}
          />
        ))}
      </ul>
      {value && entries.length === 0 && <p className="dim note">This directory is empty.</p>}
      <NewFileForm {...props} />
    </Panel>
  )
}

const directoriesFirst = (a: FileInfo, b: FileInfo): number =>
  Number(b.kind === 'dir') - Number(a.kind === 'dir') || (a.name < b.name ? -1 : 1)

function Entry(props: {
  readonly entry: FileInfo
  readonly isCurrent: boolean
  readonly onClick: () => void
}) {
  const { kind, name, size } = props.entry
  return (
    <li>
      <button type="button" aria-current={props.isCurrent ? 'true' : undefined} onClick={props.onClick}>
        <span className="kind" aria-hidden="true">
          {kind === 'dir' ? '▸' : kind === 'link' ? '↗' : '·'}
        </span>
        <span className="name">
          {safeLine(name)}
          {kind === 'dir' ? '/' : ''}
        </span>
        <span className="dim num">{kind === 'file' ? formatBytes(size) : kind === 'dir' ? '' : kind}</span>
      </button>
    </li>
  )
}

function Breadcrumbs({ dir }: { readonly dir: string }) {
  const parts = dir.split('/').filter(Boolean)
  const open = (path: string) => (): void => setParams({ dir: path, file: '' })
  return (
    <span className="crumbs mono">
      <button type="button" className="link" onClick={open('/')} aria-label="Root directory">
        /
      </button>
      {parts.map((part, index) => (
        <span key={index}>
          {index > 0 && '/'}
          <button type="button" className="link" onClick={open(`/${parts.slice(0, index + 1).join('/')}`)}>
            {safeLine(part)}
          </button>
        </span>
      ))}
    </span>
  )
}

function UploadButton({ id, dir, onChanged }: DirectoryProps) {
  const client = useClient()
  const input = useRef<HTMLInputElement>(null)
  const upload = async (files: FileList | null): Promise<void> => {
    for (const file of files ?? [])
      await attempt(async () => {
        const data = new Uint8Array(await file.arrayBuffer())
        await (await client.get(id)).files.write(joinPath(dir, file.name), data)
      }, `Uploaded ${file.name} to ${dir}`)
    if (input.current) input.current.value = ''
    onChanged()
  }
  return (
    <span className="line">
      <input
        ref={input}
        type="file"
        multiple
        hidden
        aria-label="Files to upload"
        onChange={(event) => void upload(event.target.files)}
      />
      <Button onClick={() => input.current?.click()}>Upload</Button>
    </span>
  )
}

function NewFileForm({ id, dir, onChanged }: DirectoryProps) {
  const client = useClient()
  const [, setFile] = useParam('file')
  const [name, setName] = useState('')
  const create = async (event: FormEvent): Promise<void> => {
    event.preventDefault()
    const path = joinPath(dir, name)
    if (!(await attempt(async () => (await client.get(id)).files.write(path, ''), 'File created'))) return
    setFile(path)
    setName('')
    onChanged()
  }
  return (
    <form className="inline-form" onSubmit={(event) => void create(event)}>
      <TextField
        label="New file"
        hideLabel
        mono
        value={name}
        onChange={setName}
        placeholder="New file name"
      />
      <Button disabled={name === '' || name.includes('/')}>Create</Button>
    </form>
  )
}
