import type { ReactNode } from 'react'
import { followLink, hrefOf } from '../browser/route.ts'

/** A link to another page of the console. */
export function Link(props: {
  readonly to: string
  readonly className?: string
  readonly children: ReactNode
  readonly current?: boolean
}) {
  return (
    <a
      href={hrefOf(props.to)}
      className={props.className}
      onClick={followLink}
      aria-current={props.current ? 'page' : undefined}
    >
      {props.children}
    </a>
  )
}

/** A link to one record of the audit log. */
export const RecordLink = ({ seq }: { readonly seq: number }) => (
  <Link to={`/trail?seq=${seq}`} className="dim">
    #{seq}
  </Link>
)
