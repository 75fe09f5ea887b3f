import { hash } from 'node:crypto'
import {
  copyFileSync,
  cpSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { canonical } from './canonical.ts'
import { createKey, type TrailRecord } from './chain.ts'
import { pathsOf, segmentPath, segmentsIn } from './files.ts'
import { openTrail, type TrailOptions } from './trail.ts'
import { type Verdict, verifyTrail } from './verify.ts'

let root = ''
let made = ''
let home = ''

async function fill(dir: string, count: number, options: Partial<TrailOptions> = {}): Promise<void> {
  const trail = await openTrail({ home: dir, checkpointEvery: 7, segmentBytes: 2000, ...options })
  for (let index = 0; index < count; index++) {
    const details = { note: `record ${index} é`, hash: 'ab'.repeat(32) }
    await trail.append({ event: 'SandboxViolation', agent_id: 'a', details, outcome: 'denied' })
  }
  await trail.close()
}

// Created once and copied for each case: 20 events and their checkpoints in several segments.
beforeAll(async () => {
  root = mkdtempSync(join(tmpdir(), 'ringfence-verify-'))
  made = join(root, 'made')
  await fill(made, 20)
})
beforeEach(() => {
  home = join(root, 'home')
  rmSync(home, { recursive: true, force: true })
  cpSync(made, home, { recursive: true })
})
afterAll(() => rmSync(root, { recursive: true, force: true }))

const RECORDS = 24

/** All lines with the segment they are in. */
const linesOf = (dir: string): { readonly segment: number; readonly line: string }[] =>
  segmentsIn(dir).flatMap((segment) =>
    readFileSync(segmentPath(dir, segment), 'utf8')
      .split('\n')
      .slice(0, -1)
      .map((line) => ({ segment, line })),
  )

function rewrite(lines: readonly { readonly segment: number; readonly line: string }[]): void {
  for (const segment of segmentsIn(home)) {
    const own = lines.filter((entry) => entry.segment === segment)
    writeFileSync(segmentPath(home, segment), own.map(({ line }) => `${line}\n`).join(''))
  }
}

/** An attacker without the key: changes a record and recomputes every later hash. */
function rehash(from: number, change: (record: Record<string, unknown>) => void): void {
  const lines = linesOf(home)
  let prev = from === 0 ? '0'.repeat(64) : JSON.parse(lines[from - 1]?.line ?? '').hash
  for (let at = from; at < lines.length; at++) {
    const entry = lines[at]
    if (entry === undefined) break
    const { hash: _own, ...record } = JSON.parse(entry.line)
    if (at === from) change(record)
    record.prev_hash = prev
    prev = hash('sha256', canonical(record), 'hex')
    lines[at] = { ...entry, line: canonical({ ...record, hash: prev }) }
  }
  rewrite(lines)
}

const firstBad = (verdict: Verdict): number | string => (verdict.ok ? 'ok' : verdict.seq)

describe('verify', () => {
  it('accepts an intact log', async () => {
    expect(segmentsIn(home).length).toBeGreaterThan(3)
    expect(await verifyTrail(home)).toEqual({ ok: true, records: RECORDS, checkpoints: 4 })
  })

  it('accepts an empty log', async () => {
    expect(await verifyTrail(join(root, 'absent'))).toEqual({ ok: true, records: 0, checkpoints: 0 })
  })

  it('names the record of every single changed byte', async () => {
    const dir = join(root, 'bytes')
    await fill(dir, 4, { segmentBytes: 1 << 20, checkpointEvery: 3 })
    const path = segmentPath(dir, 1)
    const bytes = readFileSync(path)
    let record = 0
    for (let at = 0; at < bytes.length; at++) {
      const original = bytes[at] ?? 0
      bytes[at] = original ^ (at % 3 === 0 ? 0x20 : 1)
      writeFileSync(path, bytes)
      bytes[at] = original
      const verdict = await verifyTrail(dir)
      if (firstBad(verdict) !== record)
        expect.fail(`byte ${at} of record ${record}: ${JSON.stringify(verdict)}`)
      if (original === 10) record += 1
    }
  })

  it('detects every kind of changed byte in the signed head', async () => {
    const { head } = pathsOf(home)
    const bytes = readFileSync(head)
    for (let at = 0; at < bytes.length; at += 211) {
      const original = bytes[at] ?? 0
      bytes[at] = original ^ 1
      writeFileSync(head, bytes)
      bytes[at] = original
      expect((await verifyTrail(home)).ok, `byte ${at}`).toBe(false)
    }
  })

  it.each([0, 5, 6, 7, 13, RECORDS - 1])('finds record %i deleted', async (at) => {
    rewrite(linesOf(home).filter((_, index) => index !== at))
    expect(firstBad(await verifyTrail(home))).toBe(at)
  })

  it.each([0, 6, RECORDS - 1])('finds record %i doubled', async (at) => {
    rewrite(linesOf(home).flatMap((entry, index) => (index === at ? [entry, entry] : [entry])))
    expect(firstBad(await verifyTrail(home))).toBe(at + 1)
  })

  it.each([0, 9, RECORDS - 2])('finds record %i exchanged with the next', async (at) => {
    const lines = linesOf(home)
    const [one, two] = [lines[at], lines[at + 1]]
    if (one && two) {
      lines[at] = { ...one, line: two.line }
      lines[at + 1] = { ...two, line: one.line }
    }
    rewrite(lines)
    expect(firstBad(await verifyTrail(home))).toBe(at)
  })

  it.each([1, 2, 3, 10, RECORDS])('finds the last %i cut off', async (count) => {
    rewrite(linesOf(home).slice(0, RECORDS - count))
    expect(firstBad(await verifyTrail(home))).toBe(RECORDS - count)
  })

  it('finds a line inserted anywhere', async () => {
    for (const at of [0, 4, 11, RECORDS]) {
      rmSync(home, { recursive: true })
      cpSync(made, home, { recursive: true })
      const lines = linesOf(home)
      const forged = { segment: lines[Math.min(at, RECORDS - 1)]?.segment ?? 1, line: '{"event":"Exec"}' }
      rewrite([...lines.slice(0, at), forged, ...lines.slice(at)])
      expect(firstBad(await verifyTrail(home))).toBe(at)
    }
  })

  it('finds a correctly chained record appended by someone else', async () => {
    const lines = linesOf(home)
    const last = JSON.parse(lines.at(-1)?.line ?? '')
    const { hash: _own, ...record } = { ...last, event: 'Exec', seq: RECORDS, prev_hash: last.hash }
    const own = hash('sha256', canonical(record), 'hex')
    rewrite([...lines, { segment: lines.at(-1)?.segment ?? 1, line: canonical({ ...record, hash: own }) }])
    expect(await verifyTrail(home)).toEqual({
      ok: false,
      seq: RECORDS,
      problem: 'it is beyond the signed head, and no writer was active',
    })
  })

  it('finds text shifted from one field into another', async () => {
    const lines = linesOf(home)
    const entry = lines[2]
    if (entry)
      lines[2] = {
        ...entry,
        line: entry.line.replace('"agent_id":"a"', '"agent_id":"ad"').replace('"denied"', '"enied"'),
      }
    rewrite(lines)
    expect(firstBad(await verifyTrail(home))).toBe(2)
  })

  it.each([0, 3, 8, 15, RECORDS - 1])(
    'names record %i as the first when all hashes from it on were recomputed',
    async (at) => {
      rehash(at, (record) => {
        record.agent_id = 'b'
      })
      expect(firstBad(await verifyTrail(home))).toBe(at)
    },
  )

  it('finds a rewritten log even if the stored hashes are gone', async () => {
    rehash(3, (record) => {
      record.agent_id = 'b'
    })
    unlinkSync(pathsOf(home).leaves)
    // Record 7 is the first checkpoint after it.
    expect(firstBad(await verifyTrail(home))).toBe(7)
  })

  it('finds the hash moved to another position in its line', async () => {
    const lines = linesOf(home)
    const entry = lines[4]
    const member = /"hash":"[0-9a-f]{64}",(?="outcome)/.exec(entry?.line ?? '')?.[0] ?? ''
    if (entry)
      lines[4] = {
        ...entry,
        line: entry.line.replace(member, '').replace('"prev_hash"', `${member}"prev_hash"`),
      }
    expect(lines[4]?.line).toHaveLength(entry?.line.length ?? 0)
    rewrite(lines)
    expect(firstBad(await verifyTrail(home))).toBe(4)
  })

  it('finds a deleted segment, first, middle or last', async () => {
    for (const segment of [1, 2, segmentsIn(made).at(-1) ?? 0]) {
      rmSync(home, { recursive: true })
      cpSync(made, home, { recursive: true })
      rmSync(segmentPath(home, segment))
      const first = linesOf(made).findIndex((entry) => entry.segment === segment)
      expect(firstBad(await verifyTrail(home))).toBe(first)
    }
  })

  it('finds the whole log deleted, the head deleted, the key deleted', async () => {
    rmSync(pathsOf(home).trail, { recursive: true })
    expect(firstBad(await verifyTrail(home))).toBe(0)
    rmSync(pathsOf(home).head)
    expect(firstBad(await verifyTrail(home))).toBe(0)
    cpSync(made, home, { recursive: true })
    rmSync(pathsOf(home).key)
    expect(firstBad(await verifyTrail(home))).toBe(0)
    await expect(openTrail({ home })).rejects.toThrow(/signing key is missing/)
  })

  it('finds two logs swapped, with and without their heads', async () => {
    const other = join(root, 'other')
    await fill(other, 20)
    rmSync(pathsOf(home).trail, { recursive: true })
    cpSync(pathsOf(other).trail, pathsOf(home).trail, { recursive: true })
    expect(firstBad(await verifyTrail(home))).toBe(0)
    cpSync(pathsOf(other).anchor, pathsOf(home).anchor, { recursive: true })
    expect((await verifyTrail(home)).ok).toBe(false)
  })

  it('finds a head signed with a foreign key', async () => {
    writeFileSync(pathsOf(home).key, JSON.stringify(createKey()))
    const verdict = await verifyTrail(home)
    expect(verdict).toMatchObject({ ok: false, seq: 7 })
  })

  it('finds a rolled back log, a rolled back head, and both with a head kept elsewhere', async () => {
    const trail = await openTrail({ home })
    await trail.append({ event: 'Exec' })
    const now = join(root, 'now')
    cpSync(home, now, { recursive: true })
    cpSync(made, home, { recursive: true })
    copyFileSync(pathsOf(now).head, pathsOf(home).head)
    expect(firstBad(await verifyTrail(home))).toBe(RECORDS)

    cpSync(now, home, { recursive: true })
    copyFileSync(pathsOf(made).head, pathsOf(home).head)
    expect(firstBad(await verifyTrail(home))).toBe(RECORDS)

    const heads = readFileSync(pathsOf(now).head, 'utf8').trim().split('\n')
    const against = heads.map((line) => JSON.parse(line).head).find(({ count }) => count === RECORDS + 1)
    expect((await verifyTrail(now, { against })).ok).toBe(true)
    expect(firstBad(await verifyTrail(made, { against }))).toBe(RECORDS)
  })

  it('does not report a crash as tampering: the dead writer left its lock', async () => {
    const trail = await openTrail({ home })
    await trail.append({ event: 'Exec' })
    copyFileSync(pathsOf(made).head, pathsOf(home).head)
    symlinkSync('1.1.00000000.1.x', pathsOf(home).lock)
    expect(await verifyTrail(home)).toMatchObject({ ok: true, records: RECORDS })
    const next = await openTrail({ home })
    await next.append({ event: 'Exec', exec_id: 'after' })
    await next.close()
    expect(await verifyTrail(home)).toMatchObject({ ok: true, records: RECORDS + 2 })
  })

  it('finds a file put in place of a segment', async () => {
    renameSync(segmentPath(home, 1), join(home, 'elsewhere'))
    symlinkSync(join(home, 'elsewhere'), segmentPath(home, 1))
    expect(firstBad(await verifyTrail(home))).toBe(0)
  })

  it('keeps each record linked to the one before', () => {
    const records = linesOf(home).map(({ line }) => JSON.parse(line) as TrailRecord)
    expect(records[0]?.prev_hash).toBe('0'.repeat(64))
    for (const [at, record] of records.entries()) {
      expect(record.seq).toBe(at)
      if (at > 0) expect(record.prev_hash).toBe(records[at - 1]?.hash)
    }
  })
})
