import { execFileSync, spawn } from 'node:child_process'
import {
  appendFileSync,
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import ts from 'typescript'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import type { Event } from '../model/event.ts'
import type { TrailRecord } from './chain.ts'
import { pathsOf, segmentPath, segmentsIn } from './files.ts'
import { createLock } from './lock.ts'
import { exportTrail, readTail, readTrail } from './read.ts'
import { openTrail } from './trail.ts'
import { verifyTrail } from './verify.ts'

let root = ''
let home = ''
let run = 0
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'ringfence-trail-'))
})
beforeEach(() => {
  home = join(root, `home-${run++}`)
})
afterAll(() => rmSync(root, { recursive: true, force: true }))

const exec = (id: string | number): Event => ({ event: 'Exec', agent_id: 'a', exec_id: `ex_${id}` })

describe('append', () => {
  it('writes one canonical line per event and signs at close', async () => {
    const trail = await openTrail({ home, now: () => new Date(0) })
    await trail.append({ event: 'Exec', agent_id: 'é', left_out: undefined, argv: ['ls', '-l'], code: 0 })
    await trail.close()
    await trail.close()
    const [first, second, ...more] = [...exportTrail(home)]
    expect(first).toMatch(
      /^\{"agent_id":"é","argv":\["ls","-l"\],"code":0,"event":"Exec","hash":"[0-9a-f]{64}","prev_hash":"0{64}","seq":0,"time":"1970-01-01T00:00:00\.000Z"\}$/,
    )
    expect(JSON.parse(second ?? '')).toMatchObject({
      event: 'Checkpoint',
      seq: 1,
      head: { count: 1, seq: 0 },
    })
    expect(more).toEqual([])
    expect(await verifyTrail(home)).toEqual({ ok: true, records: 2, checkpoints: 1 })
  })

  it('is readable only by its owner', async () => {
    const trail = await openTrail({ home })
    await trail.append(exec(1))
    await trail.close()
    for (const dir of ['.', 'trail', 'anchor', 'keys'])
      expect(statSync(join(home, dir)).mode & 0o777).toBe(0o700)
    for (const dir of ['trail', 'anchor', 'keys']) {
      for (const file of readdirSync(join(home, dir)))
        expect(statSync(join(home, dir, file)).mode & 0o777, file).toBe(0o600)
    }
  })

  it('copies the event at the call', async () => {
    const trail = await openTrail({ home })
    const argv = ['ls']
    const done = trail.append({ event: 'Exec', argv })
    argv.push('-l')
    await done
    expect([...readTrail(home)][0]?.argv).toEqual(['ls'])
  })

  it.each<[string, unknown]>([
    ['seq', { event: 'Exec', seq: 1 }],
    ['time', { event: 'Exec', time: 'now' }],
    ['prev_hash', { event: 'Exec', prev_hash: '' }],
    ['hash', { event: 'Exec', hash: '' }],
    ['an invalid event name', { event: 'Exec', '7': 1 }],
    ['a missing event name', {}],
    ['a checkpoint', { event: 'Checkpoint' }],
    ['half a surrogate pair', { event: 'Exec', text: '\ud800' }],
    ['an event above the size limit', { event: 'Exec', text: 'x'.repeat(2 ** 20) }],
  ])('refuses %s', async (_name, event) => {
    const trail = await openTrail({ home })
    await expect(trail.append(event as Event)).rejects.toMatchObject({ code: 'invalid-input' })
    await trail.append(exec(1))
    expect(await verifyTrail(home)).toMatchObject({ ok: true, records: 1 })
  })

  it('rejects events after close', async () => {
    const trail = await openTrail({ home })
    await trail.close()
    await expect(trail.append(exec(1))).rejects.toMatchObject({ code: 'wrong-state' })
    await expect(trail.checkpoint()).rejects.toMatchObject({ code: 'wrong-state' })
    expect(await verifyTrail(home)).toEqual({ ok: true, records: 0, checkpoints: 0 })
  })

  it('rolls segments, checkpoints every N and continues after a reopening', async () => {
    for (let round = 0; round < 3; round++) {
      const trail = await openTrail({ home, segmentBytes: 1500, checkpointEvery: 5 })
      for (let id = 0; id < 10; id++) await trail.append(exec(id))
      await trail.close()
    }
    expect(segmentsIn(home).length).toBeGreaterThan(4)
    const records = [...readTrail(home)]
    expect(records.map(({ seq }) => seq)).toEqual(records.map((_, at) => at))
    const checkpoints = records.filter(({ event }) => event === 'Checkpoint').length
    expect(await verifyTrail(home)).toEqual({ ok: true, records: records.length, checkpoints })
  })

  it('lets many callers share a commit', async () => {
    const trail = await openTrail({ home })
    const [count, start] = [3000, performance.now()]
    let next = 0
    const caller = async () => {
      while (next < count) await trail.append(exec(next++))
    }
    await Promise.all(Array.from({ length: 64 }, caller))
    if (process.env.RINGFENCE_FULL) expect(count / ((performance.now() - start) / 1000)).toBeGreaterThan(5000)
    await trail.close()
    expect(new Set([...readTrail(home, { events: ['Exec'] })].map((record) => record.exec_id)).size).toBe(
      count,
    )
  })
})

describe('read', () => {
  it('selects by every field and reads the tail from the end', async () => {
    let clock = 0
    const trail = await openTrail({ home, segmentBytes: 1000, now: () => new Date(clock++ * 1000) })
    for (let id = 0; id < 12; id++) {
      const event = id % 3 === 0 ? 'SandboxViolation' : 'Exec'
      await trail.append({ event, agent_id: `a${id % 2}`, sandbox_id: `sb_${id % 4}`, exec_id: `ex_${id}` })
    }
    const ids = (records: Iterable<TrailRecord>) => [...records].map((record) => record.exec_id)
    expect(ids(readTrail(home, { eventType: 'sandbox', agentId: 'a0' }))).toEqual(['ex_0', 'ex_6'])
    expect(ids(readTrail(home, { events: ['Exec'], sandboxId: 'sb_1' }))).toEqual(['ex_1', 'ex_5'])
    expect(ids(readTrail(home, { since: new Date(11_000) }))).toEqual(['ex_10', 'ex_11'])
    expect(ids(readTrail(home, { execId: 'ex_4' }))).toEqual(['ex_4'])
    expect(ids(readTrail(home, { limit: 2 }))).toEqual(['ex_0', 'ex_1'])
    expect(ids(readTail(home, 3))).toEqual(['ex_9', 'ex_10', 'ex_11'])
    expect(ids(readTail(home, 3, { eventType: 'sandbox' }))).toEqual(['ex_3', 'ex_6', 'ex_9'])
    expect(readTail(home, 100)).toHaveLength(12)
    expect(readTail(join(root, 'absent'), 3)).toEqual([])
  })
})

describe('failures', () => {
  it('moves a partial line aside at the next append and never counts it', async () => {
    const trail = await openTrail({ home })
    await trail.append(exec(1))
    appendFileSync(segmentPath(home, 1), '{"agent_id":"a","event":"Ex')
    expect(await verifyTrail(home)).toMatchObject({ ok: true, records: 1 })
    expect([...exportTrail(home)]).toHaveLength(1)
    await trail.append(exec(2))
    await trail.close()
    expect(await verifyTrail(home)).toMatchObject({ ok: true, records: 3 })
    const aside = pathsOf(home).aside
    expect(readFileSync(join(aside, readdirSync(aside)[0] ?? ''), 'utf8')).toBe('{"agent_id":"a","event":"Ex')
  })

  it('refuses to append to a truncated log or one whose head was changed', async () => {
    const trail = await openTrail({ home })
    await trail.append(exec(1))
    const { head } = pathsOf(home)
    const bytes = readFileSync(head)
    writeFileSync(head, Buffer.from(bytes.toString().replaceAll('"count":1', '"count":0')))
    await expect(trail.append(exec(2))).rejects.toMatchObject({ code: 'trail-unwritable' })
    // The older head, copied over the newer one, is genuine; but the later record must not be dropped.
    writeFileSync(head, Buffer.concat([bytes.subarray(0, 4096), bytes.subarray(0, 4096)]))
    await expect(trail.append(exec(2))).rejects.toThrow(/beyond the signed head/)
    writeFileSync(head, bytes)
    truncateSync(segmentPath(home, 1), 10)
    await expect(trail.append(exec(2))).rejects.toThrow(/ends before record 0/)
  })

  it('times out on a lock that a living process holds', async () => {
    const trail = await openTrail({ home, lockWaitMs: 30 })
    const lock = createLock(pathsOf(home).lock)
    lock.tryAcquire()
    await expect(trail.append(exec(1))).rejects.toThrow(`locked by process ${process.pid}`)
    lock.release()
    await trail.append(exec(2))
    expect(await verifyTrail(home)).toMatchObject({ ok: true, records: 1 })
  })

  const isRoot = process.getuid?.() === 0
  it.runIf(isRoot)('refuses while the disk is full and continues when there is space again', async () => {
    mkdirSync(home)
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=128k', 'tmpfs', home])
    try {
      const trail = await openTrail({ home })
      await trail.append(exec(0))
      writeFileSync(join(home, 'ballast'), Buffer.alloc(40_000))
      const big = { event: 'Exec', text: 'x'.repeat(9000) } as const
      let failure: unknown
      let written = 1
      for (; written < 20 && failure === undefined; written++)
        failure = await trail.append(big).catch((error) => error)
      expect(failure).toMatchObject({ code: 'trail-unwritable', hint: expect.stringContaining('space') })
      expect(String(failure)).not.toContain('xxx')
      expect(await verifyTrail(home)).toMatchObject({ ok: true, records: written - 1 })
      rmSync(join(home, 'ballast'))
      await trail.append(big)
      await trail.close()
      expect(await verifyTrail(home)).toMatchObject({ ok: true, records: written + 1 })
    } finally {
      execFileSync('umount', [home])
    }
  })

  it.runIf(isRoot)('refuses on a read-only disk', async () => {
    mkdirSync(home)
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', home])
    try {
      const trail = await openTrail({ home })
      await trail.append(exec(0))
      execFileSync('mount', ['-o', 'remount,ro', home])
      await expect(trail.append(exec(1))).rejects.toMatchObject({ code: 'trail-unwritable' })
      expect(await verifyTrail(home)).toMatchObject({ ok: true, records: 1 })
      execFileSync('mount', ['-o', 'remount,rw', home])
      await trail.append(exec(2))
      expect(await verifyTrail(home)).toMatchObject({ ok: true, records: 2 })
    } finally {
      execFileSync('umount', [home])
    }
  })

  it.runIf(!isRoot)('refuses a directory without write permission', async () => {
    const trail = await openTrail({ home })
    chmodSync(pathsOf(home).anchor, 0o500)
    await expect(trail.append(exec(1))).rejects.toMatchObject({ code: 'trail-unwritable' })
    chmodSync(pathsOf(home).anchor, 0o700)
    await trail.append(exec(2))
    expect(await verifyTrail(home)).toMatchObject({ ok: true, records: 1 })
  })

  it('reports at opening that the state directory cannot be created', async () => {
    writeFileSync(home, '')
    await expect(openTrail({ home })).rejects.toMatchObject({ code: 'trail-unwritable' })
  })
})

describe('several processes', () => {
  let script = ''

  // Node 20 does not run TypeScript, so the modules that the children need are compiled once, file by file.
  beforeAll(() => {
    const src = join(import.meta.dirname, '..')
    const out = join(root, 'js')
    for (const room of ['audit', 'model']) {
      const files = readdirSync(join(src, room), { recursive: true, encoding: 'utf8' })
      for (const file of files.filter((name) => /^[^.]+\.ts$/.test(name))) {
        const target = join(out, room, file.replace(/ts$/, 'js'))
        mkdirSync(dirname(target), { recursive: true })
        const { outputText } = ts.transpileModule(readFileSync(join(src, room, file), 'utf8'), {
          compilerOptions: {
            target: ts.ScriptTarget.ES2022,
            module: ts.ModuleKind.ESNext,
            rewriteRelativeImportExtensions: true,
          },
        })
        writeFileSync(target, outputText)
      }
    }
    writeFileSync(join(out, 'package.json'), '{"type":"module"}')
    script = join(out, 'child.js')
    // Prints each acknowledged id at once, one per line.
    writeFileSync(
      script,
      `import { openTrail } from './audit/trail.js'
      import { writeSync } from 'node:fs'
      const [home, name, count] = process.argv.slice(2)
      const trail = await openTrail({ home, segmentBytes: 5000, checkpointEvery: 20 })
      for (let id = 0; id < Number(count); id++) {
        const exec_id = name + '-' + id
        await trail.append({ event: 'Exec', exec_id })
        writeSync(1, exec_id + '\\n')
      }
      await trail.close()`,
    )
  })

  function child(name: string, count: number) {
    const started = spawn(process.execPath, [script, home, name, String(count)], { cwd: dirname(script) })
    let acknowledged = ''
    let complaint = ''
    const speaking = new Promise<void>((resolve) => {
      started.stdout.on('data', (chunk) => {
        acknowledged += chunk
        resolve()
      })
    })
    started.stderr.on('data', (chunk) => {
      complaint += chunk
    })
    const ended = new Promise<{ code: number | null; ids: string[]; complaint: string }>((resolve) =>
      started.on('close', (code) => resolve({ code, ids: acknowledged.split('\n').slice(0, -1), complaint })),
    )
    return { ended, speaking, kill: () => started.kill('SIGKILL') }
  }

  it('append to one log, and a concurrent verification raises no false alarm', async () => {
    const children = ['a', 'b', 'c', 'd'].map((name) => child(name, 60))
    let running = true
    const all = Promise.all(children.map(({ ended }) => ended)).finally(() => {
      running = false
    })
    let verified = 0
    while (running) {
      expect(await verifyTrail(home)).toMatchObject({ ok: true })
      verified += 1
      await new Promise((resolve) => setTimeout(resolve, 1))
    }
    for (const { code, complaint } of await all)
      expect({ code, complaint }).toEqual({ code: 0, complaint: '' })
    const ids = [...readTrail(home, { events: ['Exec'] })].map((record) => String(record.exec_id))
    expect(ids).toHaveLength(240)
    expect(new Set(ids).size).toBe(240)
    expect(verified).toBeGreaterThan(3)
    expect(await verifyTrail(home)).toMatchObject({ ok: true })
  })

  it('killed at any moment, lose no acknowledged record and raise no alarm', async () => {
    const acknowledged: string[] = []
    for (let round = 0; round < 6; round++) {
      const children = ['a', 'b'].map((name) => child(`${name}${round}`, 10_000))
      await Promise.all(children.map(({ speaking }) => speaking))
      await new Promise((resolve) => setTimeout(resolve, 5 + round * 3.3))
      for (const { kill } of children) kill()
      for (const { ended } of children) acknowledged.push(...(await ended).ids)
      expect(await verifyTrail(home)).toMatchObject({ ok: true })
    }
    const trail = await openTrail({ home })
    await trail.append(exec('last'))
    await trail.close()
    expect(await verifyTrail(home)).toMatchObject({ ok: true })
    const kept = new Set([...readTrail(home)].map((record) => record.exec_id))
    expect(acknowledged.length).toBeGreaterThan(20)
    expect(acknowledged.filter((id) => !kept.has(id))).toEqual([])
  })
})
