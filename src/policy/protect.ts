import type { Protection } from '../model/plan.ts'

/**
 * Names below a writable mount that would run code outside the sandbox later: when a person next uses git, opens
 * an editor or a shell there, or starts another agent. They cannot be changed or created from inside.
 */
export const PROTECTION: Protection = {
  // git looks for `.git` in every directory on the way up, so creating one anywhere plants a repository whose
  // configuration runs programs (`core.fsmonitor`, hooks). An existing one may not be moved away and replaced.
  roots: ['.git'],
  // Inside an existing repository commits, branches and the index stay writable; what names programs does not.
  inner: [
    '.git/hooks',
    '.git/config',
    '.git/config.worktree',
    '.git/commondir',
    '.git/modules',
    '.git/worktrees',
    '.git/info/attributes',
    '.git/objects/info/alternates',
    '.jj/repo/config.toml',
    '.hg/hgrc',
  ],
  names: [
    // ours
    '.ringfence',
    'ringfence.toml',
    // git's user-level files, when a home directory or dotfile tree is the workspace
    '.gitconfig',
    '.gitmodules',
    '.hg',
    // editors
    '.vscode',
    '.idea',
    '.zed',
    '.fleet',
    '.nvim.lua',
    '.nvimrc',
    '.exrc',
    '.vimrc',
    '.dir-locals.el',
    // hooks that package managers and direnv run
    '.husky',
    '.envrc',
    '.pre-commit-config.yaml',
    '.lefthook.yml',
    'lefthook.yml',
    // shells
    '.bashrc',
    '.bash_profile',
    '.bash_login',
    '.bash_logout',
    '.bash_aliases',
    '.profile',
    '.zshrc',
    '.zshenv',
    '.zprofile',
    '.zlogin',
    '.zlogout',
    '.kshrc',
    '.cshrc',
    '.tcshrc',
    '.login',
    '.inputrc',
    '.ripgreprc',
    '.tmux.conf',
    '.screenrc',
    '.gdbinit',
    '.lldbinit',
    '.mise.toml',
    '.tool-versions',
    // agents
    '.mcp.json',
    '.claude',
    '.codex',
    '.agents',
    '.cursor',
    '.gemini',
    '.windsurf',
    '.continue',
    '.aider.conf.yml',
    '.roo',
    '.kiro',
    '.devcontainer',
    // what they take for their instructions
    'CLAUDE.md',
    'AGENTS.md',
    'GEMINI.md',
    '.cursorrules',
    // what runs on other machines after the next push
    '.github/workflows',
    '.gitlab-ci.yml',
  ],
  exceptBelow: ['node_modules', 'site-packages'],
  pinned: [],
}

/** The protection of a workspace whose `.git` is a link or a file that names another directory. */
export function pinnedTo(repositories: readonly string[]): Protection {
  const inside = PROTECTION.inner
    .filter((pattern) => pattern.startsWith('.git/'))
    .map((pattern) => pattern.slice(4))
  return {
    ...PROTECTION,
    pinned: repositories.flatMap((repository) => inside.map((rest) => repository + rest)),
  }
}

const same = (a: string, b: string): boolean => a.toLowerCase() === b.toLowerCase()

/** Whether the pattern `a/b` stands in the path from `start` on. */
const stands = (pattern: string, segments: readonly string[], start: number): boolean =>
  pattern.split('/').every((part, index) => same(part, segments[start + index] ?? ''))

/** Why changing this relative path is refused, or `undefined`. The guest agent holds the same rules in C. */
export function protectedBy(protection: Protection, relative: string): string | undefined {
  const segments = relative.split('/').filter((segment) => segment !== '' && segment !== '.')
  const dependency = segments.findIndex((segment) =>
    protection.exceptBelow.some((name) => same(name, segment)),
  )
  const last = segments.at(-1)
  if (last !== undefined && protection.roots.some((name) => same(name, last))) return last
  for (let start = 0; start < segments.length; start++) {
    for (const pattern of protection.inner) {
      if (stands(pattern, segments, start)) return pattern
    }
    const name = segments[start] as string
    const below = dependency !== -1 && dependency < start
    const named = below ? undefined : protection.names.find((entry) => stands(entry, segments, start))
    if (named !== undefined) return named.includes('/') ? named : name
  }
  return undefined
}
