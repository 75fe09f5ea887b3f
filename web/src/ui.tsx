import { type ReactNode, useEffect, useId, useRef, useState, useSyncExternalStore } from 'react'
import { hrefOf, onLink } from './route.ts'
import { said } from './session.ts'

/** The few parts that everything is made of. */

export function Link(props: {
  readonly to: string
  readonly className?: string
  readonly children: ReactNode
  readonly current?: boolean
  readonly title?: string
}) {
  const { to, className, children, current, title } = props
  return (
    <a
      href={hrefOf(to)}
      className={className}
      onClick={onLink}
      title={title}
      aria-current={current ? 'page' : undefined}
    >
      {children}
    </a>
  )
}

export function Page(props: {
  readonly title: string
  readonly aside?: ReactNode
  readonly children: ReactNode
}) {
  const heading = useRef<HTMLHeadingElement>(null)
  useEffect(() => {
    document.title = `${props.title} · Ringfence`
    heading.current?.focus({ preventScroll: true })
  }, [props.title])
  return (
    <>
      <header className="page-head">
        <h1 ref={heading} tabIndex={-1}>
          {props.title}
        </h1>
        <div className="page-aside">{props.aside}</div>
      </header>
      {props.children}
    </>
  )
}

export function Panel(props: {
  readonly title: ReactNode
  readonly aside?: ReactNode
  readonly children: ReactNode
  readonly className?: string
}) {
  const id = useId()
  return (
    <section className={`panel ${props.className ?? ''}`} aria-labelledby={id}>
      <div className="panel-head">
        <h2 id={id}>{props.title}</h2>
        {props.aside}
      </div>
      {props.children}
    </section>
  )
}

/** A word with its sign: colour is never alone. */
const SIGNS: Readonly<Record<string, readonly [sign: string, tone: string]>> = {
  requested: ['◌', 'dim'],
  provisioning: ['◌', 'accent'],
  ready: ['●', 'good'],
  executing: ['▶', 'accent'],
  running: ['▶', 'accent'],
  paused: ['‖', 'warn'],
  destroying: ['◍', 'dim'],
  destroyed: ['○', 'dim'],
  failed: ['✕', 'bad'],
  ended: ['○', 'dim'],
  refused: ['✕', 'bad'],
  unfinished: ['◌', 'warn'],
  pending: ['?', 'warn'],
  approved: ['✓', 'good'],
  rejected: ['✕', 'bad'],
  expired: ['◷', 'dim'],
  deny: ['✕', 'bad'],
  block: ['✕', 'bad'],
  ask: ['?', 'warn'],
  sandbox: ['▣', 'accent'],
  allow: ['✓', 'good'],
  critical: ['✕', 'bad'],
  warning: ['!', 'warn'],
  info: ['i', 'dim'],
  stops: ['✕', 'bad'],
  weakens: ['!', 'warn'],
  tells: ['i', 'dim'],
  available: ['●', 'good'],
  missing: ['✕', 'bad'],
  changed: ['!', 'warn'],
  unchanged: ['✓', 'good'],
  revoked: ['✕', 'dim'],
  active: ['●', 'good'],
}

export function Badge({ word, title }: { readonly word: string; readonly title?: string }) {
  const [sign, tone] = SIGNS[word] ?? ['·', 'dim']
  return (
    <span className={`badge ${tone}`} title={title}>
      <span aria-hidden="true">{sign}</span> {word}
    </span>
  )
}

export function Button(props: {
  readonly onClick: () => void
  readonly children: ReactNode
  readonly tone?: 'main' | 'bad' | 'quiet'
  readonly disabled?: boolean
  readonly hint?: string
  readonly title?: string
  readonly submit?: boolean
}) {
  return (
    <button
      type={props.submit ? 'submit' : 'button'}
      className={`button ${props.tone ?? ''}`}
      onClick={props.onClick}
      disabled={props.disabled}
      title={props.title}
      aria-keyshortcuts={props.hint}
    >
      {props.children}
      {props.hint && <kbd>{props.hint}</kbd>}
    </button>
  )
}

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
            hint="Enter"
            disabled={busy || props.disabled === true}
          >
            {props.yes}
          </Button>
        </div>
      </form>
    </Dialog>
  )
}

export function Field(props: {
  readonly label: string
  readonly value: string
  readonly onChange: (value: string) => void
  readonly placeholder?: string
  readonly hint?: ReactNode
  readonly lines?: number
  readonly mono?: boolean
  readonly type?: 'text' | 'password' | 'search'
  readonly autoFocus?: boolean
  readonly hideLabel?: boolean
  readonly onEnter?: () => void
  readonly className?: string
}) {
  const id = useId()
  const shared = {
    id,
    value: props.value,
    placeholder: props.placeholder,
    spellCheck: false,
    autoComplete: 'off',
    autoCapitalize: 'off',
    autoFocus: props.autoFocus,
    className: props.mono ? 'mono' : '',
    'aria-describedby': props.hint ? `${id}-hint` : undefined,
  }
  return (
    <div className={`field ${props.className ?? ''}`}>
      <label htmlFor={id} className={props.hideLabel ? 'hidden' : ''}>
        {props.label}
      </label>
      {props.lines ? (
        <textarea {...shared} rows={props.lines} onChange={(event) => props.onChange(event.target.value)} />
      ) : (
        <input
          {...shared}
          type={props.type ?? 'text'}
          onChange={(event) => props.onChange(event.target.value)}
          onKeyDown={(event) => {
            if (event.key === 'Enter' && props.onEnter) {
              event.preventDefault()
              props.onEnter()
            } else if (event.key === 'Escape') event.currentTarget.blur()
          }}
        />
      )}
      {props.hint && (
        <div className="hint" id={`${id}-hint`}>
          {props.hint}
        </div>
      )}
    </div>
  )
}

export function Choice<T extends string>(props: {
  readonly label: string
  readonly value: T
  readonly options: readonly (readonly [value: T, name: string])[]
  readonly onChange: (value: T) => void
  readonly hideLabel?: boolean
}) {
  const id = useId()
  return (
    <div className="field">
      <label htmlFor={id} className={props.hideLabel ? 'hidden' : ''}>
        {props.label}
      </label>
      <select id={id} value={props.value} onChange={(event) => props.onChange(event.target.value as T)}>
        {props.options.map(([value, name]) => (
          <option value={value} key={value}>
            {name}
          </option>
        ))}
      </select>
    </div>
  )
}

export function Tabs(props: {
  readonly label: string
  readonly base: string
  readonly current: string
  readonly tabs: readonly (readonly [path: string, name: string, mark?: string | number])[]
}) {
  return (
    <nav className="tabs" aria-label={props.label}>
      {props.tabs.map(([path, name, mark]) => (
        <Link
          to={`${props.base}${path === '' ? '' : `/${path}`}`}
          key={path}
          current={props.current === path}
        >
          {name}
          {mark !== undefined && mark !== 0 && <span className="mark">{mark}</span>}
        </Link>
      ))}
    </nav>
  )
}

/** Nothing yet, and what to do about it. */
export function Empty(props: {
  readonly title: string
  readonly children?: ReactNode
  readonly command?: string
}) {
  return (
    <div className="empty">
      <strong>{props.title}</strong>
      {props.children && <p>{props.children}</p>}
      {props.command && <Code text={props.command} />}
    </div>
  )
}

/** A command to copy. */
export function Code({ text }: { readonly text: string }) {
  const [copied, setCopied] = useState(false)
  return (
    <div className="code">
      <code>{text}</code>
      <button
        type="button"
        className="copy"
        onClick={() => {
          void navigator.clipboard?.writeText(text).then(() => setCopied(true))
        }}
        aria-label={`copy ${text}`}
      >
        {copied ? 'copied' : 'copy'}
      </button>
    </div>
  )
}

// — messages ———————————————————————————————————————————————

type Message = { readonly id: number; readonly text: string; readonly bad: boolean }
let messages: readonly Message[] = []
let nextMessage = 1
const hearers = new Set<() => void>()
const setMessages = (next: readonly Message[]): void => {
  messages = next
  for (const hear of hearers) hear()
}
const MESSAGE_MS = 6000

export function tell(text: string, bad = false): void {
  const id = nextMessage++
  setMessages([...messages.slice(-3), { id, text, bad }])
  setTimeout(() => setMessages(messages.filter((one) => one.id !== id)), MESSAGE_MS)
}

/** Does something and says what went wrong; tells whether it went well. */
export async function attempt(work: () => Promise<unknown>, done?: string): Promise<boolean> {
  try {
    await work()
    if (done) tell(done)
    return true
  } catch (error) {
    tell(said(error), true)
    return false
  }
}

export function Messages() {
  const shown = useSyncExternalStore(
    (hear) => {
      hearers.add(hear)
      return () => hearers.delete(hear)
    },
    () => messages,
  )
  return (
    <div className="messages" role="status" aria-live="polite">
      {shown.map(({ id, text, bad }) => (
        <div key={id} className={bad ? 'message bad' : 'message'}>
          <span aria-hidden="true">{bad ? '✕ ' : '✓ '}</span>
          {text}
        </div>
      ))}
    </div>
  )
}

/** The time, so that ages grow. */
const ticks = new Set<() => void>()
let now = Date.now()
setInterval(() => {
  now = Date.now()
  for (const tick of ticks) tick()
}, 1000)
export function useNow(): number {
  return useSyncExternalStore(
    (tick) => {
      ticks.add(tick)
      return () => ticks.delete(tick)
    },
    () => now,
  )
}

/** Loads something when its name changes; `again` loads it anew and keeps what is shown meanwhile. */
export function useLoad<T>(
  name: string,
  load: () => Promise<T>,
): { readonly value?: T; readonly error?: string; readonly again: () => void } {
  const [state, setState] = useState<{ readonly value?: T; readonly error?: string; readonly name?: string }>(
    {},
  )
  const [turn, setTurn] = useState(0)
  const work = useRef(load)
  work.current = load
  // biome-ignore lint/correctness/useExhaustiveDependencies: `turn` asks for it anew
  useEffect(() => {
    let over = false
    work.current().then(
      (value) => !over && setState({ value, name }),
      (error: unknown) => !over && setState((before) => ({ ...before, error: said(error), name })),
    )
    return () => {
      over = true
    }
  }, [name, turn])
  return { ...(state.name === name ? state : {}), again: () => setTurn((before) => before + 1) }
}
