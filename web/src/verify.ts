import type { TrailHead, TrailProof } from '../../src/client/console-types.ts'
import type { TrailRecord } from '../../src/client/types.ts'

/**
 * The trail checked by whoever looks at it, with the browser's own cryptography: hashes of the lines as they came, the
 * chain, the Merkle root, and the signatures of checkpoints and head. It trusts the key that the caller trusts.
 */

const GENESIS = '0'.repeat(64)
const encoder = new TextEncoder()

const hex = (bytes: ArrayBuffer): string =>
  Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, '0')).join('')

const sha256 = async (data: Uint8Array): Promise<string> =>
  hex(await crypto.subtle.digest('SHA-256', data as Uint8Array<ArrayBuffer>))

/** RFC 6962's inner node: 0x01, left, right. */
async function node(left: string, right: string): Promise<string> {
  const bytes = new Uint8Array(65)
  bytes[0] = 1
  for (let at = 0; at < 32; at++) {
    bytes[1 + at] = Number.parseInt(left.slice(at * 2, at * 2 + 2), 16)
    bytes[33 + at] = Number.parseInt(right.slice(at * 2, at * 2 + 2), 16)
  }
  return sha256(bytes)
}

/** Canonical JSON (RFC 8785), for values that came out of JSON. */
export function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))
  return `{${entries.map(([key, one]) => `${JSON.stringify(key)}:${canonical(one)}`).join(',')}}`
}

const base64 = (text: string): Uint8Array => Uint8Array.from(atob(text), (char) => char.charCodeAt(0))
const fromUrl = (text: string): Uint8Array => base64(text.replaceAll('-', '+').replaceAll('_', '/'))

export type TrustedKey = { readonly x: string; readonly id: string; readonly key: CryptoKey }

/** The public key of a trail, ready to check signatures with. */
export async function trustedKey(x: string): Promise<TrustedKey> {
  const raw = fromUrl(x) as Uint8Array<ArrayBuffer>
  const key = await crypto.subtle.importKey('raw', raw, { name: 'Ed25519' }, false, ['verify'])
  return { x, id: (await sha256(raw)).slice(0, 32), key }
}

/** What is wrong with a signed head, or nothing. */
export async function headProblem(value: unknown, trusted: TrustedKey): Promise<string | undefined> {
  const { signature, ...signed } = (value ?? {}) as Partial<TrailHead>
  if (typeof signature !== 'string') return 'it has no signature'
  if (signed.key !== trusted.id) return 'it is signed with another key'
  const statement = encoder.encode(canonical({ ...signed, statement: 'ringfence trail head v1' }))
  const bytes = base64(signature) as Uint8Array<ArrayBuffer>
  const genuine = await crypto.subtle.verify('Ed25519', trusted.key, bytes, statement)
  return genuine ? undefined : 'its signature is not genuine'
}

type Bad = { readonly ok: false; readonly seq: number; readonly problem: string }
export type Progress = { readonly records: number; readonly checkpoints: number }
export type TrailVerdict = ({ readonly ok: true } & Progress) | Bad

/** Checks records in order, from the first one on, as they are handed over. */
export class BrowserVerifier {
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

  /** Takes the next lines; says what is wrong with the first bad one. */
  async push(lines: readonly string[]): Promise<Bad | undefined> {
    // Hashes do not depend on each other, so they are made side by side; the chain is then walked in order.
    const hashes = await Promise.all(lines.map(lineHash))
    for (const [index, line] of lines.entries()) {
      const problem = await this.#take(line, hashes[index])
      if (problem !== undefined) return { ok: false, seq: this.#count, problem }
    }
    return undefined
  }

  async #take(line: string, hash: string | undefined): Promise<string | undefined> {
    const record = JSON.parse(line) as TrailRecord
    if (record.seq !== this.#count) return `another record stands in its place (seq ${String(record.seq)})`
    if (hash === undefined || record.hash !== hash) return 'its content does not match its hash'
    if (!hashStandsInOrder(record)) return 'it is not in canonical form'
    if (record.prev_hash !== this.#hash) return 'it does not follow from the record before it'
    if (record.event === 'Checkpoint') {
      const problem =
        (await headProblem(record.head, this.#trusted)) ??
        (await this.#speaksOfThese(record.head as TrailHead))
      if (problem !== undefined) return `the checkpoint is not ours: ${problem}`
      this.#checkpoints++
    }
    await this.#grow(record.hash)
    this.#hash = record.hash
    return undefined
  }

  /** Whether a signed head describes exactly the records so far. */
  async #speaksOfThese(head: TrailHead): Promise<string | undefined> {
    if (head.count !== this.#count) return `it speaks of ${head.count} records instead of ${this.#count}`
    if (head.hash !== this.#hash) return 'it names another last record'
    return head.root === (await this.#root()) ? undefined : 'its Merkle root is not that of these records'
  }

  async #grow(leaf: string): Promise<void> {
    let root = leaf
    for (let rest = this.#count; rest % 2 === 1; rest = (rest - 1) / 2)
      root = await node(this.#frontier.pop() as string, root)
    this.#frontier.push(root)
    this.#count++
  }

  async #root(): Promise<string> {
    if (this.#frontier.length === 0) return sha256(new Uint8Array())
    let root = this.#frontier.at(-1) as string
    for (let at = this.#frontier.length - 2; at >= 0; at--)
      root = await node(this.#frontier[at] as string, root)
    return root
  }

  /** The end: the signed head must speak of all that was seen. */
  async conclude(head: TrailHead): Promise<TrailVerdict> {
    const problem = (await headProblem(head, this.#trusted)) ?? (await this.#speaksOfThese(head))
    if (problem !== undefined)
      return { ok: false, seq: this.#count, problem: `the signed head disagrees: ${problem}` }
    return { ok: true, ...this.progress }
  }
}

/** The hash does not cover its own place in the line, so this does. */
function hashStandsInOrder(record: TrailRecord): boolean {
  const names = Object.keys(record)
  const at = names.indexOf('hash')
  return (names[at - 1] ?? '') < 'hash' && (names[at + 1] ?? '') > 'hash'
}

/** SHA-256 of the line without its `hash` member, or nothing when it has none in its place. */
async function lineHash(line: string): Promise<string | undefined> {
  const own = /"hash":"([0-9a-f]{64})",/.exec(line)
  if (!own) return undefined
  // The text could stand in a value too; only the record's own counts.
  const record = JSON.parse(line) as TrailRecord
  const member = `"hash":"${record.hash}",`
  const at = line.indexOf(member)
  return at < 0 ? undefined : sha256(encoder.encode(line.slice(0, at) + line.slice(at + member.length)))
}

/** Checks one record's proof under a key that the caller already trusts. */
export async function checkProof(proof: TrailProof, trusted: TrustedKey): Promise<string | undefined> {
  if (proof.public_key !== trusted.x) return 'it is signed with a key that is not trusted here'
  const problem = await headProblem(proof.head, trusted)
  if (problem !== undefined) return `the head is not genuine: ${problem}`
  const { hash: own, ...rest } = proof.record
  const hash = await sha256(encoder.encode(canonical(rest)))
  if (hash !== own) return 'the content of the record does not match its hash'
  const root = await rootFromPath(hash, proof.record.seq, proof.head.count, proof.path)
  return root === proof.head.root ? undefined : 'the path does not lead from the record to the signed root'
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
  return index < split ? node(own, sibling) : node(sibling, own)
}
