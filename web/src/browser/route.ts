import { useSyncExternalStore } from 'react'

/** The URL holds the navigation state: the path selects the page, the query holds its filters. */

const BASE = '/console'
const listeners = new Set<() => void>()
const notify = (): void => {
  for (const listener of listeners) listener()
}
window.addEventListener('popstate', notify)

const subscribe = (listener: () => void): (() => void) => {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

/** The path below `/console`, split into segments. */
export function usePath(): readonly string[] {
  const path = useSyncExternalStore(subscribe, () => location.pathname)
  return path
    .slice(BASE.length)
    .split('/')
    .filter((segment) => segment !== '')
    .map((segment) => safeDecode(segment))
}

const safeDecode = (text: string): string => {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

export const hrefOf = (path: string): string => `${BASE}${path}`

export function navigate(path: string, replace = false): void {
  const href = hrefOf(path)
  if (replace) history.replaceState(null, '', href)
  else history.pushState(null, '', href)
  notify()
}

/** One query parameter; setting it to the empty string removes it. */
export function useParam(name: string): readonly [string, (value: string) => void] {
  const value = useSyncExternalStore(subscribe, () => new URLSearchParams(location.search).get(name) ?? '')
  return [value, (next) => setParams({ [name]: next })]
}

export function setParams(changes: Readonly<Record<string, string>>): void {
  const query = new URLSearchParams(location.search)
  for (const [name, value] of Object.entries(changes)) {
    if (value === '') query.delete(name)
    else query.set(name, value)
  }
  const text = query.toString()
  history.replaceState(null, '', `${location.pathname}${text === '' ? '' : `?${text}`}`)
  notify()
}

/** `onClick` of a link to a console page: navigates in place, unless the click asks for a new tab or window. */
export function followLink(event: React.MouseEvent<HTMLAnchorElement>): void {
  const modified = event.metaKey || event.ctrlKey || event.shiftKey || event.altKey
  if (event.defaultPrevented || event.button !== 0 || modified) return
  event.preventDefault()
  const { pathname, search } = event.currentTarget
  navigate(`${pathname.slice(BASE.length)}${search}`)
}
