import { useMemo } from 'react'
import { type DiffHunk, type DiffLine, diffHunks } from '../../../src/model/text/text-diff.ts'
import { safeText } from '../format.ts'

const SIGN = { same: ' ', added: '+', removed: '−' } as const

/** The differences between two texts, line by line. */
export function DiffView({ before, after }: { readonly before: string; readonly after: string }) {
  const hunks = useMemo(() => diffHunks(before, after), [before, after])
  if (hunks.length === 0)
    return (
      <p className="dim">
        {before === after ? 'No changes.' : 'Only the newline at the end of the file differs.'}
      </p>
    )
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable by keyboard
    <pre className="diff" tabIndex={0} role="group" aria-label="Changes to the text">
      <span className="diff-lines">
        {hunks.map((hunk) => (
          <Hunk key={hunk.oldStart} hunk={hunk} />
        ))}
      </span>
    </pre>
  )
}

function Hunk({ hunk }: { readonly hunk: DiffHunk }) {
  return (
    <>
      {hunk.oldStart > 1 && <span className="gap">{'⋯\n'}</span>}
      {hunk.lines.map((line, index) => (
        <Line key={index} line={line} />
      ))}
    </>
  )
}

function Line({ line: { kind, text } }: { readonly line: DiffLine }) {
  return (
    <span className={kind}>
      <span aria-hidden="true">{SIGN[kind]} </span>
      {kind !== 'same' && <span className="hidden">{kind}: </span>}
      {safeText(text)}
      {'\n'}
    </span>
  )
}
