import { type FormEvent, type KeyboardEvent, type ReactNode, useState } from 'react'
import { Button } from './button.tsx'
import { Dialog } from './dialog.tsx'

/** Asks for confirmation before an action, or for its input. */
export function ConfirmDialog(props: {
  readonly title: string
  readonly children?: ReactNode
  readonly confirmLabel: string
  readonly tone?: 'primary' | 'danger'
  readonly onConfirm: () => void | Promise<void>
  readonly onClose: () => void
  readonly disabled?: boolean
  /** Enter inserts a line break in its text field, so Ctrl+Enter confirms. */
  readonly multiline?: boolean
}) {
  const [isBusy, setBusy] = useState(false)
  const submit = (event: FormEvent): void => {
    event.preventDefault()
    if (isBusy || props.disabled) return
    setBusy(true)
    void Promise.resolve(props.onConfirm()).finally(() => setBusy(false))
  }
  const onKeyDown = (event: KeyboardEvent<HTMLFormElement>): void => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) event.currentTarget.requestSubmit()
  }
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <form onSubmit={submit} onKeyDown={onKeyDown}>
        {props.children}
        <div className="buttons">
          <Button onClick={props.onClose} tone="quiet" shortcut="Esc">
            Cancel
          </Button>
          <Button
            tone={props.tone ?? 'primary'}
            shortcut={props.multiline ? 'Ctrl Enter' : 'Enter'}
            disabled={isBusy || props.disabled === true}
          >
            {props.confirmLabel}
          </Button>
        </div>
      </form>
    </Dialog>
  )
}
