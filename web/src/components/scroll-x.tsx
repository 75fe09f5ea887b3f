import { type ReactNode, useEffect, useRef, useState } from 'react'

/** Scrolls sideways what is wider than the page; focusable only then, so that the keyboard can scroll it too. */
export function ScrollX(props: {
  readonly label: string
  readonly className?: string
  readonly children: ReactNode
}) {
  const box = useRef<HTMLDivElement>(null)
  const [overflows, setOverflows] = useState(false)
  useEffect(() => {
    const element = box.current
    if (!element) return
    const observer = new ResizeObserver(() => setOverflows(element.scrollWidth > element.clientWidth))
    observer.observe(element)
    if (element.firstElementChild) observer.observe(element.firstElementChild)
    return () => observer.disconnect()
  }, [])
  const focusable = overflows ? { tabIndex: 0, role: 'group', 'aria-label': props.label } : {}
  return (
    <div ref={box} className={props.className ?? 'scroll-x'} {...focusable}>
      {props.children}
    </div>
  )
}
