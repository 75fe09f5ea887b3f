import { existsSync, readFileSync } from 'node:fs'
import { relative } from 'node:path'
import { agentPath, compose } from '../compose/compose.ts'
import { type Change, Review } from '../host/review/review.ts'
import { isWithin } from '../model/files/path.ts'
import { visible, visibleJson } from '../model/text/visible.ts'
import { parseOptions, usage } from './options/options.ts'
import { err, out } from './terminal/output.ts'
import { unifiedDiff } from './terminal/text-diff.ts'

/** `ringfence review ls|show|apply|drop`: changes of `run --review` that are not applied yet. */
export async function review(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('review', args, {})
  const [what = 'ls', id = '', ...paths] = positionals
  const ringfence = await compose({ config: values.config })
  const { stateDir, cwd } = ringfence
  await ringfence.close()
  if (what === 'ls') return say(values.json, Review.list(stateDir), (ids) => ids.join('\n'))
  const waiting = Review.open(stateDir, agentPath(), id)
  if (what === 'show')
    return say(values.json, await waiting.changes(), (changes) => changesText(changes, cwd))
  if (what === 'apply') return applied(await waiting.apply(chosenOf(paths, cwd)), values.json === true)
  if (what !== 'drop') throw usage('review', `unknown \`${what}\`: use ls, show, apply or drop`)
  waiting.drop()
  return 0
}

function say<T>(json: boolean | undefined, value: T, text: (value: T) => string): number {
  out(`${json ? visibleJson(value) : text(value)}\n`)
  return 0
}

/** Selects changes by path or by parent directory; no paths selects all. */
export const chosenOf =
  (paths: readonly string[], cwd: string): ((change: Change) => boolean) =>
  ({ path }) =>
    paths.length === 0 || [path, relative(cwd, path)].some((name) => paths.some((one) => isWithin(name, one)))

/** Prints the changes that could not be applied; exit code 1 if there are any. */
export function applied(
  refused: readonly { readonly path: string; readonly why: string }[],
  json: boolean,
): number {
  if (json && refused.length === 0) out('{"applied":true,"refused":[]}\n')
  for (const { path, why } of refused) err(`ringfence: not applied: ${visible(path)}: ${visible(why)}\n`)
  return refused.length === 0 ? 0 : 1
}

const SIGNS = { added: 'A', changed: 'M', deleted: 'D', mode: 'm' } as const
/** The diff of a larger file is not shown. */
const SHOWN_BYTES = 512 * 1024

/** One line per change, and a diff for text files. */
export function changesText(changes: readonly Change[], cwd: string): string {
  if (changes.length === 0) return 'no changes'
  return changes
    .map((change) => [lineOf(change, cwd), differenceOf(change, cwd)].filter(Boolean).join('\n'))
    .join('\n')
}

const nameOf = (path: string, cwd: string): string =>
  visible(path.startsWith(`${cwd}/`) ? relative(cwd, path) : path)

function lineOf(change: Change, cwd: string): string {
  const more = [
    change.kind === 'dir'
      ? 'directory'
      : change.kind === 'link'
        ? `link to ${visible(change.target ?? '')}`
        : '',
    change.binary ? `binary, ${change.size} bytes` : '',
    change.kind === 'other' ? 'cannot be applied' : '',
    change.change === 'mode' ? `mode ${change.mode.toString(8)}` : '',
  ].filter(Boolean)
  return `${SIGNS[change.change]} ${nameOf(change.path, cwd)}${more.length > 0 ? ` (${more.join(', ')})` : ''}`
}

function differenceOf({ change, kind, binary, size, path, from }: Change, cwd: string): string {
  const readable = kind === 'file' && !binary && size <= SHOWN_BYTES && from !== undefined && existsSync(from)
  if (!readable || (change !== 'added' && change !== 'changed')) return ''
  const before = change === 'changed' ? readFileSync(path, 'utf8') : ''
  return unifiedDiff(before, readFileSync(from, 'utf8'), nameOf(path, cwd))
    .split('\n')
    .map(visible)
    .join('\n')
}
