import { useEffect, useRef } from 'react'

/** Keyboard shortcuts, active while no text field has the focus. */

/** `keys` lists alternatives, separated by `, `; a sequence is written with a space: `g a`. */
export type Shortcut = { readonly keys: string; readonly label: string; readonly run: () => void }

const registered = new Map<symbol, readonly Shortcut[]>()
let prefix = ''
let prefixTimer: ReturnType<typeof setTimeout> | undefined
const SECOND_KEY_MS = 1200

const isTextField = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement &&
  (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))

/** An open dialog gets all keys. */
const isDialogOpen = (): boolean => document.querySelector('dialog[open]') !== null

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isTextField(event.target) || isDialogOpen()) return
  if ((event.target as HTMLElement)?.closest?.('[data-own-keys]')) return
  const sequence = prefix === '' ? event.key : `${prefix} ${event.key}`
  prefix = ''
  clearTimeout(prefixTimer)
  const all = [...registered.values()].flat().reverse()
  const found = all.find(({ keys }) => keys.split(', ').includes(sequence))
  if (found) {
    event.preventDefault()
    found.run()
  } else if (all.some(({ keys }) => keys.startsWith(`${event.key} `))) {
    prefix = event.key
    prefixTimer = setTimeout(() => (prefix = ''), SECOND_KEY_MS)
  }
})

/** Registers shortcuts while the component is mounted; the most recent registration wins. */
export function useShortcuts(list: readonly Shortcut[]): void {
  const latest = useRef(list)
  latest.current = list
  useEffect(() => {
    const id = Symbol('shortcuts')
    registered.set(
      id,
      latest.current.map((shortcut, index) => ({ ...shortcut, run: () => latest.current[index]?.run() })),
    )
    return () => void registered.delete(id)
  }, [])
}

/** Every registered shortcut, for the help dialog. */
export const allShortcuts = (): readonly Shortcut[] => [...registered.values()].flat()
