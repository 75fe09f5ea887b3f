import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { parseGitConfig } from './git-config.ts'
import { pinsOf } from './git-pins.ts'

let root: string
beforeEach(() => {
  root = realpathSync(mkdtempSync(join(tmpdir(), 'rf-pins-')))
})
afterEach(() => rmSync(root, { recursive: true, force: true }))

function put(path: string, text = ''): string {
  const full = join(root, path)
  mkdirSync(dirname(full), { recursive: true })
  writeFileSync(full, text)
  return full
}

const found = (globals: readonly string[] = []) => {
  const isProtected = (name: string): boolean => name === '.vscode'
  const pins = pinsOf(root, { home: join(root, 'home'), globals, isProtected, skip: ['node_modules'] })
  const below = (paths: readonly string[]): string[] =>
    paths.map((path) => path.slice(root.length + 1)).sort()
  return { repositories: below(pins.repositories), files: below(pins.files) }
}

describe('finds the files that a repository’s configuration runs or includes', () => {
  test('hooks, includes and nested includes', () => {
    put('.git/config', '[core]\n\thooksPath = tools/hooks\n[include]\n\tpath = ../git.inc\n')
    put('git.inc', '[includeIf "gitdir:~/x"]\n path = more.inc\n')
    put('more.inc', '[Core]\nhookspath="other hooks" ; quoted\n')
    expect(found().files).toEqual(['git.inc', 'more.inc', 'other hooks', 'tools/hooks'])
  })

  test('programs in the working tree, from any setting that starts one', () => {
    put('scripts/clean.sh')
    put('.git/config', '[filter "x"]\n clean = "sh ./scripts/clean.sh %f"\n[alias]\n s = status\n')
    expect(found().files).toEqual(['scripts/clean.sh'])
  })

  test('the user’s own settings, relative to each repository', () => {
    mkdirSync(join(root, 'a', '.git'), { recursive: true })
    expect(found([put('home/.gitconfig', '[core] hooksPath = .hooks\n')]).files).toEqual(['a/.hooks'])
  })

  test('hooks in the working tree are listed one by one', () => {
    put('.git/config', '[core]\nhooksPath = .\n')
    expect(found().files).toContain('pre-commit')
    expect(found().files).not.toContain('')
  })

  test('submodules and nested repositories with a directory elsewhere', () => {
    put('.git/modules/m/config', '[core]\n worktree = ../../../m\n hooksPath = ../shared\n')
    put('vendor/x/.git', 'gitdir: ../../real/x.git\n')
    put('real/x.git/config', '[core]\nhooksPath = ../../real/hooks\n')
    expect(found()).toEqual({
      repositories: ['.git/modules/m', 'real/x.git'],
      files: ['real/hooks', 'shared'],
    })
  })

  test('a symlink with a protected name is resolved to its target', () => {
    put('config/code/tasks.json')
    symlinkSync('config/code', join(root, '.vscode'))
    expect(found().files).toEqual(['config/code'])
  })

  test('dependencies are skipped', () => {
    put('node_modules/p/.git/config', '[core]\nhooksPath = x\n')
    expect(found().files).toEqual([])
  })
})

test.each<[string, readonly [string, string][]]>([
  ['[a]\nb = c', [['a.b', 'c']]],
  ['[A "B c"]\nD=e # f', [['a.B c.d', 'e']]],
  ['[a]b\n', [['a.b', 'true']]],
  ['[a]\nb = one \\\ntwo', [['a.b', 'one two']]],
  ['[a]\nb = "x;y" z', [['a.b', 'x;y z']]],
  ['b = c', []],
  ['; [a]\n#b=c', []],
])('%j', (text, settings) => {
  expect(parseGitConfig(text).map(({ name, value }) => [name, value])).toEqual(settings)
})
