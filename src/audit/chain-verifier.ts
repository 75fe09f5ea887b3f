import { hash } from 'node:crypto'
import { GENESIS, type Head, parseHead, type VerifyKey } from './chain.ts'
import { grow, rootOf } from './merkle.ts'

/** Verifies a chain record by record, in order, whatever the source of the lines: segment files, a store, an export. */
export class ChainVerifier {
  readonly #key: VerifyKey
  readonly #frontier: string[] = []
  #scratch = Buffer.allocUnsafe(64 * 1024)
  #count = 0
  #hash = GENESIS
  #checkpoints = 0
  #vouched = 0

  constructor(key: VerifyKey) {
    this.#key = key
  }

  /** The number of valid records so far; also the expected `seq` of the next one. */
  get count(): number {
    return this.#count
  }

  /** The hash of the last valid record. */
  get hash(): string {
    return this.#hash
  }

  /** The number of checkpoints among them. */
  get checkpoints(): number {
    return this.#checkpoints
  }

  /** The number of records that the last checkpoint covers. */
  get vouched(): number {
    return this.#vouched
  }

  /** Checks the next line (without its newline); returns the problem, if any. */
  push(line: Buffer): string | undefined {
    // Decoded as Latin-1: every byte is preserved, and everything that is read here is ASCII.
    const text = line.toString('latin1')
    const record = parseObject(text)
    if (record === undefined) return 'it is not a JSON record'
    if (record.seq !== this.#count) return `it was replaced by another record (seq ${show(record.seq)})`
    if (typeof record.hash !== 'string' || record.hash !== this.#hashOf(line, text, record.hash))
      return 'its content does not match its hash'
    if (!hashStandsInOrder(record)) return 'it is not in canonical form'
    if (record.prev_hash !== this.#hash) return 'it does not follow from the record before it'
    const problem = record.event === 'Checkpoint' ? this.#checkpointProblem(record.head) : undefined
    if (problem !== undefined) return problem
    grow(this.#frontier, this.#count, record.hash)
    this.#count += 1
    this.#hash = record.hash
    return undefined
  }

  /** Compares a signed head with the records so far; returns the problem, if any. */
  headProblem(head: Head): string | undefined {
    if (head.count !== this.#count) return `it covers ${head.count} records instead of ${this.#count}`
    if (head.seq !== head.count - 1) return 'its seq and count disagree'
    if (head.hash !== this.#hash) return 'it names another last record'
    return head.root === rootOf(this.#frontier) ? undefined : 'its Merkle root is not that of these records'
  }

  #checkpointProblem(value: unknown): string | undefined {
    const head = parseHead(value, this.#key)
    const problem = typeof head === 'string' ? head : this.headProblem(head)
    if (problem !== undefined) return `the checkpoint is not valid: ${problem}`
    this.#checkpoints += 1
    this.#vouched = this.#count
    return undefined
  }

  /** The SHA-256 of the raw bytes without the `hash` member: detects changed bytes even if they parse the same. */
  #hashOf(line: Buffer, text: string, own: string): string | undefined {
    // `prev_hash` always follows, hence the comma. The text cannot occur twice: a record cannot contain its own hash.
    const member = `"hash":"${own}",`
    const at = text.indexOf(member)
    if (at < 0) return undefined
    if (this.#scratch.length < line.length) this.#scratch = Buffer.allocUnsafe(line.length * 2)
    line.copy(this.#scratch, 0, 0, at)
    const end = at + line.copy(this.#scratch, at, at + member.length)
    return hash('sha256', this.#scratch.subarray(0, end), 'hex')
  }
}

// The hash does not cover its own position in the line, so it is checked here.
function hashStandsInOrder(record: Readonly<Record<string, unknown>>): boolean {
  const names = Object.keys(record)
  const at = names.indexOf('hash')
  return (names[at - 1] ?? '') < 'hash' && (names[at + 1] ?? '') > 'hash'
}

function parseObject(text: string): Readonly<Record<string, unknown>> | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined
  } catch {
    return undefined
  }
}

const show = (value: unknown): string => (typeof value === 'number' ? String(value) : 'unreadable')
