import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { outwardLink } from './outward-link.ts'

const base = mkdtempSync(join(tmpdir(), 'rf-links-'))
const workspace = join(base, 'work')
beforeAll(() => {
  mkdirSync(join(workspace, 'src', 'deep'), { recursive: true })
  writeFileSync(join(base, 'key'), 'secret')
  writeFileSync(join(workspace, 'plain.txt'), 'x')
  symlinkSync(join(base, 'key'), join(workspace, 'src', 'notes.txt'))
  symlinkSync('plain.txt', join(workspace, 'inside'))
  symlinkSync('src/notes.txt', join(workspace, 'twice'))
  symlinkSync(base, join(workspace, 'up'))
  symlinkSync(join(base, 'not-there'), join(workspace, 'dangling'))
  symlinkSync('loop', join(workspace, 'loop'))
})
afterAll(() => rmSync(base, { recursive: true, force: true }))

const words = (line: string): readonly string[] => line.split(' ')
const found = (line: string, cwd = workspace) => outwardLink(words(line), { workspace, cwd })

test.each([
  ['cat src/notes.txt', 'src/notes.txt'],
  ['cat twice', 'twice'],
  ['cat up/key', 'up/key'],
  ['cat up/../../etc/hostname', 'up/../../etc/hostname'],
  ['cat src/deep/../../up/../x', 'src/deep/../../up/../x'],
  ['cd src cat notes.txt', 'notes.txt'],
  ['cat src/*', 'src/*'],
  ['cat */notes.txt', '*/notes.txt'],
  ['head -n5 ./src/./notes.txt', './src/./notes.txt'],
  ['grep --file=src/notes.txt x', 'src/notes.txt'],
  ['grep -fsrc/notes.txt x', 'src/notes.txt'],
  ['touch dangling', 'dangling'],
  ['cat loop', 'loop'],
])('`%s` follows a symlink out of the workspace', (line, path) => {
  expect(found(line)).toBe(path)
})

test.each(['cat plain.txt', 'cat inside', 'ls src', 'cat /etc/hostname', 'echo hello', 'cat missing/file'])(
  '`%s` follows no symlink out of the workspace',
  (line) => {
    expect(found(line)).toBeUndefined()
  },
)

test('a relative path is resolved against the working directory of the line', () => {
  expect(found('cat notes.txt', join(workspace, 'src'))).toBe('notes.txt')
  expect(found('cat deep/x')).toBeUndefined()
})
