import {
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { parseCapabilities } from '../../policy/grants/capability.ts'
import { createHostFunctions } from './host-functions.ts'
import type { HostFunctions, HostReply, Params, SkillViolation } from './host-parts.ts'

let place: string
let workspace: string
let violations: SkillViolation[]
let open: HostFunctions[]

const ALL = ['ToolInvoke(file_read)', 'ToolInvoke(file_write)', 'ToolInvoke(file_list)']

beforeEach(() => {
  place = realpathSync(mkdtempSync(join(tmpdir(), 'rf-wasi-files-')))
  workspace = join(place, 'ws')
  violations = []
  open = []
  mkdirSync(join(workspace, 'data'), { recursive: true })
  mkdirSync(join(place, 'out'))
  writeFileSync(join(workspace, 'data', 'in.txt'), 'inside')
  writeFileSync(join(place, 'secret'), 'outside')
})
afterEach(() => {
  for (const host of open) host.close()
  rmSync(place, { recursive: true, force: true })
})

/** The functions of one run; paths start in the workspace. */
function run(grants: readonly string[] = ALL) {
  const host = createHostFunctions({
    grants: parseCapabilities(grants),
    workspace,
    onViolation: (violation) => violations.push(violation),
  })
  open.push(host)
  const call = (method: string, params: Params): HostReply =>
    host.files(method, { dir: '', toDir: '', atim: '', mtim: '', ...params })
  const code = (method: string, params: Params): string => {
    const reply = call(method, params)
    return 'ok' in reply ? 'ok' : reply.code
  }
  const mk = (path: string): string => code('open', { path, create: true, write: true })
  const handleOf = (path: string, how: Params = { directory: true }): number => {
    const reply = call('open', { path, ...how })
    return ('ok' in reply ? (reply.ok as { handle: number }) : { handle: -1 }).handle
  }
  return { host, call, code, mk, handleOf }
}

const at = (path: string): string => join(workspace, path)

describe('directories', () => {
  it('are created, renamed and removed, and the errors are those of the file system', () => {
    const { code, mk } = run()
    expect(code('mkdir', { path: 'a' })).toBe('ok')
    expect(code('mkdir', { path: 'a' })).toBe('EEXIST')
    expect(code('mkdir', { path: 'a/b/c' })).toBe('ENOENT')
    expect(mk('a/f')).toBe('ok')
    expect(code('rmdir', { path: 'a' })).toBe('ENOTEMPTY')
    expect(code('rmdir', { path: 'a/f' })).toBe('ENOTDIR')
    expect(code('unlink', { path: 'a' })).toBe('EISDIR')
    expect(code('unlink', { path: 'a/f/' })).toBe('ENOTDIR')
    expect(code('rename', { path: 'a/', to: 'moved/' })).toBe('ok')
    expect(code('rename', { path: 'moved', to: 'moved/inner' })).toBe('EINVAL')
    expect(code('rename', { path: 'moved/f', to: 'data' })).toBe('EISDIR')
    expect(code('unlink', { path: 'moved/f' })).toBe('ok')
    expect(code('rmdir', { path: 'moved/' })).toBe('ok')
    expect(code('rmdir', { path: 'moved' })).toBe('ENOENT')
    expect(code('rmdir', { path: '.' })).toBe('EINVAL')
    expect(code('rmdir', { path: 'data/..' })).toBe('EINVAL')
    expect(violations).toEqual([])
  })

  it('are never the granted directory itself', () => {
    mkdirSync(at('only'))
    const { code } = run([...ALL, `FileWrite(${at('only')}/**)`])
    expect(code('rmdir', { path: 'only' })).toBe('capability-denied')
    expect(code('rename', { path: 'only', to: 'other' })).toBe('capability-denied')
    expect(existsSync(at('only'))).toBe(true)
  })

  it('stay bounded by what was opened: `..` inside works, `..` above does not', () => {
    const { code, handleOf, call } = run()
    mkdirSync(at('data/deep'))
    const dir = handleOf('data')
    expect(code('stat', { dir, path: 'deep/../in.txt' })).toBe('ok')
    expect(code('stat', { dir, path: '../data/in.txt' })).toBe('path-traversal')
    expect(code('stat', { dir, path: 'deep/../../data/in.txt' })).toBe('path-traversal')
    expect(code('stat', { dir, path: '/data/in.txt' })).toBe('path-traversal')
    renameSync(at('data'), at('later'))
    expect(code('stat', { dir, path: 'in.txt' })).toBe('ok')
    renameSync(at('later'), join(place, 'gone'))
    expect(code('stat', { dir, path: 'in.txt' })).toBe('path-traversal')
    expect(code('open', { dir, path: 'new', create: true })).toBe('path-traversal')
    expect(code('list', { dir: undefined, handle: dir })).not.toBe('ok')
    rmSync(join(place, 'gone'), { recursive: true })
    expect(call('stat', { dir, path: 'in.txt' })).toMatchObject({ code: 'ENOENT' })
  })
})

describe('symbolic links', () => {
  it('lead to paths inside', () => {
    const { code, call } = run()
    expect(code('symlink', { path: 'l', target: 'data/in.txt' })).toBe('ok')
    expect(code('symlink', { path: 'data/up', target: '../data' })).toBe('ok')
    expect(code('symlink', { path: 'dangling', target: 'later' })).toBe('ok')
    expect(call('readlink', { path: 'l' })).toEqual({ ok: 'data/in.txt' })
    expect(code('open', { path: 'l', read: true })).toBe('ELOOP')
    expect(code('open', { path: 'l', read: true, follow: true })).toBe('ok')
    expect(call('stat', { path: 'l' })).toMatchObject({ ok: { kind: 'link' } })
    expect(call('stat', { path: 'data/up/in.txt' })).toMatchObject({ ok: { kind: 'file', size: 6 } })
    expect(code('open', { path: 'dangling', create: true, write: true, follow: true })).toBe('ok')
    expect(existsSync(at('later'))).toBe(true)
    expect(code('symlink', { path: 'loop', target: 'loop' })).toBe('ok')
    expect(code('stat', { path: 'loop', follow: true })).toBe('ELOOP')
    expect(code('unlink', { path: 'l' })).toBe('ok')
    expect(readFileSync(at('data/in.txt'), 'utf8')).toBe('inside')
    expect(violations).toEqual([])
  })

  it.each([
    '/etc/passwd',
    '/',
    '..',
    '../secret',
    'data/../../secret',
    'data/../data',
    './../secret',
    '../ws/../secret',
    'x/../../../secret',
  ])('are refused with the target %s', (target) => {
    const { code } = run()
    expect(code('symlink', { path: 'l', target })).toBe('path-traversal')
    expect(readdirSync(workspace)).toEqual(['data'])
    expect(violations).toMatchObject([{ violationType: 'PathTraversal' }])
  })

  it('are refused if another link takes them outside', () => {
    symlinkSync(join(place, 'out'), at('user'))
    const { code } = run()
    expect(code('symlink', { path: 'l', target: 'user/x' })).toBe('path-traversal')
    expect(code('symlink', { path: 'l', target: 'user' })).toBe('path-traversal')
    for (const method of ['mkdir', 'unlink', 'rmdir'])
      expect(code(method, { path: 'user/x' })).toBe('path-traversal')
    expect(code('open', { path: 'user/x', create: true, write: true, follow: true })).toBe('path-traversal')
    expect(code('readlink', { path: 'user' })).toBe('path-traversal')
    expect(code('rename', { path: 'user', to: 'mine' })).toBe('path-traversal')
    expect(code('link', { path: 'user', to: 'mine' })).toBe('path-traversal')
    expect(readdirSync(join(place, 'out'))).toEqual([])
    expect(code('unlink', { path: 'user' })).toBe('ok')
    expect(existsSync(join(place, 'out'))).toBe(true)
  })

  it('do not lead outside when a directory above them is renamed', () => {
    const { code } = run()
    for (const path of ['a', 'a/b', 'a/b/c']) expect(code('mkdir', { path })).toBe('ok')
    expect(code('symlink', { path: 'a/b/c/l', target: '../../../data' })).toBe('ok')
    expect(code('rename', { path: 'a/b/c', to: 'c' })).toBe('path-traversal')
    expect(code('rename', { path: 'a/b', to: 'b' })).toBe('path-traversal')
    expect(code('rename', { path: 'a/b/c/l', to: 'l' })).toBe('path-traversal')
    expect(code('link', { path: 'a/b/c/l', to: 'l' })).toBe('path-traversal')
    expect(code('rename', { path: 'a/b/c', to: 'a/b/d' })).toBe('ok')
    expect(readlinkSync(at('a/b/d/l'))).toBe('../../../data')
    // Moved without a check, the link is refused at every use.
    renameSync(at('a/b/d'), at('d'))
    for (const method of ['stat', 'open'])
      expect(code(method, { path: 'd/l/secret', follow: true, read: true })).toBe('path-traversal')
    expect(code('readlink', { path: 'd/l' })).toBe('path-traversal')
  })

  it('are checked by other functions and for other grants as well', async () => {
    const { code } = run()
    expect(code('symlink', { path: 'data/l', target: '../other.txt' })).toBe('ok')
    writeFileSync(at('other.txt'), 'other')
    const limited = run(['FileRead(data/**)'])
    const reply = await limited.host.call('file_read', { path: 'data/l' }, new AbortController().signal)
    expect(reply).toMatchObject({ code: 'path-traversal' })
    expect(limited.code('open', { path: 'data/l', read: true, follow: true })).toBe('path-traversal')
  })

  it('need a grant for their target', () => {
    const { code } = run(['FileRead(data/**)', 'FileWrite(data/**)'])
    mkdirSync(at('private'))
    expect(code('symlink', { path: 'data/l', target: '../private/x' })).toBe('path-traversal')
    expect(code('symlink', { path: 'data/l', target: 'in.txt' })).toBe('ok')
  })
})

describe('protected and blocked names', () => {
  const names = ['.git', '.git/hooks', '.github', '.vscode', '.env', '.ssh']

  it.each(names)('%s cannot be created in any way', (name) => {
    const { code, mk } = run()
    mkdirSync(at('tree'))
    writeFileSync(at('file'), '#!/bin/sh')
    if (name.includes('/')) mkdirSync(at('.git'))
    expect(code('mkdir', { path: name })).toBe('capability-denied')
    expect(code('rename', { path: 'tree', to: name })).toBe('capability-denied')
    expect(code('rename', { path: 'file', to: name })).toBe('capability-denied')
    expect(code('link', { path: 'file', to: name })).toBe('capability-denied')
    expect(code('symlink', { path: name, target: 'file' })).toBe('capability-denied')
    expect(code('symlink', { path: 'l', target: name })).toBe('capability-denied')
    expect(mk(name)).toBe('capability-denied')
    expect(existsSync(at(name))).toBe(false)
  })

  it('cannot be renamed, removed, linked, or given new times', () => {
    mkdirSync(at('.git/hooks'), { recursive: true })
    writeFileSync(at('.git/hooks/pre-commit'), 'mine')
    const { code } = run()
    for (const path of ['.git', '.git/hooks', '.git/hooks/pre-commit']) {
      expect(code('rename', { path, to: 'x' })).toBe('capability-denied')
      expect(code('times', { path, mtim: '0' })).toBe('capability-denied')
    }
    expect(code('unlink', { path: '.git/hooks/pre-commit' })).toBe('capability-denied')
    expect(code('link', { path: '.git/hooks/pre-commit', to: 'x' })).toBe('capability-denied')
    expect(code('rmdir', { path: '.git/hooks' })).toBe('capability-denied')
    expect(code('symlink', { path: 'h', target: '.git/hooks' })).toBe('capability-denied')
  })

  it('do not arise inside a tree that is moved', () => {
    const { code, mk } = run()
    mkdirSync(at('node_modules/p'), { recursive: true })
    expect(code('mkdir', { path: 'node_modules/p/.vscode' })).toBe('ok')
    expect(mk('node_modules/p/.vscode/tasks.json')).toBe('ok')
    expect(code('rename', { path: 'node_modules/p', to: 'p' })).toBe('capability-denied')
    expect(code('rename', { path: 'node_modules/p', to: 'node_modules/q' })).toBe('ok')
    mkdirSync(at('cfg/gcloud'), { recursive: true })
    expect(code('rename', { path: 'cfg', to: '.config' })).toBe('capability-denied')
    expect(readdirSync(workspace).sort()).toEqual(['cfg', 'data', 'node_modules'])
  })
})

it('a tree that is too large to check is not moved', () => {
  mkdirSync(at('many'))
  for (let index = 0; index < 1001; index++) writeFileSync(at(`many/${index}`), '')
  const { code, call } = run()
  expect(code('rename', { path: 'many', to: 'more' })).toBe('resource-exhausted')
  rmSync(at('many/0'))
  rmSync(at('many/1'))
  expect(call('rename', { path: 'many', to: 'more' })).toEqual({ ok: 1000 })
})

describe('hard links', () => {
  it('are second names inside', () => {
    const { code, mk, call } = run()
    expect(mk('f')).toBe('ok')
    expect(code('link', { path: 'f', to: 'data/g' })).toBe('ok')
    expect(call('stat', { path: 'data/g' })).toMatchObject({ ok: { nlink: 2 } })
    expect(code('link', { path: 'f', to: 'data/g' })).toBe('EEXIST')
    expect(code('link', { path: 'data', to: 'd' })).toBe('EPERM')
    expect(code('link', { path: 'f', to: 'h/' })).toBe('ENOENT')
    expect(violations).toEqual([])
  })

  it('never reach a file that has a name outside', () => {
    linkSync(join(place, 'secret'), at('shared'))
    const { code } = run()
    expect(code('link', { path: 'shared', to: 'mine' })).toBe('capability-denied')
    expect(code('times', { path: 'shared', mtim: '0' })).toBe('capability-denied')
    expect(code('open', { path: 'shared', read: true })).toBe('capability-denied')
    expect(existsSync(at('mine'))).toBe(false)
  })

  it('and renames give no access that the program did not have', () => {
    mkdirSync(at('b'))
    const reader = run(['FileRead(data/**)', 'FileWrite(b/**)'])
    expect(reader.code('link', { path: 'data/in.txt', to: 'b/x' })).toBe('capability-denied')
    const writer = run(['FileWrite(data/**)', 'FileWrite(b/**)', 'FileRead(b/**)'])
    expect(writer.code('link', { path: 'data/in.txt', to: 'b/x' })).toBe('capability-denied')
    expect(writer.code('rename', { path: 'data/in.txt', to: 'b/x' })).toBe('capability-denied')
    mkdirSync(at('data/deep'))
    writeFileSync(at('data/deep/x'), 'x')
    expect(writer.code('rename', { path: 'data/deep', to: 'b/deep' })).toBe('capability-denied')
    expect(readdirSync(at('b'))).toEqual([])
  })
})

it('`..` does not disclose whether a path without a grant exists', () => {
  mkdirSync(at('private/there'), { recursive: true })
  const { code } = run(['FileRead(data/**)'])
  const answers = ['there', 'absent'].map((name) =>
    code('stat', { path: `private/${name}/../../data/in.txt` }),
  )
  expect(answers).toEqual(['capability-denied', 'capability-denied'])
  expect(code('stat', { path: 'data/absent' })).toBe('ENOENT')
})

it('times are read back as they were set, and need the write grant', () => {
  const { call, code, handleOf } = run()
  const handle = handleOf('data/in.txt', { read: true })
  expect(code('times', { dir: undefined, path: undefined, handle, mtim: '1700000000123456789' })).toBe('ok')
  expect(call('fstat', { handle })).toMatchObject({ ok: { mtim: '1700000000123456789' } })
  expect(Math.abs(lstatSync(at('data/in.txt')).mtimeMs - 1_700_000_000_123)).toBeLessThan(2)
  const reader = run(['FileRead(data/**)'])
  const own = reader.handleOf('data/in.txt', { read: true })
  expect(reader.code('times', { handle: own, mtim: '0' })).toBe('capability-denied')
  expect(reader.code('times', { path: 'data/in.txt', mtim: '0' })).toBe('capability-denied')
})

it('allocation extends a file, within the size limit', () => {
  const { call, code, handleOf } = run()
  const handle = handleOf('f', { create: true, write: true, read: true })
  expect(code('allocate', { handle, at: 10, length: 90 })).toBe('ok')
  expect(code('allocate', { handle, at: 0, length: 10 })).toBe('ok')
  expect(call('fstat', { handle })).toMatchObject({ ok: { size: 100 } })
  expect(code('allocate', { handle, at: 2 ** 39, length: 1 })).toBe('resource-exhausted')
})

it('a directory lists itself, its parent without inode, and every entry with its inode', () => {
  symlinkSync('in.txt', at('data/l'))
  const { call, handleOf } = run()
  const handle = handleOf('data')
  expect(call('list', { dir: undefined, handle })).toEqual({
    ok: [
      { name: '.', kind: 'dir', ino: String(lstatSync(at('data')).ino) },
      { name: '..', kind: 'dir', ino: '0' },
      { name: 'in.txt', kind: 'file', ino: String(lstatSync(at('data/in.txt')).ino) },
      { name: 'l', kind: 'link', ino: String(lstatSync(at('data/l')).ino) },
    ],
  })
})
