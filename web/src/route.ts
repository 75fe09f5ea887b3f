import { useSyncExternalStore } from 'react'

/** The address bar is the state: the page is its path, and filters are its query. */

const BASE = '/console'
const listeners = new Set<() => void>()
const tell = (): void => {
  for (const listener of listeners) listener()
}
window.addEventListener('popstate', tell)

const subscribe = (listener: () => void): (() => void) => {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

/** The path below `/console`, as parts. */
export function usePath(): readonly string[] {
  const path = useSyncExternalStore(subscribe, () => location.pathname)
  return path
    .slice(BASE.length)
    .split('/')
    .filter((part) => part !== '')
    .map((part) => safeDecode(part))
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
  const address = hrefOf(path)
  if (replace) history.replaceState(null, '', address)
  else history.pushState(null, '', address)
  tell()
}

/** One query parameter; the empty text takes it away. */
export function useParam(name: string): readonly [string, (value: string) => void] {
  const value = useSyncExternalStore(subscribe, () => new URLSearchParams(location.search).get(name) ?? '')
  return [value, (next) => setParams({ [name]: next })]
}

export function setParams(change: Readonly<Record<string, string>>): void {
  const query = new URLSearchParams(location.search)
  for (const [name, value] of Object.entries(change)) {
    if (value === '') query.delete(name)
    else query.set(name, value)
  }
  const text = query.toString()
  history.replaceState(null, '', `${location.pathname}${text === '' ? '' : `?${text}`}`)
  tell()
}

/** For `onClick` of a link to our own pages: a plain click stays here, every other is the browser's. */
export function onLink(event: React.MouseEvent<HTMLAnchorElement>): void {
  if (
    event.defaultPrevented ||
    event.button !== 0 ||
    event.metaKey ||
    event.ctrlKey ||
    event.shiftKey ||
    event.altKey
  )
    return
  event.preventDefault()
  const { pathname, search } = event.currentTarget
  navigate(`${pathname.slice(BASE.length)}${search}`)
}
