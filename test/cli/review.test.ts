import {
  appendFileSync,
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { Sandbox } from '../../src/api.ts'
import { unifiedDiff } from '../../src/cli/terminal/text-diff.ts'

let base: string
let workspace: string
let options: { readonly env: NodeJS.ProcessEnv; readonly cwd: string }

beforeEach(() => {
  base = mkdtempSync(join(tmpdir(), 'rf-review-'))
  chmodSync(base, 0o755)
  workspace = join(base, 'ws')
  mkdirSync(join(workspace, 'dir'), { recursive: true })
  for (const [name, text] of [
    ['kept', 'kept\n'],
    ['edited', 'one\ntwo\n'],
    ['removed', 'gone\n'],
    ['dir/inner', 'inner\n'],
  ] as const)
    writeFileSync(join(workspace, name), text)
  options = { env: { ...process.env, RINGFENCE_HOME: join(base, 'home') }, cwd: workspace }
})

afterEach(() => rmSync(base, { recursive: true, force: true }))

const LINE =
  'echo three >> edited; rm removed; echo new > added; chmod 755 kept; ln -s kept link; rm -r dir; mkdir dir; ' +
  'echo other > dir/fresh; printf "a\\0b" > binary; mkfifo pipe'

const reviewed = async (line: string, more: Record<string, unknown> = {}) => {
  const sandbox = await Sandbox.create({ workspace, review: true, ...more }, options)
  const { outcome } = await sandbox.exec(line, { approve: () => true })
  expect(outcome).toEqual({ kind: 'exited', code: 0 })
  await sandbox.close()
  return sandbox.review as NonNullable<typeof sandbox.review>
}

const listed = (changes: readonly { readonly change: string; readonly relative: string }[]) =>
  changes.map(({ change, relative }) => `${change} ${relative}`)

describe('run --review', () => {
  test('leaves the originals unchanged and lists every change', async () => {
    const review = await reviewed(LINE)
    expect(readFileSync(join(workspace, 'edited'), 'utf8')).toBe('one\ntwo\n')
    expect(readdirSync(workspace).sort()).toEqual(['dir', 'edited', 'kept', 'removed'])
    const changes = await review.changes()
    expect(listed(changes)).toEqual(
      [
        'added added',
        'added binary',
        'added dir/fresh',
        'deleted dir/inner',
        'changed edited',
        'mode kept',
        'added link',
        'added pipe',
        'deleted removed',
      ].sort((a, b) => ((a.split(' ')[1] as string) < (b.split(' ')[1] as string) ? -1 : 1)),
    )
    expect(changes.find(({ relative }) => relative === 'binary')?.binary).toBe(true)
    expect(changes.find(({ relative }) => relative === 'pipe')?.kind).toBe('other')
  })

  test('applies all changes except special files', async () => {
    const review = await reviewed(LINE)
    const refused = await review.apply()
    expect(refused.map(({ path }) => path)).toEqual([join(workspace, 'pipe')])
    expect(readFileSync(join(workspace, 'edited'), 'utf8')).toBe('one\ntwo\nthree\n')
    expect(statSync(join(workspace, 'kept')).mode & 0o777).toBe(0o755)
    expect(readlinkSync(join(workspace, 'link'))).toBe('kept')
    expect(readdirSync(join(workspace, 'dir'))).toEqual(['fresh'])
    expect(existsSync(join(workspace, 'removed'))).toBe(false)
    expect(existsSync(join(workspace, 'pipe'))).toBe(false)
    expect(readdirSync(workspace).filter((name) => name.startsWith('.ringfence'))).toEqual([])
  })

  test('applies some changes, then the rest', async () => {
    const review = await reviewed('echo a > a; echo b > b')
    expect(await review.apply(({ relative }) => relative === 'b')).toEqual([])
    expect([existsSync(join(workspace, 'a')), existsSync(join(workspace, 'b'))]).toEqual([false, true])
    expect(await review.apply()).toEqual([])
    expect(readFileSync(join(workspace, 'a'), 'utf8')).toBe('a\n')
    expect(readdirSync(join(base, 'home', 'reviews'))).toEqual([])
  })

  test('does not overwrite an original that changed meanwhile', async () => {
    const review = await reviewed('echo mine >> edited; echo x > added; rm removed; rm -r dir')
    writeFileSync(join(workspace, 'edited'), 'somebody else\n')
    writeFileSync(join(workspace, 'added'), 'somebody else\n')
    writeFileSync(join(workspace, 'dir', 'late'), 'somebody else\n')
    const refused = await review.apply()
    expect(refused.map(({ path }) => path).sort()).toEqual(
      ['added', 'dir', 'edited'].map((name) => join(workspace, name)),
    )
    expect(readFileSync(join(workspace, 'edited'), 'utf8')).toBe('somebody else\n')
    expect(existsSync(join(workspace, 'dir', 'late'))).toBe(true)
    expect(existsSync(join(workspace, 'removed'))).toBe(false)
  })

  test('does not follow a symlink in the path', async () => {
    const review = await reviewed('echo x > dir/added')
    rmSync(join(workspace, 'dir'), { recursive: true })
    const outside = join(base, 'outside')
    mkdirSync(outside)
    const { symlinkSync } = await import('node:fs')
    symlinkSync(outside, join(workspace, 'dir'))
    expect((await review.apply()).length).toBeGreaterThan(0)
    expect(readdirSync(outside)).toEqual([])
  })

  test('applies files without setuid bits', async () => {
    const review = await reviewed(
      `python3 -c 'open("tool", "w"); import os; os.chmod("tool", 0o4755)' || echo x > tool`,
    )
    await review.apply()
    expect(lstatSync(join(workspace, 'tool')).mode & 0o7000).toBe(0)
  })

  test('keeps sparse files sparse, and gives a changed large file a new version', async () => {
    const review = await reviewed('truncate -s 200M holes; echo end >> holes')
    const [change] = await review.changes()
    const name = await review.version(change as NonNullable<typeof change>)
    appendFileSync(join(change?.upper as string, 'holes'), 'more\n')
    expect(await review.version(change as NonNullable<typeof change>)).not.toBe(name)
    expect(await review.apply()).toEqual([])
    const { size, blocks } = lstatSync(join(workspace, 'holes'))
    expect(size).toBe(200 * 1024 * 1024 + 'end\nmore\n'.length)
    expect(blocks * 512).toBeLessThan(8 * 1024 * 1024)
    expect(readFileSync(join(workspace, 'holes')).subarray(-9).toString()).toBe('end\nmore\n')
  })

  test('leaves nothing after a drop', async () => {
    const review = await reviewed(LINE)
    review.drop()
    expect(readdirSync(join(base, 'home', 'reviews'))).toEqual([])
    expect(readFileSync(join(workspace, 'removed'), 'utf8')).toBe('gone\n')
  })

  test('keeps protected names protected', async () => {
    const sandbox = await Sandbox.create({ workspace, review: true }, options)
    const { violations } = await sandbox.exec(`python3 -c 'import os; os.makedirs(".g" + "it")' || true`, {
      approve: () => true,
    })
    await sandbox.close()
    expect(violations.map(({ guarantee }) => guarantee)).toContain('fs.protect')
    expect(readdirSync(join(base, 'home', 'reviews'))).toEqual([])
  })

  test('refuses a second writable grant inside the workspace', async () => {
    const nested = { write: [join(workspace, 'dir')] }
    await expect(Sandbox.create({ workspace, review: true, ...nested }, options)).rejects.toMatchObject({
      code: 'unsupported',
    })
    expect(readdirSync(join(base, 'home', 'reviews'))).toEqual([])
  })
})

describe('the text diff', () => {
  test('shows removed and added lines with context', () => {
    const before = Array.from({ length: 20 }, (_, i) => `line ${i}`).join('\n')
    const after = before.replace('line 10', 'line ten')
    expect(unifiedDiff(before, after, 'f')).toBe(
      [
        '--- a/f',
        '+++ b/f',
        '@@ -8,7 +8,7 @@',
        ' line 7',
        ' line 8',
        ' line 9',
        '-line 10',
        '+line ten',
        ' line 11',
        ' line 12',
        ' line 13',
      ].join('\n'),
    )
  })

  test('is empty for equal texts', () => {
    expect(unifiedDiff('a\n', 'a\n', 'f')).toBe('')
  })
})
