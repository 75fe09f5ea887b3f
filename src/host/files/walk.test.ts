import { execFileSync } from 'node:child_process'
import {
  closeSync,
  constants,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { observePath, type PathObservation, pathFactOf } from './walk.ts'
import { countNamesInside } from './walk-names.ts'
import { O_PATH, openChecked } from './walk-open.ts'

let root: string
const at = (name: string): string => join(root, name)

beforeEach(() => {
  root = realpathSync(mkdtempSync(join(tmpdir(), 'rf-walk-')))
  mkdirSync(at('w/src'), { recursive: true })
  mkdirSync(at('out'))
  writeFileSync(at('w/src/a.ts'), 'inside')
  writeFileSync(at('out/s'), 'outside')
})
afterEach(() => rmSync(root, { recursive: true, force: true }))

describe('observePath', () => {
  const realPathOf = (path: string): string => {
    const seen = observePath(path)
    if (seen.state === 'exists') return seen.real.replace(root, '')
    return seen.state === 'missing'
      ? `${seen.ancestor.replace(root, '')} + ${seen.missing.join('/')}${seen.dangling ? ' dangling' : ''}`
      : seen.errno
  }

  it.each<[string, string, readonly [string, string][]]>([
    ['w/src/a.ts', '/w/src/a.ts', []],
    ['w//src/./a.ts/', '/w/src/a.ts', []],
    ['w/x/y/z', '/w + x/y/z', []],
    ['w/l/a.ts', '/w/src/a.ts', [['src', 'w/l']]],
    ['w/l/new', '/w/src + new', [['src', 'w/l']]],
    ['w/l', '/out', [['../out', 'w/l']]],
    ['w/l/s', '/out/s', [['../out/.', 'w/l']]],
    ['w/l', '/out + gone dangling', [['../out/gone', 'w/l']]],
    [
      'w/l1',
      '/out + gone dangling',
      [
        ['l2', 'w/l1'],
        ['../out/gone', 'w/l2'],
      ],
    ],
    ['w/l/deeper', '/out + gone/deeper', [['../out/gone', 'w/l']]],
    ['w/l', '/w', [['.', 'w/l']]],
    ['w/l', '/', [['/', 'w/l']]],
    ['w/loop', 'ELOOP', [['loop', 'w/loop']]],
    ['w/src/a.ts/x', 'ENOTDIR', []],
    ['w/gone/../src', 'ENOENT', []],
    [`w/${'a'.repeat(256)}`, 'ENAMETOOLONG', []],
  ])('%s → %s', (path, wanted, links) => {
    for (const [target, name] of links) symlinkSync(target, at(name))
    // Joined as text: `path.join` would normalise what the walk must see.
    expect(realPathOf(`${root}/${path}`)).toBe(wanted)
  })

  it('follows forty symlinks and not one more', () => {
    symlinkSync('src', at('w/c0'))
    for (let index = 1; index < 41; index++) symlinkSync(`c${index - 1}`, at(`w/c${index}`))
    expect(realPathOf(at('w/c39'))).toBe('/w/src')
    expect(realPathOf(at('w/c40'))).toBe('ELOOP')
  })

  it('agrees with realpath and records the symlinks on the way', () => {
    symlinkSync(at('out'), at('w/l'))
    const seen = observePath(at('w/l/s'))
    expect(seen).toMatchObject({ state: 'exists', real: realpathSync(at('w/l/s')) })
    expect(seen.symlinks).toEqual([{ at: at('w/l'), target: at('out') }])
  })

  it('reports file types and identities', () => {
    execFileSync('mkfifo', [at('w/pipe')])
    expect(observePath(at('w/pipe'))).toMatchObject({ thing: { kind: 'fifo' } })
    expect(observePath('/dev/null')).toMatchObject({ thing: { kind: 'device' } })
    expect(observePath(at('w'))).toMatchObject({
      thing: { kind: 'dir', dev: expect.stringMatching(/^\d+$/) },
    })
  })

  it('refuses a symlink whose target is not valid text', () => {
    execFileSync('sh', ['-c', `ln -s "$(printf 'a\\377')" '${at('w/bad')}'`])
    expect(realPathOf(at('w/bad'))).toBe('EILSEQ')
  })

  it('requires an absolute path', () => expect(() => observePath('w')).toThrow(/not an absolute path/))
})

describe('pathFactOf', () => {
  it('returns the facts of a directory or file', () => {
    expect(pathFactOf(observePath(at('w')))).toMatchObject({ real: at('w'), kind: 'dir' })
  })
  it('gives the same error for missing and unreadable, and refuses other file types', () => {
    execFileSync('mkfifo', [at('w/pipe')])
    expect(() => pathFactOf(observePath(at('w/gone')))).toThrow(/is missing or outside the allowed paths$/)
    expect(() => pathFactOf(observePath(at('w/src/a.ts/x')))).toThrow(
      /is missing or outside the allowed paths$/,
    )
    expect(() => pathFactOf(observePath(at('w/pipe')))).toThrow(/is a fifo/)
  })
})

describe('countNamesInside', () => {
  const count = (path: string): number | undefined =>
    countNamesInside(observePath(path), [observePath(at('w'))])
  it('counts the hard links below the roots', () => {
    linkSync(at('w/src/a.ts'), at('w/b.ts'))
    linkSync(at('out/s'), at('w/foreign'))
    expect(count(at('w/b.ts'))).toBe(2)
    expect(count(at('w/foreign'))).toBe(1)
    expect(count(at('w'))).toBeUndefined()
  })
})

describe('openChecked', () => {
  const text = (fd: number): string => {
    try {
      return readFileSync(fd, 'utf8')
    } finally {
      closeSync(fd)
    }
  }
  const descriptors = (): number => readdirSync('/proc/self/fd').length
  const create = constants.O_WRONLY | constants.O_CREAT
  const refusal = /has changed since it was checked$/

  it('opens the observed file, through the observed symlinks', () => {
    symlinkSync('src', at('w/l'))
    expect(text(openChecked(observePath(at('w/l/a.ts')), constants.O_RDONLY))).toBe('inside')
  })

  it('creates a missing file, with its parents', () => {
    const fd = openChecked(observePath(at('w/x/y/z')), create)
    writeSync(fd, 'new')
    closeSync(fd)
    expect(readFileSync(at('w/x/y/z'), 'utf8')).toBe('new')
  })

  it('creates the target of a dangling link, not through the link', () => {
    symlinkSync('src/later.ts', at('w/l'))
    closeSync(openChecked(observePath(at('w/l')), create))
    expect(existsSync(at('w/src/later.ts'))).toBe(true)
  })

  it('truncates only the checked file', () => {
    closeSync(openChecked(observePath(at('w/src/a.ts')), constants.O_WRONLY | constants.O_TRUNC))
    expect(readFileSync(at('w/src/a.ts'), 'utf8')).toBe('')
  })

  it('returns a descriptor for a mount', () => closeSync(openChecked(observePath(at('w')), O_PATH)))

  it.each<[string, string, number, () => void]>([
    ['a parent became a link', 'w/src/a.ts', constants.O_RDONLY, () => swapDirectory()],
    [
      'a parent became a link, writing',
      'w/src/a.ts',
      constants.O_WRONLY | constants.O_TRUNC,
      () => swapDirectory(),
    ],
    ['a parent became a link, mounting', 'w/src/a.ts', O_PATH, () => swapDirectory()],
    [
      'the file became another file',
      'w/src/a.ts',
      constants.O_RDONLY,
      () => renameSync(at('out/s'), at('w/src/a.ts')),
    ],
    ['the file became a link', 'w/src/a.ts', constants.O_RDONLY, () => relink('out/s', 'w/src/a.ts')],
    ['the file is gone', 'w/src/a.ts', constants.O_RDONLY, () => unlinkSync(at('w/src/a.ts'))],
    ['the directory moved', 'w/src/a.ts', constants.O_RDONLY, () => renameSync(at('w/src'), at('w/moved'))],
    ['the new name was taken', 'w/new', create, () => writeFileSync(at('w/new'), '')],
    ['the new name became a link', 'w/new', create, () => symlinkSync(at('out/made'), at('w/new'))],
    ['the new parent was taken', 'w/d/new', create, () => mkdirSync(at('w/d'))],
    ['the new parent became a link', 'w/d/new', create, () => symlinkSync(at('out'), at('w/d'))],
  ])('refuses when %s', (_, path, flags, swap) => {
    const seen = observePath(at(path))
    const before = descriptors()
    swap()
    expect(() => openChecked(seen, flags)).toThrow(refusal)
    expect(descriptors()).toBe(before)
    expect(existsSync(at('out/made'))).toBe(false)
    expect(readdirSync(at('out')).filter((name) => name === 'new')).toEqual([])
  })

  it('never blocks on a pipe that has the inode of the checked file', () => {
    for (let turn = 0; turn < 30; turn++) {
      writeFileSync(at('w/f'), 'x')
      const seen = observePath(at('w/f'))
      unlinkSync(at('w/f'))
      execFileSync('mkfifo', [at('w/f')])
      expect(() => openChecked(seen, constants.O_RDONLY)).toThrow(refusal)
      unlinkSync(at('w/f'))
    }
  })

  it('refuses a missing or unreadable file, and an exclusive create of an existing one', () => {
    expect(() => openChecked(observePath(at('w/gone')), constants.O_RDONLY)).toThrow(/missing or outside/)
    expect(() => openChecked(observePath(at('w/src/a.ts/x')), create)).toThrow(/missing or outside/)
    expect(() => openChecked(observePath(at('w/src/a.ts')), create | constants.O_EXCL)).toThrow(refusal)
  })

  function swapDirectory(): void {
    renameSync(at('w/src'), at('w/old'))
    writeFileSync(at('out/a.ts'), 'outside')
    symlinkSync(at('out'), at('w/src'))
  }
  function relink(target: string, name: string): void {
    unlinkSync(at(name))
    symlinkSync(at(target), at(name))
  }
})

it('an observation is plain data, so that a decision can be replayed', () => {
  const seen: PathObservation = observePath(at('w'))
  expect(JSON.parse(JSON.stringify(seen))).toEqual(seen)
})
