import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openStoreTrail } from '../../src/audit/open-store-trail.ts'
import { StoreTrailReader } from '../../src/audit/store-read.ts'
import type { TrailHead, TrailProof } from '../../src/client/console-types.ts'
import { openStore } from '../../src/store/open.ts'
import type { Store } from '../../src/store/sql.ts'
import { AuditVerifier, checkProof, trustedKey, type Verdict } from '../../web/src/audit/verifier.ts'

/** The console's verifier on a real audit log, against the same tampering that the server's verifier is tested with. */

const RECORDS = 300
let dir: string
let store: Store
let reader: StoreTrailReader
let lines: readonly string[]
let head: TrailHead

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'rf-verify-'))
  store = await openStore({ stateDir: dir, databaseUrl: '' })
  const trail = await openStoreTrail({ home: dir, store, checkpointEvery: 64 })
  for (let index = 0; index < RECORDS; index++)
    await trail.append({
      event: 'Exec',
      sandbox_id: `sb_${index % 7}`,
      note: `über ${index} "quoted" \u2028 \\ 🦀`,
      value: index / 3,
    })
  await trail.close()
  reader = new StoreTrailReader(dir, store)
  lines = await reader.linesAfter(-1, 10_000)
  head = await reader.head()
})
afterAll(async () => {
  await store.close()
  rmSync(dir, { recursive: true, force: true })
})

async function verdictOf(given: readonly string[], of: TrailHead = head): Promise<Verdict> {
  const verifier = new AuditVerifier(await trustedKey(reader.publicKey))
  for (let at = 0; at < given.length; at += 100) {
    const bad = await verifier.push(given.slice(at, at + 100))
    if (bad) return bad
  }
  return verifier.conclude(of)
}

/** The same text with a different first letter. */
const otherThan = (text: string): string => (text.startsWith('A') ? 'B' : 'A') + text.slice(1)

describe('the verifier in the browser', () => {
  test('agrees with the server on an intact audit log', async () => {
    const own = await reader.verify()
    expect(await verdictOf(lines)).toEqual(own)
    expect(own).toMatchObject({ ok: true, records: lines.length })
    expect(lines.some((line) => line.includes('"Checkpoint"'))).toBe(true)
  })

  test.each([
    ['a changed word', (all: string[]) => all.with(17, (all[17] as string).replace('quoted', 'quotes')), 17],
    [
      'a changed time',
      (all: string[]) => all.with(5, (all[5] as string).replace(/"time":"20/, '"time":"21')),
      5,
    ],
    ['a removed record', (all: string[]) => all.toSpliced(40, 1), 40],
    ['two swapped records', (all: string[]) => all.with(8, all[9] as string).with(9, all[8] as string), 8],
    ['an inserted record', (all: string[]) => all.toSpliced(30, 0, all[30] as string), 31],
    [
      'another JSON encoding of a record',
      (all: string[]) => all.with(12, (all[12] as string).replace('{', '{ ')),
      12,
    ],
    ['a truncated tail', (all: string[]) => all.slice(0, -3), RECORDS],
  ] as const)('finds %s', async (_, change, seq) => {
    const verdict = await verdictOf(change([...lines]))
    expect(verdict.ok).toBe(false)
    if (!verdict.ok && seq !== RECORDS) expect(verdict.seq).toBe(seq)
  })

  test('rejects a head that was changed or signed with another key', async () => {
    expect((await verdictOf(lines, { ...head, count: head.count + 1 })).ok).toBe(false)
    expect((await verdictOf(lines, { ...head, signature: otherThan(head.signature) })).ok).toBe(false)
    expect((await verdictOf(lines, { ...head, key: '0'.repeat(32) })).ok).toBe(false)
  })

  test('proves one record, and rejects any other record in its position', async () => {
    const trusted = await trustedKey(reader.publicKey)
    for (const seq of [0, 1, 63, 64, 128, RECORDS - 1]) {
      const proof = (await reader.proof(seq)) as unknown as TrailProof
      expect(await checkProof(proof, trusted)).toBeUndefined()
      expect(await checkProof({ ...proof, record: { ...proof.record, note: 'other' } }, trusted)).toMatch(
        /hash/,
      )
      expect(await checkProof({ ...proof, path: proof.path.slice(1) }, trusted)).toMatch(/path/)
      expect(await checkProof({ ...proof, public_key: 'x' }, trusted)).toMatch(/not trusted/)
    }
  })
})
