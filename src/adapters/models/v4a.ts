import { SandboxError } from '../../model/errors.ts'

/** The patch format of OpenAI's tools (V4A): file sections whose hunks are found by their context, not by line numbers. */

export type PatchStep =
  | { readonly kind: 'add'; readonly path: string; readonly text: string }
  | { readonly kind: 'delete'; readonly path: string }
  | { readonly kind: 'update'; readonly path: string; readonly moveTo?: string; readonly diff: string }

const HEADER = /^\*\*\* (Add|Update|Delete) File: (.+)$/

/** Parses the text between `*** Begin Patch` and `*** End Patch`; the frame is optional, everything else is strict. */
export function parsePatch(patch: string): readonly PatchStep[] {
  const lines = unframed(patch.replaceAll('\r\n', '\n').split('\n'))
  const steps: PatchStep[] = []
  let at = 0
  while (at < lines.length) {
    const header = HEADER.exec(lines[at] as string)
    if (!header) {
      if ((lines[at] as string).trim() === '') {
        at++
        continue
      }
      throw bad(
        `expected \`*** Add|Update|Delete File: path\`, got \`${(lines[at] as string).slice(0, 80)}\``,
      )
    }
    let end = at + 1
    while (end < lines.length && !HEADER.test(lines[end] as string)) end++
    steps.push(stepOf(header[1] as string, (header[2] as string).trim(), lines.slice(at + 1, end)))
    at = end
  }
  if (steps.length === 0) throw bad('the patch is empty')
  return steps
}

function unframed(lines: readonly string[]): readonly string[] {
  const begin = lines.findIndex((line) => line.trim() === '*** Begin Patch')
  const end = lines.findLastIndex((line) => line.trim() === '*** End Patch')
  return lines.slice(begin + 1, end < 0 ? lines.length : end)
}

function stepOf(kind: string, path: string, body: readonly string[]): PatchStep {
  if (kind === 'Delete') return { kind: 'delete', path }
  if (kind === 'Add') return { kind: 'add', path, text: addedText(body.join('\n')) }
  const move = /^\*\*\* Move to: (.+)$/.exec(body[0] ?? '')
  const diff = body.slice(move ? 1 : 0).join('\n')
  return { kind: 'update', path, diff, ...(move ? { moveTo: (move[1] as string).trim() } : {}) }
}

/** The content of a new file; each line begins with `+`. */
export function addedText(diff: string): string {
  const lines = diff.split('\n')
  if (lines.at(-1) === '') lines.pop()
  const wrong = lines.find((line) => !line.startsWith('+'))
  if (wrong !== undefined) throw bad(`a line of a new file must begin with +, got \`${wrong.slice(0, 80)}\``)
  return lines.map((line) => `${line.slice(1)}\n`).join('')
}

type Hunk = {
  readonly anchors: readonly string[]
  readonly before: readonly string[]
  readonly after: readonly string[]
  readonly atEnd: boolean
}

/** Applies a diff; throws, with the lines it looked for, if a hunk does not match. */
export function applyDiff(text: string, diff: string): string {
  const newline = text.includes('\r\n') ? '\r\n' : '\n'
  const lines = text.replaceAll('\r\n', '\n').split('\n')
  let from = 0
  for (const hunk of hunksOf(diff)) {
    for (const anchor of hunk.anchors) from = findAnchor(lines, anchor, from)
    const at = findHunk(lines, hunk, from)
    lines.splice(at, hunk.before.length, ...hunk.after)
    from = at + hunk.after.length
  }
  return lines.join(newline)
}

function hunksOf(diff: string): readonly Hunk[] {
  const hunks: { anchors: string[]; before: string[]; after: string[]; atEnd: boolean }[] = []
  const open = () => {
    const made = { anchors: [] as string[], before: [] as string[], after: [] as string[], atEnd: false }
    hunks.push(made)
    return made
  }
  const lines = diff.split('\n')
  if (lines.at(-1) === '') lines.pop()
  for (const line of lines) {
    const last = hunks.at(-1)
    const begun = last !== undefined && (last.before.length > 0 || last.after.length > 0)
    if (line === '*** End of File') {
      if (last) last.atEnd = true
    } else if (line.startsWith('@@')) {
      const hunk = begun || !last ? open() : last
      const anchor = line.slice(2).trim()
      if (anchor !== '') hunk.anchors.push(anchor)
    } else addLine(last ?? open(), line)
  }
  if (hunks.length === 0) throw bad('the diff changes nothing')
  return hunks
}

function addLine(hunk: { before: string[]; after: string[] }, line: string): void {
  const [mark, rest] = line === '' ? [' ', ''] : [line[0], line.slice(1)]
  if (mark !== ' ' && mark !== '+' && mark !== '-')
    throw bad(`a line of a diff must begin with a space, + or -, got \`${line.slice(0, 80)}\``)
  if (mark !== '+') hunk.before.push(rest)
  if (mark !== '-') hunk.after.push(rest)
}

function findAnchor(lines: readonly string[], anchor: string, from: number): number {
  const at = lines.findIndex((line, index) => index >= from && line.trim() === anchor)
  if (at >= 0) return at + 1
  throw doesNotApply(`no line \`${anchor.slice(0, 120)}\` after line ${from}`)
}

/** Matches exactly, then without trailing whitespace, then trimmed, because models lose whitespace. */
const LIKENESS: readonly ((line: string) => string)[] = [
  (line) => line,
  (line) => line.trimEnd(),
  (line) => line.trim(),
]

function findHunk(lines: readonly string[], { before, atEnd }: Hunk, from: number): number {
  if (before.length === 0) return from > 0 ? from : lines.at(-1) === '' ? lines.length - 1 : lines.length
  for (const like of LIKENESS) {
    const wanted = before.map(like)
    const fits = (at: number): boolean =>
      wanted.every((line, index) => like(lines[at + index] ?? '') === line)
    const last = lines.length - before.length
    const starts = Array.from({ length: Math.max(0, last + 1 - from) }, (_, index) => from + index)
    const at = atEnd ? starts.findLast(fits) : starts.find(fits)
    if (at !== undefined) return at
  }
  throw doesNotApply(`these lines were not found after line ${from}:\n${before.join('\n').slice(0, 400)}`)
}

const bad = (message: string): SandboxError =>
  new SandboxError('invalid-input', `not a V4A patch: ${message}`, {
    hint: 'the form is *** Begin Patch / *** Update File: path / @@ / lines with space, - or + / *** End Patch',
  })

const doesNotApply = (message: string): SandboxError =>
  new SandboxError('conflict', `the patch does not apply: ${message}`, {
    hint: 'read the file again and make the context lines match it; nothing was changed',
  })
