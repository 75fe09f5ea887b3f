import type { TrailHead, TrailProof } from '../../../src/client/console-types.ts'
import type { TrailRecord } from '../../../src/client/types.ts'

/**
 * Verifies the audit log with WebCrypto: the hash of each line, the hash chain, the Merkle root, and the signatures of
 * checkpoints and head, under a key that the caller trusts.
 */

const GENESIS = '0'.repeat(64)
const encoder = new TextEncoder()

const hex = (bytes: ArrayBuffer): string =>
  Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, '0')).join('')

const sha256 = async (data: Uint8Array): Promise<string> =>
  hex(await crypto.subtle.digest('SHA-256', data as Uint8Array<ArrayBuffer>))

/** An inner node of the Merkle tree (RFC 6962): the hash of 0x01, left, right. */
async function innerNode(left: string, right: string): Promise<string> {
  const bytes = new Uint8Array(65)
  bytes[0] = 1
  for (let at = 0; at < 32; at++) {
    bytes[1 + at] = Number.parseInt(left.slice(at * 2, at * 2 + 2), 16)
    bytes[33 + at] = Number.parseInt(right.slice(at * 2, at * 2 + 2), 16)
  }
  return sha256(bytes)
}

/** Canonical JSON (RFC 8785) of a value parsed from JSON. */
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))
  return `{${entries.map(([key, member]) => `${JSON.stringify(key)}:${canonical(member)}`).join(',')}}`
}

const base64 = (text: string): Uint8Array => Uint8Array.from(atob(text), (char) => char.charCodeAt(0))
const fromUrl = (text: string): Uint8Array => base64(text.replaceAll('-', '+').replaceAll('_', '/'))

export type TrustedKey = {
  readonly x: string
  readonly id: string
  readonly key: Awaited<ReturnType<typeof crypto.subtle.importKey>>
}

/** Imports the public key of an audit log. */
export async function trustedKey(x: string): Promise<TrustedKey> {
  const raw = fromUrl(x) as Uint8Array<ArrayBuffer>
  const key = await crypto.subtle.importKey('raw', raw, { name: 'Ed25519' }, false, ['verify'])
  return { x, id: (await sha256(raw)).slice(0, 32), key }
}

/** Part of the problem text when a head is signed with a key other than the trusted one. */
export const OTHER_KEY = 'signed with a different key'

/** What is wrong with a signed head; undefined if its signature is valid. */
async function headProblem(value: unknown, trusted: TrustedKey): Promise<string | undefined> {
  const { signature, ...signed } = (value ?? {}) as Partial<TrailHead>
  if (typeof signature !== 'string') return 'no signature'
  if (signed.key !== trusted.id) return OTHER_KEY
  const statement = encoder.encode(canonical({ ...signed, statement: 'ringfence trail head v1' }))
  const bytes = base64(signature) as Uint8Array<ArrayBuffer>
  const isValid = await crypto.subtle.verify('Ed25519', trusted.key, bytes, statement)
  return isValid ? undefined : 'invalid signature'
}

type Invalid = { readonly ok: false; readonly seq: number; readonly problem: string }
export type Progress = { readonly records: number; readonly checkpoints: number }
export type Verdict = ({ readonly ok: true } & Progress) | Invalid

/** Verifies records in order, from the first one on, page by page. */
export class AuditVerifier {
  readonly #trusted: TrustedKey
  readonly #frontier: string[] = []
  #count = 0
  #hash = GENESIS
  #checkpoints = 0

  constructor(trusted: TrustedKey) {
    this.#trusted = trusted
  }

  get progress(): Progress {
    return { records: this.#count, checkpoints: this.#checkpoints }
  }

  /** Verifies the next lines; returns the first invalid one. */
  async push(lines: readonly string[]): Promise<Invalid | undefined> {
    // The hashes are independent, so they are computed in parallel; the chain is then checked in order.
    const hashes = await Promise.all(lines.map(lineHash))
    for (const [index, line] of lines.entries()) {
      const problem = await this.#verify(line, hashes[index])
      if (problem !== undefined) return { ok: false, seq: this.#count, problem }
    }
    return undefined
  }

  async #verify(line: string, hash: string | undefined): Promise<string | undefined> {
    const record = JSON.parse(line) as TrailRecord
    if (record.seq !== this.#count)
      return `expected sequence number ${this.#count}, found ${String(record.seq)}`
    if (hash === undefined || record.hash !== hash) return 'content does not match its hash'
    if (!hasSortedHashMember(record)) return 'not in canonical form'
    if (record.prev_hash !== this.#hash) return 'previous hash does not match the record before it'
    if (record.event === 'Checkpoint') {
      const problem =
        (await headProblem(record.head, this.#trusted)) ?? (await this.#checkHead(record.head as TrailHead))
      if (problem !== undefined) return `invalid checkpoint: ${problem}`
      this.#checkpoints++
    }
    await this.#append(record.hash)
    this.#hash = record.hash
    return undefined
  }

  /** What is wrong if a head describes anything other than the records so far. */
  async #checkHead(head: TrailHead): Promise<string | undefined> {
    if (head.count !== this.#count) return `head is for ${head.count} records, found ${this.#count}`
    if (head.hash !== this.#hash) return 'head names a different last record'
    return head.root === (await this.#root()) ? undefined : 'Merkle root does not match the records'
  }

  async #append(leaf: string): Promise<void> {
    let root = leaf
    for (let rest = this.#count; rest % 2 === 1; rest = (rest - 1) / 2)
      root = await innerNode(this.#frontier.pop() as string, root)
    this.#frontier.push(root)
    this.#count++
  }

  async #root(): Promise<string> {
    if (this.#frontier.length === 0) return sha256(new Uint8Array())
    let root = this.#frontier.at(-1) as string
    for (let at = this.#frontier.length - 2; at >= 0; at--)
      root = await innerNode(this.#frontier[at] as string, root)
    return root
  }

  /** The final check: the signed head must cover exactly the verified records. */
  async conclude(head: TrailHead): Promise<Verdict> {
    const problem = (await headProblem(head, this.#trusted)) ?? (await this.#checkHead(head))
    if (problem !== undefined)
      return { ok: false, seq: this.#count, problem: `signed head does not match: ${problem}` }
    return { ok: true, ...this.progress }
  }
}

/** The hash does not cover its own position in the line, so the position is checked here. */
function hasSortedHashMember(record: TrailRecord): boolean {
  const names = Object.keys(record)
  const at = names.indexOf('hash')
  return (names[at - 1] ?? '') < 'hash' && (names[at + 1] ?? '') > 'hash'
}

/** SHA-256 of the line without its `hash` member; undefined if it has none. */
async function lineHash(line: string): Promise<string | undefined> {
  const own = /"hash":"([0-9a-f]{64})",/.exec(line)
  if (!own) return undefined
  // The same text may occur inside a value; only the record's own member counts.
  const record = JSON.parse(line) as TrailRecord
  const member = `"hash":"${record.hash}",`
  const at = line.indexOf(member)
  return at < 0 ? undefined : sha256(encoder.encode(line.slice(0, at) + line.slice(at + member.length)))
}

/** Verifies the inclusion proof of one record under a trusted key; returns the problem, if any. */
export async function checkProof(proof: TrailProof, trusted: TrustedKey): Promise<string | undefined> {
  if (proof.public_key !== trusted.x) return 'signed with a key that is not trusted by this browser'
  const problem = await headProblem(proof.head, trusted)
  if (problem !== undefined) return `invalid head: ${problem}`
  const { hash: own, ...rest } = proof.record
  const hash = await sha256(encoder.encode(canonical(rest)))
  if (hash !== own) return 'content does not match its hash'
  const root = await rootFromPath(hash, proof.record.seq, proof.head.count, proof.path)
  return root === proof.head.root ? undefined : 'proof path does not lead to the signed root'
}

async function rootFromPath(
  leaf: string,
  index: number,
  count: number,
  path: readonly string[],
): Promise<string | undefined> {
  if (count <= 1) return path.length === 0 && index === 0 ? leaf : undefined
  const sibling = path.at(-1)
  if (sibling === undefined || index >= count) return undefined
  let split = 1
  while (split * 2 < count) split *= 2
  const rest = path.slice(0, -1)
  const own =
    index < split
      ? await rootFromPath(leaf, index, split, rest)
      : await rootFromPath(leaf, index - split, count - split, rest)
  if (own === undefined) return undefined
  return index < split ? innerNode(own, sibling) : innerNode(sibling, own)
}
