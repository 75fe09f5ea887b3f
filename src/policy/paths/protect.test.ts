import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { PROTECTION, protectedBy } from './protect.ts'

const by = (path: string): string | undefined => protectedBy(PROTECTION, path)

describe('names that a person, an editor, a shell or another agent runs later are refused', () => {
  test.each([
    ['.git', '.git'],
    ['.git/', '.git'],
    ['vendor/sub/.git', '.git'],
    ['.git/modules/x/.git', '.git'],
    ['node_modules/pkg/.git', '.git'],
    ['.git/hooks', '.git/hooks'],
    ['.git/hooks/pre-push', '.git/hooks'],
    ['a/b/.git/hooks/pre-push', '.git/hooks'],
    ['node_modules/pkg/.git/hooks/pre-push', '.git/hooks'],
    ['.git/config', '.git/config'],
    ['.git/config.worktree', '.git/config.worktree'],
    ['.git/commondir', '.git/commondir'],
    ['.git/modules/sub/config', '.git/modules'],
    ['.git/worktrees/w/gitdir', '.git/worktrees'],
    ['.git/info/attributes', '.git/info/attributes'],
    ['.git/objects/info/alternates', '.git/objects/info/alternates'],
    ['.jj/repo/config.toml', '.jj/repo/config.toml'],
    ['.ringfence', '.ringfence'],
    ['.ringfence/policy.toml', '.ringfence'],
    ['ringfence.toml', 'ringfence.toml'],
    ['.gitmodules', '.gitmodules'],
    ['.vscode/tasks.json', '.vscode'],
    ['packages/a/.vscode/settings.json', '.vscode'],
    ['.idea/workspace.xml', '.idea'],
    ['.husky/pre-commit', '.husky'],
    ['.envrc', '.envrc'],
    ['.mcp.json', '.mcp.json'],
    ['.bashrc', '.bashrc'],
    ['.zshenv', '.zshenv'],
    ['.profile', '.profile'],
    ['.claude/settings.json', '.claude'],
    ['.cursor/mcp.json', '.cursor'],
    ['.devcontainer/devcontainer.json', '.devcontainer'],
    ['CLAUDE.md', 'CLAUDE.md'],
    ['packages/a/agents.md', 'agents.md'],
    ['.github/workflows', '.github/workflows'],
    ['a/.github/Workflows/ci.yml', '.github/workflows'],
    ['pnpm-workspace.yaml', 'pnpm-workspace.yaml'],
    ['crates/a/rust-toolchain.toml', 'rust-toolchain.toml'],
    ['prek.toml', 'prek.toml'],
    ['.config/lefthook-local.jsonc', '.config/lefthook-local.jsonc'],
    ['.lefthook.toml', '.lefthook.toml'],
    ['.github/extensions/x/extension.mjs', '.github/extensions'],
    ['.rules', '.rules'],
    // The surrounding path does not matter.
    ['./.envrc', '.envrc'],
    ['//.envrc', '.envrc'],
    ['a/./.envrc', '.envrc'],
    // A file system that folds case finds the same file.
    ['.GIT/Hooks/x', '.git/hooks'],
    ['.Git', '.Git'],
    ['.ENVRC', '.ENVRC'],
    // The exception applies to paths below, not to a name beside or above.
    ['.vscode/node_modules/x', '.vscode'],
    ['node_modules_/.envrc', '.envrc'],
  ])('%s', (path, rule) => {
    expect(by(path)).toBe(rule)
  })
})

describe('ordinary work is not refused', () => {
  test.each([
    '',
    '.',
    'README.md',
    'src/main.ts',
    '.gitignore',
    '.gitattributes',
    '.git/HEAD',
    '.git/index',
    '.git/objects/ab/cdef',
    '.git/refs/heads/main',
    '.git/info/exclude',
    '.git/hooks.old',
    '.git/configuration',
    'git/hooks/x',
    'hooks/pre-push',
    'config',
    '.github/CODEOWNERS',
    '.github',
    'node_modules/p/.github/workflows/ci.yml',
    'node_modules/p/CLAUDE.md',
    'vscode/settings.json',
    '.vscode-test/x',
    'my.envrc',
    '.envrc.example',
    'node_modules/pkg/.vscode/settings.json',
    'node_modules/pkg/.envrc',
    'a/node_modules/@scope/pkg/.husky/x',
    'NODE_MODULES/pkg/.envrc',
    'venv/lib/site-packages/x/.idea/y',
  ])('%s', (path) => {
    expect(by(path)).toBeUndefined()
  })
})

describe('the table', () => {
  test('contains the documented names', () => {
    const named = [...PROTECTION.roots, ...PROTECTION.inner, ...PROTECTION.names]
    for (const name of [
      '.git/hooks',
      '.git/config',
      '.ringfence',
      '.vscode',
      '.idea',
      '.husky',
      '.envrc',
      '.mcp.json',
    ])
      expect(named).toContain(name)
  })

  test('contains each entry once, and no redundant entry', () => {
    const { roots, inner, names, exceptBelow } = PROTECTION
    for (const list of [roots, inner, names, exceptBelow]) expect(new Set(list).size).toBe(list.length)
    for (const name of [...roots, ...exceptBelow]) expect(name).toMatch(/^[^/]+$/)
    for (const name of names) expect(name).toMatch(/^[^/]+(\/[^/]+)*$/)
    for (const pattern of inner) expect(pattern).toMatch(/^[^/]+(\/[^/]+)+$/)
  })
})

describe('in general', () => {
  const word = fc.stringMatching(/^[a-z]{1,8}$/)
  const plain = fc.array(word, { maxLength: 4 })
  const path = (...parts: readonly (readonly string[])[]): string => parts.flat().join('/')

  test('a protected name is protected in any directory, and so is everything below it', () => {
    fc.assert(
      fc.property(
        plain,
        fc.constantFrom(...PROTECTION.names, ...PROTECTION.inner),
        plain,
        (above, name, below) => {
          expect(by(path(above, [name], below))).toBeDefined()
        },
      ),
    )
  })

  test('parts of a repository are protected even among dependencies', () => {
    fc.assert(
      fc.property(
        plain,
        fc.constantFrom(...PROTECTION.exceptBelow),
        plain,
        fc.constantFrom(...PROTECTION.inner, ...PROTECTION.roots),
        (a, dependency, b, name) => {
          expect(by(path(a, [dependency], b, [name]))).toBeDefined()
        },
      ),
    )
  })

  test('case, double slashes and `.` do not matter', () => {
    const segment = fc.oneof(
      word,
      fc.constantFrom('.git', 'hooks', 'config', '.envrc', 'node_modules', '.vscode'),
    )
    fc.assert(
      fc.property(fc.array(segment, { maxLength: 5 }), (segments) => {
        const expected = by(segments.join('/')) !== undefined
        expect(by(segments.join('/').toUpperCase()) !== undefined).toBe(expected)
        expect(by(`./${segments.join('//')}/./`) !== undefined).toBe(expected)
      }),
    )
  })

  test('other names are not protected', () => {
    fc.assert(
      fc.property(fc.array(word, { maxLength: 6 }), (segments) => {
        expect(by(segments.join('/'))).toBeUndefined()
      }),
    )
  })

  test('an empty protection refuses nothing', () => {
    const nothing = { roots: [], inner: [], names: [], exceptBelow: [], pinned: [] }
    fc.assert(fc.property(fc.string(), (text) => protectedBy(nothing, text) === undefined))
  })
})
