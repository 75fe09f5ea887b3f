import { type ReactNode, useEffect, useRef } from 'react'
import { capitalize } from '../format.ts'

/** A page with its heading, which takes the focus and names the browser tab. */
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

/** Shown until something has loaded. */
export const Loading = ({ text = 'Loading…' }: { readonly text?: string }) => (
  <p className="dim" role="status">
    {text}
  </p>
)

/** An error, announced to screen readers. */
export function ErrorMessage({ text }: { readonly text: string | undefined }) {
  if (!text) return null
  return (
    <p role="alert" className="error">
      <span aria-hidden="true">✕ </span>
      {capitalize(text)}
    </p>
  )
}
