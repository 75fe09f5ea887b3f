import { type ReactNode, type RefObject, useEffect, useId, useRef, useState } from 'react'
import { hrefOf, onLink } from './route.ts'

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
  'waiting for you': ['?', 'warn'],
  waiting: ['?', 'warn'],
  paused: ['‖', 'warn'],
  destroying: ['◍', 'dim'],
  destroyed: ['○', 'dim'],
  failed: ['✕', 'bad'],
  started: ['▶', 'accent'],
  ended: ['○', 'dim'],
  refused: ['✕', 'bad'],
  unfinished: ['◌', 'warn'],
  pending: ['?', 'warn'],
  approved: ['✓', 'good'],
  rejected: ['✕', 'bad'],
  applying: ['◌', 'accent'],
  applied: ['✓', 'good'],
  dropped: ['○', 'dim'],
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
  note: ['i', 'dim'],
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
      aria-keyshortcuts={props.hint?.replace('Ctrl ', 'Control+')}
    >
      {props.children}
      {props.hint && <kbd>{props.hint}</kbd>}
    </button>
  )
}

export function Tabs(props: {
  readonly label: string
  readonly base: string
  readonly current: string
  readonly tabs: readonly (readonly [path: string, name: string, mark?: string | number])[]
}) {
  const row = useCurrentInView(props.current)
  return (
    <nav className="tabs" aria-label={props.label} ref={row}>
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

/** What may be wider than the page. Where it is, the keyboard can scroll it too. */
export function ScrollX(props: {
  readonly label: string
  readonly className?: string
  readonly children: ReactNode
}) {
  const box = useRef<HTMLDivElement>(null)
  const [wide, setWide] = useState(false)
  useEffect(() => {
    const element = box.current
    if (!element) return
    const watch = new ResizeObserver(() => setWide(element.scrollWidth > element.clientWidth))
    watch.observe(element)
    if (element.firstElementChild) watch.observe(element.firstElementChild)
    return () => watch.disconnect()
  }, [])
  const reach = wide ? { tabIndex: 0, role: 'group', 'aria-label': props.label } : {}
  return (
    <div ref={box} className={props.className ?? 'scroll-x'} {...reach}>
      {props.children}
    </div>
  )
}

/** Brings the current one of a row of links into view, where the row is longer than the screen. */
export function useCurrentInView(current: string): RefObject<HTMLElement | null> {
  const row = useRef<HTMLElement>(null)
  // biome-ignore lint/correctness/useExhaustiveDependencies: looks again when another one is current
  useEffect(() => {
    row.current?.querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'center' })
  }, [current])
  return row
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
