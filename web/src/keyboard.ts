import { useEffect, useRef } from 'react'

/** Keys that work wherever nothing is being typed. */

export type Shortcut = { readonly keys: string; readonly does: string; readonly run: () => void }

const shortcuts = new Map<symbol, readonly Shortcut[]>()
let first = ''
let timer: ReturnType<typeof setTimeout> | undefined
const SECOND_KEY_MS = 1200

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement &&
  (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))

/** A dialog keeps the keys to itself. */
const scopeOf = (): Element | null => document.querySelector('dialog[open]')

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || scopeOf()) return
  if ((event.target as HTMLElement)?.closest?.('[data-own-keys]')) return
  const combo = first === '' ? event.key : `${first} ${event.key}`
  first = ''
  clearTimeout(timer)
  const all = [...shortcuts.values()].flat().reverse()
  const found = all.find(({ keys }) => keys.split(', ').includes(combo))
  if (found) {
    event.preventDefault()
    found.run()
  } else if (all.some(({ keys }) => keys.startsWith(`${event.key} `))) {
    first = event.key
    timer = setTimeout(() => (first = ''), SECOND_KEY_MS)
  }
})

/** Adds keys for as long as the component is there; the latest wins. */
export function useShortcuts(list: readonly Shortcut[]): void {
  const held = useRef(list)
  held.current = list
  useEffect(() => {
    const id = Symbol('shortcuts')
    shortcuts.set(
      id,
      held.current.map((one, index) => ({ ...one, run: () => held.current[index]?.run() })),
    )
    return () => void shortcuts.delete(id)
  }, [])
}

/** Everything that can be pressed here, for the help. */
export const allShortcuts = (): readonly Shortcut[] => [...shortcuts.values()].flat()
