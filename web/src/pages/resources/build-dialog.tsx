import { useState } from 'react'
import { ConfirmDialog } from '../../components/confirm-dialog.tsx'
import { type Option, Select, TextField } from '../../components/fields.tsx'
import { attempt } from '../../components/toasts.tsx'
import { useClient } from '../../data/live-context.ts'

type Source = 'image' | 'template' | 'dockerfile'
const SOURCES: readonly Option<Source>[] = [
  ['image', 'An image of a registry'],
  ['dockerfile', 'A Dockerfile'],
  ['template', 'Another template or a snapshot'],
]
const PLACEHOLDERS = {
  image: 'python:3.12',
  dockerfile: 'FROM python:3.12\nRUN pip install requests',
  template: 'tools',
} as const

/** Starts the build of a template. */
export function BuildDialog(props: {
  readonly onClose: () => void
  readonly onStarted: (buildId: string) => void
}) {
  const client = useClient()
  const [name, setName] = useState('')
  const [source, setSource] = useState<Source>('image')
  const [text, setText] = useState('')
  const start = async (): Promise<void> => {
    const started = attempt(async () =>
      props.onStarted((await client.buildTemplate({ name, [source]: text })).id),
    )
    if (await started) props.onClose()
  }
  return (
    <ConfirmDialog
      title="Build template"
      confirmLabel="Build"
      disabled={name === '' || text.trim() === ''}
      multiline={source === 'dockerfile'}
      onClose={props.onClose}
      onConfirm={start}
    >
      <TextField label="Name" value={name} onChange={setName} autoFocus placeholder="e.g. tools" />
      <Select label="Start from" showLabel value={source} onChange={setSource} options={SOURCES} />
      <TextField
        label={source === 'dockerfile' ? 'Dockerfile' : source === 'image' ? 'Image' : 'Template'}
        mono
        value={text}
        onChange={setText}
        placeholder={PLACEHOLDERS[source]}
        {...(source === 'dockerfile' && {
          lines: 8,
          hint: 'COPY needs files: build from a directory with ringfence template build -t NAME DIR.',
        })}
      />
    </ConfirmDialog>
  )
}
