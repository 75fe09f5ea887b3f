import type { ReactNode } from 'react'

/** A button; without `onClick` it submits its form. */
export function Button(props: {
  readonly onClick?: () => void
  readonly children: ReactNode
  readonly tone?: 'primary' | 'danger' | 'quiet'
  readonly disabled?: boolean
  /** The key that does the same, shown on the button. */
  readonly shortcut?: string
}) {
  return (
    <button
      type={props.onClick ? 'button' : 'submit'}
      className={`button ${props.tone ?? ''}`}
      onClick={props.onClick}
      disabled={props.disabled}
      aria-keyshortcuts={props.shortcut?.replace('Ctrl ', 'Control+')}
    >
      {props.children}
      {props.shortcut && <kbd aria-hidden="true">{props.shortcut}</kbd>}
    </button>
  )
}
