import { FitAddon } from '@xterm/addon-fit'
import { Terminal as Xterm } from '@xterm/xterm'
import '@xterm/xterm/css/xterm.css'
import { useEffect, useRef, useState } from 'react'
import { plain } from '../format.ts'
import { useClient } from '../live.ts'
import { Button, Panel } from '../ui.tsx'

/**
 * The terminal writes its own style elements, which the page's policy refuses. A style sheet that a script made is no
 * such element, so what it writes goes into one.
 */
function withOwnStyles<T>(work: () => T): T {
  const original = document.createElement
  document.createElement = function (this: Document, name: string, options?: ElementCreationOptions) {
    if (name !== 'style') return original.call(this, name, options)
    const element = original.call(this, 'span')
    element.hidden = true
    const sheet = new CSSStyleSheet()
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet]
    Object.defineProperty(element, 'textContent', {
      set: (text: string) => sheet.replaceSync(text),
      get: () => '',
    })
    return element
  } as typeof document.createElement
  try {
    return work()
  } finally {
    document.createElement = original
  }
}

const colours = () => {
  const style = getComputedStyle(document.documentElement)
  const of = (name: string): string => style.getPropertyValue(name).trim()
  return {
    background: of('--term-bg'),
    foreground: of('--term-text'),
    cursor: of('--term-accent'),
    selectionBackground: of('--term-select'),
  }
}

/** What a socket is closed with when it may be opened again. */
const TRY_LATER = 1013

type State = 'opening' | 'open' | 'ended' | 'broken'

/** A real terminal in the sandbox. When it ends, what it said stays on the screen. */
export function Terminal({ id, over }: { readonly id: string; readonly over: boolean }) {
  const client = useClient()
  const box = useRef<HTMLDivElement>(null)
  const [state, setState] = useState<State>('opening')
  const [why, setWhy] = useState('')
  // The server said that there is nothing to come back to.
  const [isFinal, setFinal] = useState(false)
  const [turn, setTurn] = useState(0)
  // biome-ignore lint/correctness/useExhaustiveDependencies: `turn` opens another
  useEffect(() => {
    const place = box.current
    if (!place) return
    place.replaceChildren()
    const terminal = withOwnStyles(() => {
      const made = new Xterm({
        fontFamily: 'ui-monospace, "SF Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace',
        fontSize: 13,
        theme: colours(),
        cursorBlink: !matchMedia('(prefers-reduced-motion: reduce)').matches,
        scrollback: 10_000,
        screenReaderMode: true,
      })
      made.open(place)
      return made
    })
    const fit = new FitAddon()
    terminal.loadAddon(fit)
    fit.fit()
    const address = new URL(`/v1/sandboxes/${id}/pty`, location.origin)
    address.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:'
    address.searchParams.set('cols', String(terminal.cols))
    address.searchParams.set('rows', String(terminal.rows))
    const socket = new WebSocket(address, ['ringfence', `console.${client.page}`])
    socket.binaryType = 'arraybuffer'
    const encoder = new TextEncoder()
    let ended = false
    setWhy('')
    socket.onopen = () => {
      setState('open')
      terminal.focus()
    }
    socket.onmessage = ({ data }) => {
      if (typeof data !== 'string') return terminal.write(new Uint8Array(data as ArrayBuffer))
      ended = true
      const outcome = (JSON.parse(data) as { end?: { kind?: string; code?: number } }).end
      setWhy(outcome?.kind === 'exited' ? `exit ${outcome.code}` : (outcome?.kind ?? ''))
    }
    socket.onclose = ({ code, reason }) => {
      setFinal(reason !== '' && code !== TRY_LATER)
      setState(ended && reason === '' ? 'ended' : 'broken')
      if (reason !== '') setWhy(plain(reason))
      terminal.options.disableStdin = true
      terminal.options.cursorBlink = false
    }
    terminal.onData((text) => socket.readyState === WebSocket.OPEN && socket.send(encoder.encode(text)))
    terminal.onResize(({ cols, rows }) => {
      if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ resize: { cols, rows } }))
    })
    const sizes = new ResizeObserver(() => fit.fit())
    sizes.observe(place)
    const onTheme = (): void => {
      terminal.options.theme = colours()
    }
    window.addEventListener('themechange', onTheme)
    return () => {
      window.removeEventListener('themechange', onTheme)
      sizes.disconnect()
      socket.onclose = null
      socket.close()
      terminal.dispose()
    }
  }, [client, id, turn])
  const closed = state === 'ended' || state === 'broken'
  return (
    <Panel
      title="Terminal"
      className="terminal-panel"
      aside={
        <span className="line" role="status">
          <span className="dim">
            {state === 'opening' && 'opening…'}
            {state === 'open' &&
              'a shell inside the wall: what is typed is yours, what it may do is the wall’s'}
            {state === 'ended' && `ended: ${why}`}
            {state === 'broken' && `${why || 'the connection ended'}; what it said is still here`}
          </span>
          {closed && !over && !isFinal && (
            <Button
              onClick={() => {
                setState('opening')
                setTurn(turn + 1)
              }}
            >
              Open another
            </Button>
          )}
        </span>
      }
    >
      <div className="terminal" ref={box} data-own-keys="" />
    </Panel>
  )
}
