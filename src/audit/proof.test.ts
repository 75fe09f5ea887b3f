import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { loadVerifyKey } from './anchor.ts'
import { createKey, type VerifyKey, verifyKeyOf } from './chain.ts'
import { checkProof, proofOf } from './proof.ts'
import { openTrail } from './trail.ts'

let home = ''
let key: VerifyKey
beforeAll(async () => {
  home = mkdtempSync(join(tmpdir(), 'ringfence-proof-'))
  const trail = await openTrail({ home, checkpointEvery: 4 })
  for (let id = 0; id < 11; id++) await trail.append({ event: 'Exec', exec_id: `ex_${id}`, 'x-y': 'é' })
  await trail.close()
  key = loadVerifyKey(home) as VerifyKey
})
afterAll(() => rmSync(home, { recursive: true, force: true }))

describe('proof', () => {
  it('is valid for every record, also after serialisation as JSON', () => {
    for (let seq = 0; seq < 14; seq++) {
      const proof = JSON.parse(JSON.stringify(proofOf(home, seq)))
      expect(checkProof(proof, key)).toEqual({ ok: true, seq, records: 15, key: key.id })
    }
  })

  it('is invalid if any part of it was changed', () => {
    const proof = proofOf(home, 5)
    const other = proofOf(home, 6)
    const changed: readonly unknown[] = [
      { ...proof, record: { ...proof.record, exec_id: 'ex_x' } },
      { ...proof, record: { ...proof.record, seq: 6 } },
      { ...proof, record: other.record },
      { ...proof, path: other.path },
      { ...proof, path: proof.path.slice(1) },
      { ...proof, path: proof.path.map((hash) => hash.toUpperCase()) },
      { ...proof, path: 'x' },
      { ...proof, head: { ...proof.head, count: 16 } },
      { ...proof, head: { ...proof.head, root: other.record.hash } },
      { ...proof, head: { ...proof.head, extra: 1 } },
      { ...proof, head: { ...proof.head, signature: `${proof.head.signature}=` } },
      { ...proof, head: null },
      { ...proof, record: null },
      { ...proof, public_key: verifyKeyOf(createKey().x).x },
      {},
      null,
      'proof',
    ]
    for (const value of changed)
      expect(checkProof(value, key), JSON.stringify(value)).toMatchObject({ ok: false })
  })

  it('is valid only under the key that the reader trusts, never under its own', () => {
    expect(checkProof(proofOf(home, 5), verifyKeyOf(createKey().x))).toMatchObject({ ok: false })
  })

  it('is refused for a record that does not exist', () => {
    expect(() => proofOf(home, 15)).toThrow(/no record 15/)
    expect(() => proofOf(join(home, 'absent'), 0)).toThrow(/no audit log/)
  })
})
