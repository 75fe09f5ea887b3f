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
  it('is kept for each agent, and for nobody else', async () => {
    await memoryOf(dir, 'a').store('key', { n: 1 })
    expect(await memoryOf(dir, 'a').recall('key')).toEqual({ n: 1 })
    expect(await memoryOf(dir, 'b').recall('key')).toBeUndefined()
    await memoryOf(dir, 'a').store('key', null)
    expect(await memoryOf(dir, 'a').recall('key')).toBe(null)
  })

  it('lets no name choose a place', async () => {
    const memory = memoryOf(dir, '../../x')
    for (const key of ['../../escape', 'a/b', '', '\0', '__proto__']) {
      await memory.store(key, key)
      expect(await memory.recall(key)).toBe(key)
    }
    expect(readdirSync(dir)).toEqual(['memory'])
  })

  it('has quotas of keys and of bytes; replacing is not adding', async () => {
    const memory = memoryOf(dir, 'a', { keys: 3, bytes: 200 })
    for (const key of ['1', '2', '3', '3']) await memory.store(key, 'x')
    await expect(memory.store('4', 'x')).rejects.toMatchObject({ code: 'resource-exhausted' })
    await expect(memory.store('3', 'x'.repeat(200))).rejects.toMatchObject({ code: 'resource-exhausted' })
    expect(await memory.recall('3')).toBe('x')
  })
})

describe('usage', () => {
  const run = { skill: 's', fuel: 10, duration_ms: 1.5, violations: 1, ok: true }
  it('adds up by skill', () => {
    const log = new UsageLog(dir)
    expect(log.read()).toEqual([])
    for (const skill of ['s', 'b', 's']) log.add({ ...run, skill })
    expect(new UsageLog(dir).read()).toEqual([
      { skill: 'b', runs: 1, fuel: 10, duration_ms: 1.5, violations: 1 },
      { skill: 's', runs: 2, fuel: 20, duration_ms: 3, violations: 2 },
    ])
  })

  it('survives a line that a crash has cut, and what comes after it', () => {
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

  it('takes no more room than the sums do, and says the same', () => {
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

  it('is not made anew with every run where even the sums are many', () => {
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

  it('goes on after one who died in its turn, and never replaces what another one holds', () => {
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
  it('counts characters, whatever the chunks cut through', () => {
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
