import { type Dirent, lstatSync, readdirSync, realpathSync, statSync } from 'node:fs'
import { basename, dirname, join, resolve } from 'node:path'
import { readText } from '../system.ts'
import { type GitSetting, parseGitConfig, programWords } from './git-config.ts'

/**
 * Paths in a writable directory that a protected name refers to: what a repository's configuration runs or includes, the
 * directory that a `.git` file names, the target of a symbolic link. Writing there would change what is protected.
 */
export type Pins = {
  /** Real git directories with another name or location than `.git`. */
  readonly repositories: readonly string[]
  /** Files and directories. */
  readonly files: readonly string[]
}

/** Limits and exceptions of the search. */
export type PinOptions = {
  readonly home: string
  /** The user's global git configuration files. */
  readonly globals: readonly string[]
  /** Whether a name is protected by itself, so that a symbolic link of that name protects its target. */
  readonly isProtected: (name: string) => boolean
  /** Directories that are not searched. */
  readonly skip: readonly string[]
}

/** A complete search would cost more than starting a sandbox; deeper directories are recognized by their shape only. */
const MOST_DIRECTORIES = 1000
const MOST_INCLUDES = 64

type Repository = { readonly tree: string; readonly gitDir: string; readonly common: string }

/** Searches a directory for paths that protected names lead to. */
export function pinsOf(directory: string, options: PinOptions): Pins {
  const root = realOf(directory)
  if (root === undefined) return { repositories: [], files: [] }
  const { dots, links } = lookInto(root, options)
  const repositories = dots.flatMap(repositoryOf)
  const files = repositories.flatMap((repository) => filesOf(repository, options))
  const elsewhere = repositories.flatMap(({ gitDir, common }) => [gitDir, common])
  return {
    repositories: [...new Set(elsewhere)].filter((path) => basename(path) !== '.git'),
    files: [...new Set([...files, ...links])],
  }
}

/** Every `.git` from the directory down, the nearest first, and the targets of symbolic links with a protected name. */
function lookInto(root: string, { isProtected, skip }: PinOptions): { dots: string[]; links: string[] } {
  const [dots, links, queue]: [string[], string[], string[]] = [[], [], [root]]
  for (let at = 0; at < queue.length && at < MOST_DIRECTORIES; at++) {
    const dir = queue[at] as string
    for (const entry of entriesOf(dir)) {
      const path = join(dir, entry.name)
      if (entry.name === '.git') dots.push(path)
      else if (entry.isSymbolicLink() && isProtected(entry.name)) links.push(realOf(path) ?? path)
      else if (entry.isDirectory() && !skip.includes(entry.name)) queue.push(path)
    }
  }
  return { dots, links }
}

/** Follows git's pointers: `.git` as a symbolic link or as a file with `gitdir:`, and from there `commondir`. */
function repositoryOf(dot: string): readonly Repository[] {
  const tree = dirname(dot)
  const stat = lstatSync(dot, { throwIfNoEntry: false })
  const named = stat?.isFile() ? /^gitdir: (.*)$/m.exec(readText(dot) ?? '')?.[1]?.trim() : dot
  const gitDir = named === undefined ? undefined : realOf(resolve(tree, named))
  if (gitDir === undefined) return []
  const shared = readText(join(gitDir, 'commondir'))?.trim()
  const common = (shared === undefined ? undefined : realOf(resolve(gitDir, shared))) ?? gitDir
  return [{ tree, gitDir, common }, ...modulesOf(join(common, 'modules'), 0)]
}

/** The repositories of submodules; each configuration names its working tree. */
function modulesOf(dir: string, depth: number): readonly Repository[] {
  if (depth > 4) return []
  return entriesOf(dir)
    .filter((entry) => entry.isDirectory())
    .flatMap(({ name }) => {
      const gitDir = join(dir, name)
      const config = readText(join(gitDir, 'config'))
      if (config === undefined) return modulesOf(gitDir, depth + 1)
      const tree = parseGitConfig(config).find((setting) => setting.name === 'core.worktree')?.value
      return [{ tree: resolve(gitDir, tree ?? '.'), gitDir, common: gitDir }]
    })
}

function filesOf({ tree, gitDir, common }: Repository, { globals, home }: PinOptions): readonly string[] {
  const found = new Set<string>()
  const queue = [join(common, 'config'), join(gitDir, 'config.worktree'), ...globals]
  for (let at = 0; at < queue.length && at < MOST_INCLUDES; at++) {
    const file = queue[at] as string
    for (const setting of parseGitConfig(readText(file) ?? '')) {
      const target = targetOf(setting, { file, tree, home })
      if (target !== undefined && setting.name.startsWith('include')) queue.push(target)
      const paths =
        target === undefined ? programsOf(setting, tree, home) : hookPaths(realPathOf(target), tree)
      for (const path of paths) found.add(path)
    }
  }
  return [...found]
}

type Where = { readonly file: string; readonly tree: string; readonly home: string }

/** The file or directory that a setting names. */
function targetOf({ name, value }: GitSetting, { file, tree, home }: Where): string | undefined {
  const path = value.startsWith('~/') ? join(home, value.slice(2)) : value
  if (name === 'include.path' || (name.startsWith('includeif.') && name.endsWith('.path')))
    return resolve(dirname(file), path)
  return ['core.hookspath', 'core.attributesfile', 'init.templatedir'].includes(name)
    ? resolve(tree, path)
    : undefined
}

const programsOf = (setting: GitSetting, tree: string, home: string): readonly string[] =>
  programWords(setting)
    .map((word) => resolve(tree, word.startsWith('~/') ? join(home, word.slice(2)) : word))
    .filter((path) => isFile(path))
    .map(realPathOf)

const HOOKS =
  `applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit prepare-commit-msg commit-msg post-commit
  pre-rebase post-checkout post-merge pre-push pre-receive update proc-receive post-receive post-update
  reference-transaction push-to-checkout pre-auto-gc post-rewrite sendemail-validate fsmonitor-watchman
  post-index-change`.split(/\s+/)

/** Hooks in the root of the working tree are protected one by one; otherwise nothing in it could be written. */
const hookPaths = (target: string, tree: string): readonly string[] =>
  `${realPathOf(tree)}/`.startsWith(`${target === '/' ? '' : target}/`)
    ? HOOKS.map((name) => join(target, name))
    : [target]

/** The real path, also of a path that does not exist yet. */
function realPathOf(path: string): string {
  const real = realOf(path)
  return real ?? (dirname(path) === path ? path : join(realPathOf(dirname(path)), basename(path)))
}

const isFile = (path: string): boolean => {
  try {
    return statSync(path).isFile()
  } catch {
    return false
  }
}

function realOf(path: string): string | undefined {
  try {
    return realpathSync(path)
  } catch {
    return undefined
  }
}

function entriesOf(directory: string): Dirent[] {
  try {
    return readdirSync(directory, { withFileTypes: true })
  } catch {
    // Unreadable for us means unreadable for the sandbox, which has no more permissions than we have.
    return []
  }
}
