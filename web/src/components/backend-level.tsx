import { isIsolating } from '../format.ts'

/** How strongly a backend isolates; one that does not is marked. */
export function BackendLevel(props: { readonly backend: string | null; readonly level: string | null }) {
  if (props.backend !== null && !isIsolating(props.backend))
    return <span className="warn-text">! no isolation</span>
  return <span className="dim">{props.level}</span>
}
