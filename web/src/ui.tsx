import { type ReactNode, useEffect, useId, useRef, useState } from 'react'
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
