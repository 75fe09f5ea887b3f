import { boxed } from '../../finding.ts'
import type { Option } from '../../options.ts'
import { absolute, pathFindings } from '../../paths.ts'
import { ANY, patternText } from '../../shell/unknown-text.ts'
import type { Call } from '../../walk.ts'

/**
 * Which repository git uses, and which of its files it shows.
 *
 * SECURITY: the settings of a repository start programs (fsmonitor, filters, pagers), and any directory that a sandbox can
 * write may be a bare repository with its own settings. So git runs on the host only at the workspace's root, and only if
 * the caller makes planted repositories harmless: `ringfence auto` does it with `INERT_GIT`, the hooks rely on the root's
 * own `.git`, whose settings no sandbox can change.
 */

const SETTINGS: readonly (readonly [string, string])[] = [
  ['safe.bareRepository', 'explicit'],
  ['core.fsmonitor', 'false'],
  ['core.hooksPath', '/dev/null'],
  ['core.pager', 'cat'],
  ['core.untrackedCache', 'false'],
  ['log.showSignature', 'false'],
  ['protocol.ext.allow', 'never'],
]

/** Variables that stop git from using a planted repository, its file system monitor, hooks and pager. */
export const INERT_GIT: Readonly<Record<string, string>> = Object.fromEntries([
  ['GIT_CONFIG_COUNT', String(SETTINGS.length)],
  ...SETTINGS.flatMap(([key, value], index) => [
    [`GIT_CONFIG_KEY_${index}`, key],
    [`GIT_CONFIG_VALUE_${index}`, value],
  ]),
  ['GIT_PAGER', 'cat'],
  ['GIT_OPTIONAL_LOCKS', '0'],
  ['GIT_NO_LAZY_FETCH', '1'],
])

/** Git runs on the host only if it uses the repository at the workspace's root, and that repository is harmless. */
export function judgeRepository({ walk, scope, node }: Call, options: readonly Option[]): void {
  const moves = options.filter(({ name }) => name === '-C').map(({ value }) => value ?? '')
  const { workspace, inertGit } = walk.context
  const starts = scope.cwds.length === 0 ? [ANY] : scope.cwds
  const directories = starts.map((cwd) => moves.reduce((at, move) => absolute(move, at), cwd))
  if (directories.some((directory) => directory !== absolute('.', workspace)))
    node.findings.push(boxed('git/repository', 'uses another repository than that of the workspace'))
  else if (!inertGit)
    node.findings.push(boxed('git/repository', 'uses a repository whose settings can start programs'))
}

/** Sub-commands that print file contents. */
const SHOWS = new Set(
  'show log diff grep cat-file blame annotate archive whatchanged range-diff format-patch diff-tree diff-index diff-files difftool stash checkout-index'.split(
    ' ',
  ),
)

/** `git show HEAD:.env`, `git log -p -- .env`: a committed secret is as sensitive as the file. */
export function judgeContents(call: Call, sub: string, args: readonly string[]): void {
  if (!SHOWS.has(sub)) return
  for (const arg of args) {
    if (arg[0] === '-') continue
    const path = arg.slice(arg.lastIndexOf(':') + 1).replace(/^\([^)]*\)|^[!^]/, '')
    if (path === '' || /^[*/]+$/.test(path)) continue
    const found = pathFindings(call.walk, call.scope, patternText(path.replace(/^(\*\*?\/)+/, '')), 'read')
    call.node.findings.push(
      ...found.filter(({ rule, action }) => rule.startsWith('secrets/') && action !== 'sandbox'),
    )
  }
}
