import { type ReactNode, useEffect, useId, useRef } from 'react'

/** A modal dialog. Escape and a click on the backdrop close it. */
export function Dialog(props: {
  readonly title: string
  readonly onClose: () => void
  readonly children: ReactNode
}) {
  const dialog = useModal()
  const id = useId()
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: the dialog element handles Escape itself
    <dialog
      ref={dialog}
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

/** First the field to fill in, else the confirming button, so that Enter confirms. */
const INITIAL_FOCUS = ['input:not([type=checkbox]), textarea', 'button[type=submit]', 'button:last-of-type']

/** Opens a dialog element as modal, and gives the focus back when it goes. */
function useModal() {
  const dialog = useRef<HTMLDialogElement>(null)
  useEffect(() => {
    const element = dialog.current
    const before = document.activeElement
    if (element && !element.open) element.showModal()
    INITIAL_FOCUS.map((selector) => element?.querySelector<HTMLElement>(selector))
      .find(Boolean)
      ?.focus()
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus()
    }
  }, [])
  return dialog
}
