import {
  appendFileSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { createLock } from '../audit/lock.ts'
import { memoryOf } from './memory.ts'
import { BoundedOutput } from './output.ts'
import { UsageLog } from './usage.ts'

let dir: string
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'rf-stores-'))
})
afterEach(() => rmSync(dir, { recursive: true, force: true }))

describe('memory', () => {
  it('is private to each agent', async () => {
    await memoryOf(dir, 'a').store('key', { n: 1 })
    expect(await memoryOf(dir, 'a').recall('key')).toEqual({ n: 1 })
    expect(await memoryOf(dir, 'b').recall('key')).toBeUndefined()
    await memoryOf(dir, 'a').store('key', null)
    expect(await memoryOf(dir, 'a').recall('key')).toBe(null)
  })

  it('never uses an agent name or a key as a path', async () => {
    const memory = memoryOf(dir, '../../x')
    for (const key of ['../../escape', 'a/b', '', '\0', '__proto__']) {
      await memory.store(key, key)
      expect(await memory.recall(key)).toBe(key)
    }
    expect(readdirSync(dir)).toEqual(['memory'])
  })

  it('enforces quotas of keys and bytes; replacing a key does not count as adding one', async () => {
    const memory = memoryOf(dir, 'a', { keys: 3, bytes: 200 })
    for (const key of ['1', '2', '3', '3']) await memory.store(key, 'x')
    await expect(memory.store('4', 'x')).rejects.toMatchObject({ code: 'resource-exhausted' })
    await expect(memory.store('3', 'x'.repeat(200))).rejects.toMatchObject({ code: 'resource-exhausted' })
    expect(await memory.recall('3')).toBe('x')
  })
})

describe('usage', () => {
  const run = { skill: 's', fuel: 10, duration_ms: 1.5, violations: 1, ok: true }
  it('sums up runs by skill', () => {
    const log = new UsageLog(dir)
    expect(log.read()).toEqual([])
    for (const skill of ['s', 'b', 's']) log.add({ ...run, skill })
    expect(new UsageLog(dir).read()).toEqual([
      { skill: 'b', runs: 1, fuel: 10, duration_ms: 1.5, violations: 1 },
      { skill: 's', runs: 2, fuel: 20, duration_ms: 3, violations: 2 },
    ])
  })

  it('ignores a line truncated by a crash and keeps the lines after it', () => {
    const log = new UsageLog(dir)
    log.add(run)
    const file = join(dir, 'skills', 'usage.jsonl')
    for (let cut = 1; cut < 30; cut += 7) {
      writeFileSync(file, `${readFileSync(file, 'utf8')}${JSON.stringify(run).slice(0, cut)}`)
      log.add(run)
    }
    appendFileSync(file, '{"skill":"s","fuel":-1,"duration_ms":1,"violations":0,"ok":true}\n[]\n')
    expect(log.read()).toMatchObject([{ skill: 's', runs: 6 }])
  })
})

describe('usage of many runs', () => {
  const file = (): string => join(dir, 'skills', 'usage.jsonl')
  const nth = (n: number) => ({
    skill: `s${n % 3}`,
    fuel: n,
    duration_ms: n / 7,
    violations: n % 2,
    ok: n % 5 > 0,
    ...(n % 4 > 0 && { agent: `a${n % 4}` }),
  })

  it('compacts the file and returns the same sums', () => {
    const [bounded, whole] = [new UsageLog(dir, { mostBytes: 4000 }), new UsageLog(join(dir, 'whole'))]
    for (let n = 0; n < 300; n++) {
      bounded.add(nth(n))
      whole.add(nth(n))
      expect(statSync(file()).size).toBeLessThan(4500)
    }
    for (const agent of [undefined, 'a1', 'a3', 'nobody'])
      expect(bounded.read(agent)).toEqual(whole.read(agent))
    expect(readdirSync(join(dir, 'skills'))).toEqual(['usage.jsonl'])
    expect(statSync(file()).mode & 0o777).toBe(0o600)
  })

  it('does not compact after every run when the sums alone exceed the limit', () => {
    const log = new UsageLog(dir, { mostBytes: 100 })
    let [replaced, last] = [0, 0]
    for (let n = 0; n < 200; n++) {
      log.add({ ...nth(n), agent: `a${n}` })
      const { ino } = statSync(file())
      if (ino !== last) replaced++
      last = ino
    }
    expect(replaced).toBeLessThan(12)
    expect(log.read().reduce((sum, { runs }) => sum + runs, 0)).toBe(200)
  })

  it('takes over the lock of a dead process and does not compact while another process holds it', () => {
    const lock = `${file()}.lock`
    const log = new UsageLog(dir, { mostBytes: 300 })
    log.add(nth(1))
    symlinkSync(`999999999.1.${'0'.repeat(8)}.1.dead`, lock)
    log.add(nth(2))
    expect(existsSync(lock)).toBe(false)
    createLock(lock).tryAcquire()
    const { ino } = statSync(file())
    for (const n of [3, 4]) log.add(nth(n))
    expect(statSync(file())).toMatchObject({ ino })
    expect(log.read().reduce((sum, { runs }) => sum + runs, 0)).toBe(4)
  }, 20_000)
})

describe('output', () => {
  it('counts characters even when chunks split them', () => {
    const bytes = Buffer.from('aä€𝄞'.repeat(10))
    for (const size of [1, 2, 3, 5, 1000]) {
      const output = new BoundedOutput(7)
      for (let at = 0; at < bytes.length; at += size) output.take('stdout', bytes.subarray(at, at + size))
      expect(output.result).toEqual({ stdout: 'aä€𝄞aä€', stderr: '', truncated: true })
    }
    const exact = new BoundedOutput(4)
    exact.take('stdout', Buffer.from('ab'))
    exact.take('stderr', Buffer.from('cd'))
    expect(exact.result).toEqual({ stdout: 'ab', stderr: 'cd', truncated: false })
  })
})
