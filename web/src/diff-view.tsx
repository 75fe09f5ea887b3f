import { diffLines } from './diff.ts'
import { plain } from './format.ts'

const SIGN = { same: ' ', added: '+', removed: '−', gap: '⋯' } as const

/** What a change would change. */
export function DiffView({ before, after }: { readonly before: string; readonly after: string }) {
  const lines = diffLines(before, after)
  const changed = lines.some(({ kind }) => kind === 'added' || kind === 'removed')
  if (!changed)
    return (
      <p className="dim">
        {before === after ? 'Nothing changes.' : 'Only the end of the last line differs.'}
      </p>
    )
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
    <pre className="diff" tabIndex={0} role="group" aria-label="What changes">
      <span className="diff-lines">
        {lines.map(({ kind, text }, index) => (
          <span key={index} className={kind}>
            <span aria-hidden="true">{SIGN[kind]} </span>
            {(kind === 'added' || kind === 'removed') && <span className="hidden">{kind}: </span>}
            {plain(text)}
            {'\n'}
          </span>
        ))}
      </span>
    </pre>
  )
}
