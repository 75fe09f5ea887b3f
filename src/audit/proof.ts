import { SandboxError } from '../model/errors.ts'
import { loadVerifyKey, parseAnchors, readAnchors } from './anchor.ts'
import { type Head, parseHead, recordHash, type TrailRecord, type VerifyKey } from './chain.ts'
import { damaged } from './files.ts'
import { PathBuilder, rootFromPath } from './merkle.ts'
import { readTrail } from './read.ts'

/** Proves that one record is in the audit log; verifiable without any other record. */
export type Proof = {
  readonly record: TrailRecord
  /** Sibling hashes from the record up to the Merkle root, lowest first. */
  readonly path: readonly string[]
  readonly head: Head
  /** The signer's key: 32 bytes in base64url. The verifier must know this key from elsewhere. */
  readonly public_key: string
}

/** Whether a proof holds, and why not. */
export type ProofVerdict =
  | { readonly ok: true; readonly seq: number; readonly records: number; readonly key: string }
  | { readonly ok: false; readonly problem: string }

/** Collects what a proof of record `seq` needs while all records come in order. */
export class ProofBuilder {
  readonly #seq: number
  readonly #head: Head
  readonly #path: PathBuilder
  #count = 0
  #record: TrailRecord | undefined

  constructor(seq: number, head: Head) {
    if (seq >= head.count) throw new SandboxError('invalid-input', `the audit log has no record ${seq}`)
    this.#seq = seq
    this.#head = head
    this.#path = new PathBuilder(seq)
  }

  add(record: TrailRecord): void {
    if (this.#count++ === this.#seq) this.#record = record
    this.#path.add(record.hash)
  }

  finish(key: VerifyKey): Proof {
    const { root, path } = this.#path.finish()
    const record = this.#record
    if (record?.seq !== this.#seq || root !== this.#head.root)
      throw damaged('its records are not the signed ones')
    return { record, path, head: this.#head, public_key: key.x }
  }
}

/** The proof of one record against the current signed head. */
export function proofOf(home: string, seq: number): Proof {
  const { key, head } = signedHead(home)
  const builder = new ProofBuilder(seq, head)
  for (const each of readTrail(home, {}, { to: head })) builder.add(each)
  return builder.finish(key)
}

function signedHead(home: string): { readonly key: VerifyKey; readonly head: Head } {
  const key = loadVerifyKey(home)
  const text = readAnchors(home)
  if (key === undefined || text === undefined)
    throw new SandboxError('invalid-input', 'there is no audit log yet')
  const anchored = parseAnchors(text, key, 'skipped')
  if (typeof anchored === 'string') throw damaged(`the signed head is not valid: ${anchored}`)
  return { key, head: anchored.anchor.head }
}

/**
 * Verifies a proof with a key that the caller already trusts. Pure.
 * SECURITY: never with the key in the proof itself; that would prove nothing.
 */
export function checkProof(value: unknown, trusted: VerifyKey): ProofVerdict {
  const { record, path, head, public_key } = (value ?? {}) as Partial<Proof>
  if (public_key !== trusted.x) return no('it is signed with a key that is not trusted')
  const signed = parseHead(head, trusted)
  if (typeof signed === 'string') return no(`the head is not valid: ${signed}`)
  const hash = hashOf(record)
  if (!record || hash === undefined || record.hash !== hash)
    return no('the content of the record does not match its hash')
  if (!Array.isArray(path) || !path.every((sibling) => /^[0-9a-f]{64}$/.test(String(sibling))))
    return no('it has no path')
  if (rootFromPath(hash, record.seq, signed.count, path) !== signed.root)
    return no('the path does not lead from the record to the signed root')
  return { ok: true, seq: record.seq, records: signed.count, key: trusted.id }
}

const no = (problem: string): ProofVerdict => ({ ok: false, problem })

function hashOf(record: TrailRecord | undefined): string | undefined {
  try {
    return record && recordHash(record)
  } catch {
    return undefined
  }
}
