import { createPrivateKey, createPublicKey, generateKeyPairSync, hash, sign, verify } from 'node:crypto'
import { SandboxError } from '../model/errors.ts'
import type { Event, Json } from '../model/event.ts'
import { canonical, canonicalMember } from './canonical.ts'

/** The format of records and of signed heads. Pure: no clock, no files. */

/** The `prev_hash` of the first record. */
export const GENESIS = '0'.repeat(64)

/** One parsed line of the audit log. */
export type TrailRecord = {
  readonly seq: number
  readonly time: string
  readonly event: string
  readonly prev_hash: string
  readonly hash: string
  readonly [field: string]: Json
}

/** An event's members in canonical form, without its position in the chain. */
export type Members = ReadonlyMap<string, string>

const RESERVED = new Set(['seq', 'time', 'prev_hash', 'hash'])

// A word keeps its position in the order of `Object.keys`; a name like `7` would not (see hashStandsInOrder).
const FIELD_NAME = /^[A-Za-z_][\w.-]*$/

/** Copies an event's content, so that a later change of the object does not affect the audit log. */
export function membersOf(event: Event): Members {
  const members = new Map<string, string>()
  for (const [name, value] of Object.entries(event)) {
    if (value === undefined) continue
    if (RESERVED.has(name)) refuse(`the field \`${name}\` is reserved`)
    if (!FIELD_NAME.test(name)) refuse('a field name must be a word')
    members.set(name, canonicalMember(name, value))
  }
  if (!members.has('event')) refuse('it has no `event`')
  return members
}

function refuse(problem: string): never {
  throw new SandboxError('invalid-input', `the event cannot be recorded: ${problem}`)
}

/** The position of a record in the chain: what the audit log adds to an event. */
export type ChainPosition = { readonly seq: number; readonly time: string; readonly prev_hash: string }

/** The record's line (without newline) and its hash: SHA-256 over the canonical record without `hash`. */
export function sealRecord(
  members: Members,
  position: ChainPosition,
): { readonly line: string; readonly hash: string } {
  const all = new Map(members)
  for (const [name, value] of Object.entries(position)) all.set(name, canonicalMember(name, value))
  const names = [...all.keys()].sort()
  const own = hash('sha256', `{${names.map((name) => all.get(name)).join(',')}}`, 'hex')
  all.set('hash', canonicalMember('hash', own))
  names.push('hash')
  return {
    line: `{${names
      .sort()
      .map((name) => all.get(name))
      .join(',')}}`,
    hash: own,
  }
}

/** The expected hash of a parsed record. */
export function recordHash(record: TrailRecord): string {
  const { hash: _own, ...rest } = record
  return hash('sha256', canonical(rest), 'hex')
}

/** A signed statement that covers all records up to here. */
export type Head = {
  readonly count: number
  /** The hash of the last record. */
  readonly hash: string
  /** The id of the signing key. */
  readonly key: string
  /** The byte offset in its segment where the last record ends. */
  readonly offset: number
  /** The Merkle root over the hashes of all records. */
  readonly root: string
  readonly segment: number
  /** The seq of the last record; -1 if there is none. */
  readonly seq: number
  readonly signature: string
  readonly time: string
}

// SECURITY: the name of the statement is signed too, so a signature of the key for anything else is not a head.
const statement = (head: Omit<Head, 'signature'>): Buffer =>
  Buffer.from(canonical({ ...head, statement: 'ringfence trail head v1' }))

/** Signs a head; adds `key` and `signature`. */
export function signHead(head: Omit<Head, 'signature' | 'key'>, key: SigningKey): Head {
  const named = { ...head, key: key.id }
  return { ...named, signature: key.sign(statement(named)).toString('base64') }
}

/** Parses and verifies a head: only a head signed with our key is accepted. A string describes the problem. */
export function parseHead(value: unknown, key: VerifyKey): Head | string {
  const { signature, ...signed } = (value ?? {}) as Partial<Head>
  if (typeof signature !== 'string') return 'it has no signature'
  if (signed.key !== key.id) return 'it is signed with another key'
  return isSigned(signed as Omit<Head, 'signature'>, signature, key)
    ? (value as Head)
    : 'its signature is not valid'
}

function isSigned(head: Omit<Head, 'signature'>, signature: string, key: VerifyKey): boolean {
  try {
    const bytes = Buffer.from(signature, 'base64')
    // Base64 has several encodings of the same bytes; only ours is accepted, so that no byte can change unnoticed.
    return bytes.toString('base64') === signature && key.hasSigned(statement(head), bytes)
  } catch {
    return false
  }
}

/** The public half of the key; `x` is its 32 bytes in base64url. */
export type VerifyKey = {
  readonly id: string
  readonly x: string
  readonly hasSigned: (statement: Buffer, signature: Buffer) => boolean
}
/** Where a record is in the log that a reader sees: in a cluster among the records of all chains. */
export const positionOf = ({
  seq,
  position,
}: {
  readonly seq: number
  readonly position?: unknown
}): number => (typeof position === 'number' ? position : seq)

/** A key that signs heads of the log. */
export type SigningKey = VerifyKey & { readonly sign: (statement: Buffer) => Buffer }

/** An Ed25519 key in its format on disk (JWK); a public key has no secret part. */
export type KeyJson = {
  readonly kty: 'OKP'
  readonly crv: 'Ed25519'
  readonly x: string
  readonly d?: string
}

const DER = {
  publicKeyEncoding: { type: 'spki', format: 'der' },
  privateKeyEncoding: { type: 'pkcs8', format: 'der' },
} as const

/** In both encodings the key itself comes last. */
const keyBytes = (der: Buffer): string => der.subarray(-32).toString('base64url')

/**
 * Creates a key to sign heads with.
 * INVARIANT: the key is encoded while it is generated. Exporting a generated key as JWK hangs Node 20 forever if memory is
 * collected at that moment: the collector waits for the lock that the export holds.
 */
export function createKey(): KeyJson {
  const { publicKey, privateKey } = generateKeyPairSync('ed25519', DER)
  return { kty: 'OKP', crv: 'Ed25519', x: keyBytes(publicKey), d: keyBytes(privateKey) }
}

const keyId = (x: string): string => hash('sha256', Buffer.from(x, 'base64url'), 'hex').slice(0, 32)

/** The public half of a key. */
export function verifyKeyOf(x: string): VerifyKey {
  const key = createPublicKey({ key: { kty: 'OKP', crv: 'Ed25519', x }, format: 'jwk' })
  return { id: keyId(x), x, hasSigned: (statement, signature) => verify(null, statement, key, signature) }
}

/** The complete key. */
export function signingKeyOf(json: KeyJson): SigningKey {
  const key = createPrivateKey({ key: { ...json }, format: 'jwk' })
  const signed = (statement: Buffer): Buffer => sign(null, statement, key)
  // Ed25519 is deterministic, so the owner of the key can sign again and compare: half the time of a verification.
  return {
    id: keyId(json.x),
    x: json.x,
    sign: signed,
    hasSigned: (text, other) => signed(text).equals(other),
  }
}
