import { ConfirmDialog } from '../../../components/confirm-dialog.tsx'
import { DiffView } from '../../../components/diff-view.tsx'
import { attempt } from '../../../components/toasts.tsx'
import { useClient } from '../../../data/live-context.ts'
import { safeLine } from '../../../format.ts'
import { baseName } from './paths.ts'

type Target = { readonly id: string; readonly path: string; readonly onClose: () => void }

export function SaveFileDialog(
  props: Target & { readonly before: string; readonly after: string; readonly onSaved: () => void },
) {
  const { id, path, before, after } = props
  const client = useClient()
  const save = async (): Promise<void> => {
    const write = async () => (await client.get(id)).files.write(path, after)
    if (await attempt(write, 'File saved')) props.onSaved()
  }
  return (
    <ConfirmDialog
      title={`Save ${safeLine(baseName(path))}?`}
      confirmLabel="Save"
      onClose={props.onClose}
      onConfirm={save}
    >
      <DiffView before={before} after={after} />
    </ConfirmDialog>
  )
}

export function DeleteFileDialog(props: Target & { readonly onDeleted: () => void }) {
  const client = useClient()
  const name = safeLine(baseName(props.path))
  const remove = async (): Promise<void> => {
    const action = async () => (await client.get(props.id)).files.remove(props.path)
    if (await attempt(action, `Deleted ${name}`)) props.onDeleted()
  }
  return (
    <ConfirmDialog
      title={`Delete ${name}?`}
      confirmLabel="Delete"
      tone="danger"
      onClose={props.onClose}
      onConfirm={remove}
    >
      <p>This cannot be undone.</p>
    </ConfirmDialog>
  )
}
