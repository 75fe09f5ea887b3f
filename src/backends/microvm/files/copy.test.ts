import {
  chmodSync,
  closeSync,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { planOf } from '../../../../test/conformance/world.ts'
import type { Mount, Plan, Protection } from '../../../model/plan.ts'
import { refusedBy } from '../../../policy/paths/protect.ts'
import { type Copied, CopyIn } from '../../copy-in.ts'
import { touchesRepository } from '../../git-shape.ts'
import { TarReader } from '../../tar/reader.ts'
import { type Header, header, padding } from '../../tar/writer.ts'
import { CopyOut, type CopyOutResult, NAME_BYTES } from './copy-out.ts'

let base: string
let workspace: string
let outside: string
beforeEach(() => {
  base = mkdtempSync(join(tmpdir(), 'rf-copy-'))
  workspace = join(base, 'workspace')
  outside = join(base, 'outside')
  mkdirSync(join(workspace, '.git', 'hooks'), { recursive: true })
  mkdirSync(outside)
  writeFileSync(join(workspace, '.git', 'config'), 'mine')
  writeFileSync(join(workspace, 'a'), 'first')
  writeFileSync(join(outside, 'secret'), 'secret')
})
afterEach(() => rmSync(base, { recursive: true, force: true }))

const copyOf = (): {
  readonly plan: Plan
  readonly mount: Mount
  readonly copy: CopyIn
  readonly tar: Buffer
} => {
  const plan = planOf({ workspace })
  const mount = plan.mounts[0] as Mount
  const copy = new CopyIn(plan, mount)
  return { plan, mount, copy, tar: Buffer.concat([...copy.stream()]) }
}

type Entry = Partial<Header> & { readonly name: string; readonly content?: string }
const archive = (entries: readonly Entry[]): Buffer =>
  Buffer.concat([
    ...entries.flatMap(({ content = '', ...fields }) => [
      ...header({ type: '0', mode: 0o644, ...fields, size: fields.size ?? content.length }),
      Buffer.from(content),
      padding(content.length),
    ]),
    Buffer.alloc(1024),
  ])

/** The files that the guest has not changed. */
const KEPT: readonly Entry[] = ['.git', '.git/hooks'].map((name) => ({ name, type: '5', mode: 0o755 }))
const SAME: readonly Entry[] = ['.git/config', 'a'].map((name) => ({ name, type: 'S' }))

async function takeBack(entries: readonly Entry[], whole = true): Promise<CopyOutResult> {
  const { plan, mount, copy } = copyOf()
  const bytes = archive(whole ? [...KEPT, ...SAME, ...entries] : entries)
  async function* pieces(): AsyncGenerator<Uint8Array> {
    // In uneven chunks, as a channel delivers them.
    for (let at = 0; at < bytes.length; at += 333) yield bytes.subarray(at, at + 333)
  }
  const reader = new TarReader(pieces(), { entries: 1000, bytes: 1_000_000 })
  return new CopyOut(mount, copy.manifest, plan.protection, refusedBy).take(reader)
}
const at = (...names: string[]): string => join(workspace, ...names)

describe('into the guest', () => {
  test('copies the content of a mount, symlinks as symlinks, without their targets', () => {
    symlinkSync(outside, at('way'))
    const { copy, tar } = copyOf()
    expect([...copy.manifest.keys()].sort()).toEqual(['', '.git', '.git/config', '.git/hooks', 'a', 'way'])
    expect(tar.includes('secret')).toBe(false)
  })

  test('not through a directory that replaced the checked one', () => {
    const plan = planOf({ workspace })
    // While it is open, its inode number is not given to another directory.
    const checked = openSync(workspace, 'r')
    rmSync(workspace, { recursive: true })
    symlinkSync(outside, workspace)
    expect(() => [...new CopyIn(plan, plan.mounts[0] as Mount).stream()]).toThrow()
    rmSync(workspace)
    mkdirSync(workspace)
    expect(() => [...new CopyIn(plan, plan.mounts[0] as Mount).stream()]).toThrow(/replaced/)
    closeSync(checked)
  })

  test('not masked paths', () => {
    writeFileSync(at('.env'), 'KEY')
    const plan = planOf({ workspace, deny: [at('.env')] })
    const copy = new CopyIn(plan, plan.mounts[0] as Mount)
    expect(Buffer.concat([...copy.stream()]).includes('KEY')).toBe(false)
  })
})

describe('protection beyond names', () => {
  const dir = (name: string): Entry => ({ name, type: '5', mode: 0o755 })

  test('a directory does not become a repository, under any name', async () => {
    const taken = await takeBack([
      dir('bare'),
      dir('bare/objects'),
      dir('bare/refs'),
      { name: 'bare/HEAD', content: 'ref: refs/heads/main' },
      { name: 'bare/config', content: 'PWNED' },
    ])
    expect(taken.left).toContainEqual({ path: 'bare/HEAD', why: 'protected' })
    expect(existsSync(at('bare', 'HEAD'))).toBe(false)
  })

  test('a directory does not become one while the content of a file arrives', async () => {
    mkdirSync(at('bare', 'objects'), { recursive: true })
    writeFileSync(at('bare', 'config'), 'PWNED')
    const { plan, mount, copy } = copyOf()
    const content = 'ref: refs/heads/main'
    const bytes = archive([
      ...KEPT,
      ...SAME,
      dir('bare'),
      dir('bare/objects'),
      { name: 'bare/config', type: 'S' },
      { name: 'bare/HEAD', content },
    ])
    async function* pieces(): AsyncGenerator<Uint8Array> {
      const start = bytes.indexOf(content)
      yield bytes.subarray(0, start)
      // Another sandbox with the same workspace.
      mkdirSync(at('bare', 'refs'))
      yield bytes.subarray(start)
    }
    const reader = new TarReader(pieces(), { entries: 1000, bytes: 1_000_000 })
    const { left } = await new CopyOut(mount, copy.manifest, plan.protection, refusedBy).take(reader)
    expect(left).toContainEqual({ path: 'bare/HEAD', why: 'protected' })
    expect(readdirSync(at('bare')).sort()).toEqual(['config', 'objects', 'refs'])
  })

  test('no part of a repository is removed, or its settings would be free', async () => {
    for (const name of ['objects', 'refs']) mkdirSync(at('bare', name), { recursive: true })
    writeFileSync(at('bare', 'HEAD'), 'ref: refs/heads/main')
    const taken = await takeBack(['bare', 'bare/objects'].map(dir))
    expect(taken.left.map(({ path }) => path).sort()).toEqual(['bare/HEAD', 'bare/refs'])
    expect(existsSync(at('bare', 'HEAD'))).toBe(true)
  })

  test('a pattern of several names counts the end of the path of the workspace', async () => {
    workspace = join(base, '.config')
    mkdirSync(join(workspace, '.git', 'hooks'), { recursive: true })
    writeFileSync(at('.git', 'config'), 'mine')
    writeFileSync(at('a'), 'first')
    const taken = await takeBack([dir('git'), { name: 'git/config', content: 'PWNED' }, dir('other')])
    expect(taken.left.map(({ path }) => path)).toContain('git')
    expect(existsSync(at('git'))).toBe(false)
    expect(existsSync(at('other'))).toBe(true)
  })

  test('settings that name programs stay unchanged', async () => {
    for (const name of ['objects', 'refs', 'hooks']) mkdirSync(at('bare', name), { recursive: true })
    writeFileSync(at('bare', 'HEAD'), 'ref: refs/heads/main')
    const taken = await takeBack([
      ...['bare', 'bare/objects', 'bare/refs', 'bare/hooks'].map(dir),
      { name: 'bare/HEAD', type: 'S' },
      { name: 'bare/config', content: 'PWNED' },
      { name: 'bare/hooks/post-commit', content: 'PWNED' },
      { name: 'bare/FETCH_HEAD', content: 'fine' },
    ])
    expect(taken.left.map(({ path }) => path).sort()).toEqual(['bare/config', 'bare/hooks/post-commit'])
    expect(existsSync(at('bare', 'FETCH_HEAD'))).toBe(true)
  })

  test('a symlink does not redirect files that are loaded elsewhere', async () => {
    const taken = await takeBack([
      { name: '.github', type: '2', link: 'a' },
      { name: '.git/info', type: '2', link: '../a' },
      { name: 'fine', type: '2', link: 'a' },
    ])
    expect(taken.left.map(({ path }) => path).sort()).toEqual(['.git/info', '.github'])
    expect(existsSync(at('fine'))).toBe(true)
  })
})

describe('back from the guest', () => {
  test('new, changed and removed files', async () => {
    const taken = await takeBack(
      [
        ...KEPT,
        { name: '.git/config', type: 'S' },
        { name: 'new/deep', type: '5', mode: 0o755 },
        { name: 'new', type: '5', mode: 0o755 },
        { name: 'new/file', content: 'made', mode: 0o6755 },
        { name: 'link', type: '2', link: '/etc/passwd' },
      ],
      false,
    )
    expect(existsSync(at('a'))).toBe(false)
    expect(readFileSync(at('new', 'file'), 'utf8')).toBe('made')
    expect(lstatSync(at('new', 'file')).mode & 0o7777).toBe(0o755)
    expect(readlinkSync(at('link'))).toBe('/etc/passwd')
    // It came before its parent, which no valid archive does.
    expect(taken.left).toEqual([{ path: 'new/deep', why: 'refused' }])
  })

  test('a name that is not valid text is skipped, and only that one', async () => {
    const bytes = archive([
      ...KEPT,
      ...SAME,
      { name: 'b@d', type: '0', content: 'lost' },
      { name: 'good', type: '0', content: 'kept' },
    ])
    // The name of a file need not be UTF-8; the sum of its header has to fit.
    const header = bytes.indexOf('b@d')
    bytes[header + 1] = 0xff
    const sum = Number.parseInt(bytes.toString('latin1', header + 148, header + 154), 8) + 0xff - 0x40
    bytes.write(sum.toString(8).padStart(6, '0'), header + 148, 'latin1')
    const { plan, mount, copy } = copyOf()
    async function* whole(): AsyncGenerator<Uint8Array> {
      yield bytes
    }
    const reader = new TarReader(whole(), { entries: 1000, bytes: 1_000_000 })
    const { left } = await new CopyOut(mount, copy.manifest, plan.protection, refusedBy).take(reader)
    expect(left).toEqual([{ path: 'b\ufffdd', why: 'refused' }])
    expect(readFileSync(at('good'), 'utf8')).toBe('kept')
    expect(readdirSync(workspace).sort()).toEqual(['.git', 'a', 'good'])
  })

  test.each([['../outside/planted'], ['/etc/planted'], ['x/../../outside/planted'], ['./a'], ['x//y'], ['']])(
    'a name that leads outside the mount stops the copy: %s',
    async (name) => {
      await expect(takeBack([{ name: name || ' '.trim(), content: 'x' }])).rejects.toThrow(
        /leads outside|unsupported entry/,
      )
      expect(existsSync(join(outside, 'planted'))).toBe(false)
    },
  )

  test('a symlink to a dependency directory is created only in one', async () => {
    const link = (name: string, target: string): Entry => ({ name, type: '2', link: target, mode: 0o777 })
    const { left } = await takeBack([
      { name: 'node_modules', type: '5', mode: 0o755 },
      link('node_modules/other', '../node_modules/p'),
      link('shortcut', 'node_modules/p'),
      link('SHORTCUT', './Node_Modules/p'),
    ])
    expect(left).toEqual([
      { path: 'shortcut', why: 'protected' },
      { path: 'SHORTCUT', why: 'protected' },
    ])
    expect(readlinkSync(at('node_modules', 'other'))).toBe('../node_modules/p')
  })

  test('what would complete a repository at a path that cannot be looked at is not created', () => {
    const unknown = (): boolean => {
      throw new Error('too long')
    }
    const { plan } = copyOf()
    for (const path of ['d/HEAD', 'd/config', 'd/hooks/post-commit'])
      expect(touchesRepository(plan.protection as Protection, path, unknown)).toBe(true)
    expect(touchesRepository(plan.protection as Protection, 'd/other', unknown)).toBe(false)
  })

  test('nothing is written through a symlink of the guest or of the host', async () => {
    symlinkSync(outside, at('way'))
    const taken = await takeBack([
      { name: 'way', type: '2', link: outside },
      { name: 'way/planted', content: 'x' },
      { name: 'mine', type: '2', link: outside },
      { name: 'mine/planted', content: 'x' },
    ])
    expect(existsSync(join(outside, 'planted'))).toBe(false)
    expect(taken.left.map(({ path }) => path)).toEqual(['way/planted', 'mine/planted'])
  })

  test('a symlink that replaces a file does not expose its target', async () => {
    const { plan, mount, copy } = copyOf()
    rmSync(at('a'))
    symlinkSync(join(outside, 'secret'), at('a'))
    const bytes = archive([...KEPT, { name: '.git/config', type: 'S' }, { name: 'a', content: 'PWNED' }])
    const reader = new TarReader(
      (async function* () {
        yield bytes
      })(),
      { entries: 100, bytes: 1000 },
    )
    const taken = await new CopyOut(mount, copy.manifest, plan.protection, refusedBy).take(reader)
    expect(taken.left).toEqual([{ path: 'a', why: 'changed' }])
    expect(readFileSync(join(outside, 'secret'), 'utf8')).toBe('secret')
  })

  test('protected names are not created, changed or removed', async () => {
    const taken = await takeBack(
      [
        { name: '.git', type: '5', mode: 0o755 },
        { name: '.git/hooks', type: '5', mode: 0o755 },
        { name: '.git/hooks/pre-commit', content: 'PWNED', mode: 0o755 },
        { name: '.envrc', content: 'PWNED' },
        { name: 'm', type: '5', mode: 0o755 },
        { name: 'm/.GIT', type: '5', mode: 0o755 },
        { name: 'm/.GIT/HEAD', content: 'PWNED' },
        { name: 'a', type: 'S' },
      ],
      false,
    )
    expect(readFileSync(at('.git', 'config'), 'utf8')).toBe('mine')
    expect(existsSync(at('.git', 'hooks', 'pre-commit'))).toBe(false)
    expect(existsSync(at('.envrc'))).toBe(false)
    expect(existsSync(at('m', '.GIT'))).toBe(false)
    expect(taken.left.map(({ path, why }) => `${why} ${path}`)).toEqual([
      'protected .git/hooks/pre-commit',
      'protected .envrc',
      'protected m/.GIT',
      'protected .git/config',
    ])
  })

  test('changes of the host in the meantime are kept', async () => {
    const { plan, mount, copy } = copyOf()
    writeFileSync(at('a'), 'by the host')
    writeFileSync(at('later'), 'by the host')
    const bytes = archive([
      ...KEPT,
      { name: '.git/config', type: 'S' },
      { name: 'a', content: 'x' },
      { name: 'later', content: 'y' },
    ])
    const reader = new TarReader(
      (async function* () {
        yield bytes
      })(),
      { entries: 100, bytes: 1000 },
    )
    const taken = await new CopyOut(mount, copy.manifest, plan.protection, refusedBy).take(reader)
    expect(taken.left.map(({ path, why }) => [path, why])).toEqual([
      ['a', 'changed'],
      ['later', 'changed'],
    ])
    expect(readFileSync(at('a'), 'utf8')).toBe('by the host')
    expect(readFileSync(at('later'), 'utf8')).toBe('by the host')
  })

  test('a file with a hard link outside is replaced, not written to', async () => {
    linkSync(at('a'), join(outside, 'hard'))
    await takeBack([...KEPT, { name: '.git/config', type: 'S' }, { name: 'a', content: 'changed' }], false)
    expect(readFileSync(at('a'), 'utf8')).toBe('changed')
    expect(readFileSync(join(outside, 'hard'), 'utf8')).toBe('first')
  })

  test('files that the guest made unreadable are not treated as deleted', async () => {
    mkdirSync(at('dir'))
    writeFileSync(at('dir', 'file'), 'x')
    chmodSync(at('dir'), 0o755)
    await takeBack([
      { name: 'dir', type: '5', mode: 0 },
      { name: 'dir', type: 'U' },
    ])
    expect(existsSync(at('dir', 'file'))).toBe(true)
  })

  test.each([
    ['a device', [{ name: 'd', type: '3' }]],
    ['a hard link', [{ name: 'd', type: '1', link: '/etc/passwd' }]],
    ['a directory with content', [{ name: 'd', type: '5', size: 512, content: '' }]],
    ['more than the limit', [{ name: 'd', content: 'x', size: 10_000_000 }]],
    ['a truncated file', [{ name: 'd', content: '', size: 100_000 }]],
  ] as const)('%s is refused', async (_, entries) => {
    await expect(takeBack(entries)).rejects.toMatchObject({ code: 'path-traversal' })
  })

  test('too many entries are refused', async () => {
    const many = Array.from({ length: 2000 }, (_, index) => ({ name: `f${index}`, type: 'S' }))
    await expect(takeBack(many)).rejects.toThrow(/too many/)
  })
})

describe('a guest that chooses many names', () => {
  /** Copies back from a guest that removed `count` files and made as many directories unreadable. */
  async function takeGone(count: number): Promise<{ readonly turns: number; readonly cpu: number }> {
    const { plan, mount, copy } = copyOf()
    const state = copy.manifest.get('a') as Copied
    for (let n = 0; n < count; n++) {
      copy.manifest.set(`gone-${n}`, { ...state })
      copy.manifest.set(`closed-${n}/file`, { ...state })
    }
    const closed = Array.from({ length: count }, (_, n) => ({ name: `closed-${n}`, type: 'U' }))
    const bytes = archive([...KEPT, ...SAME, ...closed])
    let turns = 0
    let isOver = false
    const tick = (): void => {
      turns++
      if (!isOver) setImmediate(tick)
    }
    let before = process.cpuUsage()
    async function* pieces(): AsyncGenerator<Uint8Array> {
      yield bytes
      before = process.cpuUsage()
      setImmediate(tick)
    }
    const { left } = await new CopyOut(mount, copy.manifest, plan.protection, refusedBy).take(
      new TarReader(pieces()),
    )
    const { user, system } = process.cpuUsage(before)
    isOver = true
    expect(left).toEqual([])
    expect(copy.manifest.has('gone-1')).toBe(false)
    expect(copy.manifest.has('closed-1/file')).toBe(true)
    return { turns, cpu: user + system }
  }

  test('costs time in proportion to them, in turns with other work', async () => {
    await takeGone(200)
    const small = await takeGone(2000)
    const large = await takeGone(10_000)
    expect(large.turns).toBeGreaterThan(20)
    expect(large.cpu).toBeLessThan(15 * small.cpu)
  })

  test('cannot make the host remember names without end', async () => {
    const { plan, mount, copy } = copyOf()
    const state = copy.manifest.get('a') as Copied
    const room = 1000
    for (let left = NAME_BYTES - room; left > 0; left -= 4000)
      copy.manifest.set(
        `closed/${String(left).padStart(Math.min(left, 4000) - 'closed/'.length, 'n')}`,
        state,
      )
    const names = Array.from({ length: 20 }, (_, n) => `${'m'.repeat(198)}${n}`.slice(-200))
    const entries: readonly Entry[] = [
      ...[...KEPT, { name: '.git/config', type: 'S' }, { name: 'closed', type: 'U' }],
      ...[{ name: 'a', content: 'changed' }, ...names.map((name) => ({ name, content: 'x' }))],
    ]
    async function* pieces(): AsyncGenerator<Uint8Array> {
      yield archive(entries)
    }
    const { left } = await new CopyOut(mount, copy.manifest, plan.protection, refusedBy).take(
      new TarReader(pieces()),
    )
    expect(left.map(({ why }) => why)).toEqual(Array(16).fill('refused'))
    expect(readFileSync(at('a'), 'utf8')).toBe('changed')
  })
})
