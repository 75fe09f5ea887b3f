import { lstatSync, readdirSync, readlinkSync, realpathSync, statSync } from 'node:fs'
import { basename, dirname, join, resolve } from 'node:path'
import { isWithin } from '../../model/files/path.ts'

/**
 * Finds a symbolic link in the workspace that a command line on the host would follow to a file outside. The policy judges
 * the text of a line and looks at no file, so it cannot know that `notes.txt` is a link to a key.
 *
 * SECURITY: a sandbox can create such a link; it only becomes harmful on the host. Every word of the line counts as a
 * path, from every directory that the line could be in, because a missed path is worse than a line that runs in a sandbox.
 */
export function outwardLink(
  words: readonly string[],
  { workspace, cwd }: { readonly workspace: string; readonly cwd: string },
): string | undefined {
  const root = realOr(workspace)
  const paths = [...new Set(words.flatMap(pathsIn))]
  if (paths.length > MAX_WORDS) return paths[0]
  const directories = [cwd, ...paths.map((path) => resolve(cwd, path)).filter(isDirectory)]
  for (const directory of new Set(directories.slice(0, MAX_DIRECTORIES)))
    for (const path of paths)
      if (expanded(directory, path).some((one) => leadsOut(one, workspace, root))) return path
  return undefined
}

const MAX_WORDS = 512
const MAX_DIRECTORIES = 16
const MAX_ENTRIES = 2048
const MAX_LINKS = 40

/** The word itself, the value of `--option=value`, and the rest of `-ovalue`. */
function pathsIn(word: string): readonly string[] {
  const value = /^[^=]*=(.+)$/s.exec(word)?.[1]
  const attached = /^-\w(.+)$/s.exec(word)?.[1]
  return [word, value, attached].filter((text): text is string => text !== undefined && text !== '')
}

/** The paths that a word stands for; an unfinished expansion contains the directory `/`, which leads out. */
function expanded(directory: string, word: string): readonly string[] {
  if (!/[*?[]/.test(word)) return prefixesOf(word).map((path) => resolve(directory, path))
  let found: readonly string[] = [word.startsWith('/') ? '/' : directory]
  for (const segment of word.split('/').filter((part) => part !== '')) {
    found = /[*?[]/.test(segment)
      ? found.flatMap((one) => entriesOf(one).map((name) => join(one, name)))
      : found.map((one) => join(one, segment))
    if (found.length > MAX_ENTRIES) return ['/']
  }
  return found
}

/** SECURITY: `link/../x` is beside the target of the link, so each part before a `..` counts. */
function prefixesOf(word: string): readonly string[] {
  const parts = word.split('/')
  const before = parts.flatMap((part, at) => (part === '..' && at > 0 ? [parts.slice(0, at).join('/')] : []))
  return [...before.filter((path) => path !== ''), word]
}

/** Whether a path in the workspace ends at a file outside, whether the file exists or not. */
function leadsOut(path: string, workspace: string, root: string): boolean {
  if (path === '/') return true
  if (!isWithin(path, workspace) && !isWithin(path, root)) return false
  return !isWithin(finalTarget(path), root)
}

function finalTarget(path: string): string {
  let current = path
  for (let links = 0; links < MAX_LINKS; links++) {
    const parent = realOr(dirname(current))
    const here = join(parent, basename(current))
    if (!isLink(here)) return here
    current = resolve(parent, readlinkSync(here))
  }
  return '/'
}

function isLink(path: string): boolean {
  try {
    return lstatSync(path).isSymbolicLink()
  } catch {
    return false
  }
}

function realOr(path: string): string {
  try {
    return realpathSync(path)
  } catch {
    return path
  }
}

const isDirectory = (path: string): boolean => {
  try {
    return statSync(path).isDirectory()
  } catch {
    return false
  }
}

function entriesOf(directory: string): readonly string[] {
  try {
    return readdirSync(directory)
  } catch {
    return []
  }
}
