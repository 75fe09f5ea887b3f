import { type ReactNode, useEffect, useId, useRef, useState } from 'react'
import { Button } from './ui.tsx'

/** A modal question. Escape and the backdrop mean no. */
export function Dialog(props: {
  readonly title: string
  readonly onClose: () => void
  readonly children: ReactNode
  readonly wide?: boolean
}) {
  const dialog = useRef<HTMLDialogElement>(null)
  const id = useId()
  useEffect(() => {
    const element = dialog.current
    const before = document.activeElement
    if (element && !element.open) element.showModal()
    // What is to be filled in, else the answer itself: Enter then means what the dialog asks.
    const first = ['input:not([type=checkbox]), textarea', 'button[type=submit]', 'button:last-of-type']
    first
      .map((one) => element?.querySelector<HTMLElement>(one))
      .find(Boolean)
      ?.focus()
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus()
    }
  }, [])
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: Escape is the dialog's own
    <dialog
      ref={dialog}
      className={props.wide ? 'wide' : ''}
      aria-labelledby={id}
      onClose={props.onClose}
      onClick={(event) => {
        if (event.target === dialog.current) dialog.current?.close()
      }}
    >
      <div className="dialog-body">
        <h2 id={id}>{props.title}</h2>
        {props.children}
      </div>
    </dialog>
  )
}

/** A yes or no before something that cannot be taken back. */
export function Confirm(props: {
  readonly title: string
  readonly children?: ReactNode
  readonly yes: string
  readonly tone?: 'main' | 'bad'
  readonly onYes: () => void | Promise<void>
  readonly onClose: () => void
  readonly disabled?: boolean
  /** Enter makes a new line in it, so that the answer takes one key more. */
  readonly typing?: boolean
}) {
  const [busy, setBusy] = useState(false)
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          if (busy || props.disabled) return
          setBusy(true)
          void Promise.resolve(props.onYes()).finally(() => setBusy(false))
        }}
        onKeyDown={(event) => {
          if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) event.currentTarget.requestSubmit()
        }}
      >
        {props.children}
        <div className="buttons">
          <Button onClick={props.onClose} tone="quiet" hint="Esc">
            Cancel
          </Button>
          <Button
            onClick={() => {}}
            submit
            tone={props.tone ?? 'main'}
            hint={props.typing ? 'Ctrl Enter' : 'Enter'}
            disabled={busy || props.disabled === true}
          >
            {props.yes}
          </Button>
        </div>
      </form>
    </Dialog>
  )
}
