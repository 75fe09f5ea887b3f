import { FitAddon } from '@xterm/addon-fit'
import { Terminal as Xterm } from '@xterm/xterm'
import '@xterm/xterm/css/xterm.css'
import { type RefObject, useEffect, useRef, useState } from 'react'
import { useClient } from '../../data/live-context.ts'
import { safeText } from '../../format.ts'
import { withCtrl } from './terminal-keys.tsx'

export type TerminalState =
  | { readonly kind: 'connecting' }
  | { readonly kind: 'open' }
  | { readonly kind: 'exited'; readonly result: string }
  | { readonly kind: 'disconnected'; readonly reason: string; readonly mayReconnect: boolean }

/** An xterm terminal in `box`, connected to a shell in the sandbox; another `session` starts another shell. */
export function useTerminal(
  id: string,
  session: number,
): {
  readonly box: RefObject<HTMLDivElement | null>
  readonly state: TerminalState
  readonly keys: TerminalKeyState
} {
  const client = useClient()
  const box = useRef<HTMLDivElement>(null)
  const [state, setState] = useState<TerminalState>({ kind: 'connecting' })
  const open = useRef<Xterm | undefined>(undefined)
  const ctrl = useCtrl()
  // biome-ignore lint/correctness/useExhaustiveDependencies: `session` starts another shell
  useEffect(() => {
    const element = box.current
    if (!element) return
    setState({ kind: 'connecting' })
    const { terminal, dispose } = openTerminal(element)
    const socket = new WebSocket(ptyUrl(id, terminal), ['ringfence', `console.${client.page}`])
    open.current = terminal
    connect(terminal, socket, { onState: setState, apply: ctrl.apply })
    return () => {
      socket.onclose = null
      socket.close()
      dispose()
    }
  }, [client, id, session])
  const onKey = (text: string): void => {
    open.current?.focus()
    open.current?.input(text)
  }
  return { box, state, keys: { isCtrlDown: ctrl.isDown, onCtrl: ctrl.toggle, onKey } }
}

type TerminalKeyState = {
  readonly isCtrlDown: boolean
  readonly onCtrl: () => void
  readonly onKey: (text: string) => void
}

/** Ctrl as a key that stays down until the next key. */
function useCtrl() {
  const [isDown, setDown] = useState(false)
  const current = useRef(false)
  const set = (next: boolean): void => {
    current.current = next
    setDown(next)
  }
  const apply = useRef((text: string): string => {
    if (!current.current) return text
    set(false)
    return withCtrl(text)
  })
  return { isDown, toggle: () => set(!current.current), apply: apply.current }
}

/** Creates a terminal that follows the size of its element and the theme. */
function openTerminal(element: HTMLElement): { readonly terminal: Xterm; readonly dispose: () => void } {
  element.replaceChildren()
  const terminal = withAdoptedStyles(() => {
    const created = new Xterm({
      fontFamily: 'ui-monospace, "SF Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace',
      fontSize: 13,
      theme: themeColors(),
      cursorBlink: !matchMedia('(prefers-reduced-motion: reduce)').matches,
      scrollback: 10_000,
      screenReaderMode: true,
    })
    created.open(element)
    return created
  })
  const fit = new FitAddon()
  terminal.loadAddon(fit)
  fit.fit()
  const resizes = new ResizeObserver(() => fit.fit())
  resizes.observe(element)
  const onThemeChange = (): void => {
    terminal.options.theme = themeColors()
  }
  window.addEventListener('themechange', onThemeChange)
  const dispose = (): void => {
    window.removeEventListener('themechange', onThemeChange)
    resizes.disconnect()
    terminal.dispose()
  }
  return { terminal, dispose }
}

function ptyUrl(id: string, { cols, rows }: Xterm): URL {
  const url = new URL(`/v1/sandboxes/${id}/pty`, location.origin)
  url.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:'
  url.searchParams.set('cols', String(cols))
  url.searchParams.set('rows', String(rows))
  return url
}

/** The WebSocket close code that permits another attempt. */
const TRY_AGAIN_LATER = 1013

/** Connects a terminal to the socket of a shell. */
function connect(
  terminal: Xterm,
  socket: WebSocket,
  {
    onState,
    apply,
  }: {
    readonly onState: (state: TerminalState) => void
    /** Changes what was typed, while Ctrl is down. */
    readonly apply: (text: string) => string
  },
): void {
  const encoder = new TextEncoder()
  let result: string | undefined
  socket.binaryType = 'arraybuffer'
  socket.onopen = () => {
    onState({ kind: 'open' })
    terminal.focus()
  }
  socket.onmessage = ({ data }) => {
    if (typeof data === 'string') result = resultIn(data)
    else terminal.write(new Uint8Array(data as ArrayBuffer))
  }
  socket.onclose = ({ code, reason }) => {
    const mayReconnect = reason === '' || code === TRY_AGAIN_LATER
    if (result !== undefined && reason === '') onState({ kind: 'exited', result })
    else onState({ kind: 'disconnected', reason: safeText(reason) || (result ?? ''), mayReconnect })
    terminal.options.disableStdin = true
    terminal.options.cursorBlink = false
  }
  terminal.onData((text) => socket.readyState === WebSocket.OPEN && socket.send(encoder.encode(apply(text))))
  terminal.onResize(({ cols, rows }) => {
    if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ resize: { cols, rows } }))
  })
}

/** How the shell ended, from the server's last message. */
function resultIn(message: string): string {
  const outcome = (JSON.parse(message) as { end?: { kind?: string; code?: number } }).end
  return outcome?.kind === 'exited' ? `exit ${outcome.code}` : (outcome?.kind ?? '')
}

function themeColors() {
  const style = getComputedStyle(document.documentElement)
  const color = (name: string): string => style.getPropertyValue(name).trim()
  return {
    background: color('--term-bg'),
    foreground: color('--term-text'),
    cursor: color('--term-accent'),
    selectionBackground: color('--term-select'),
  }
}

/**
 * SECURITY: xterm creates style elements, which the page's Content-Security-Policy blocks. Instead of relaxing the
 * policy, their text goes into constructed style sheets, which the policy permits.
 */
function withAdoptedStyles<T>(work: () => T): T {
  const original = document.createElement
  document.createElement = function (this: Document, name: string, options?: ElementCreationOptions) {
    return name === 'style' ? adoptedStyle(original.call(this, 'span')) : original.call(this, name, options)
  } as typeof document.createElement
  try {
    return work()
  } finally {
    document.createElement = original
  }
}

/** An element that puts its text content into a style sheet of its own. */
function adoptedStyle(element: HTMLElement): HTMLElement {
  element.hidden = true
  const sheet = new CSSStyleSheet()
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet]
  Object.defineProperty(element, 'textContent', {
    set: (text: string) => sheet.replaceSync(text),
    get: () => '',
  })
  return element
}
