import { type Guarantee, isGuarantee } from '../model/guarantee.ts'

/**
 * The control channel to the guest agent: type (1 byte), length (4 bytes, little endian), payload.
 * SECURITY: every byte is treated as hostile; a frame that is too long or of an unknown type ends the channel.
 */
export type Frame =
  | { readonly kind: 'error'; readonly text: string }
  | { readonly kind: 'ready'; readonly status: ReadonlyMap<string, string> }
  | { readonly kind: 'violation'; readonly guarantee: Guarantee; readonly details: string }
  | { readonly kind: 'limit'; readonly limit: AgentLimit }
  | { readonly kind: 'exit'; readonly signaled: boolean; readonly code: number }

/** The limits that the agent itself holds. */
const AGENT_LIMITS = ['memory', 'pids', 'disk'] as const
type AgentLimit = (typeof AGENT_LIMITS)[number]

const HEADER = 5
const MAX_PAYLOAD = 4096

export class FrameReader {
  #rest: Buffer = Buffer.alloc(0)
  #broken = false

  /** The frames that these bytes complete. After a broken frame there are no more. */
  push(chunk: Uint8Array): Frame[] {
    const frames: Frame[] = []
    if (this.#broken) return frames
    this.#rest = this.#rest.length === 0 ? Buffer.from(chunk) : Buffer.concat([this.#rest, chunk])
    while (this.#rest.length >= HEADER) {
      const length = this.#rest.readUInt32LE(1)
      if (length > MAX_PAYLOAD) return this.#break(frames)
      if (this.#rest.length < HEADER + length) break
      const frame = decode(this.#rest[0] as number, this.#rest.subarray(HEADER, HEADER + length))
      if (!frame) return this.#break(frames)
      frames.push(frame)
      this.#rest = this.#rest.subarray(HEADER + length)
    }
    return frames
  }

  #break(frames: Frame[]): Frame[] {
    this.#broken = true
    this.#rest = Buffer.alloc(0)
    frames.push({ kind: 'error', text: 'the guest agent sent a broken frame' })
    return frames
  }
}

function decode(type: number, payload: Buffer): Frame | undefined {
  switch (String.fromCharCode(type)) {
    case 'E':
      return { kind: 'error', text: printable(payload) }
    case 'R':
      return { kind: 'ready', status: statusOf(payload) }
    case 'V':
      return violationOf(payload)
    case 'L':
      return limitOf(payload.toString('latin1'))
    case 'X':
      return payload.length === 2
        ? { kind: 'exit', signaled: payload[0] === 1, code: payload[1] as number }
        : undefined
    default:
      return undefined
  }
}

function limitOf(text: string): Frame | undefined {
  const limit = AGENT_LIMITS.find((name) => name === text)
  return limit && { kind: 'limit', limit }
}

function violationOf(payload: Buffer): Frame | undefined {
  const end = payload.indexOf(0)
  const guarantee = payload.toString('latin1', 0, Math.max(0, end))
  if (!isGuarantee(guarantee)) return undefined
  return { kind: 'violation', guarantee, details: printable(payload.subarray(end + 1)) }
}

function statusOf(payload: Buffer): ReadonlyMap<string, string> {
  const pairs = printable(payload, '\n\t')
    .split('\n')
    .map((line) => line.split(':\t') as [string, string])
  return new Map(pairs.filter((pair) => pair.length === 2))
}

/** Guest-chosen names must not reach a terminal or a log as control characters. */
function printable(bytes: Buffer, keep = ''): string {
  return bytes.toString('utf8').replace(UNPRINTABLE, (char) => (keep.includes(char) ? char : '\ufffd'))
}
// Terminals obey C1 controls too; the others end lines or turn the direction of reading.
const UNPRINTABLE = /[\p{Cc}\u2028\u2029\u202a-\u202e\u2066-\u2069]/gu

/** Tells an agent that waits: the command may start. */
export function goFrame(): Uint8Array {
  const frame = Buffer.alloc(HEADER)
  frame.write('G', 0, 'latin1')
  return frame
}

/** Tells a running agent: send this signal to the command's process group. */
export function signalFrame(signal: number): Uint8Array {
  const frame = Buffer.alloc(HEADER + 4)
  frame.write('S', 0, 'latin1')
  frame.writeUInt32LE(4, 1)
  frame.writeUInt32LE(signal, HEADER)
  return frame
}
