import type { Use } from '../../model/command.ts'
import { type Guarantee, isGuarantee } from '../../model/guarantee.ts'
import {
  ACCESS_KINDS,
  AGENT_FRAMES,
  FRAME_HEADER,
  HOST_FRAMES,
  LIMIT_NAMES,
  MAX_BYTES,
  MAX_TEXT,
} from './protocol.ts'

export { INPUT_WINDOW, PROTOCOL_VERSION, STREAM_WINDOW, WINDOW } from './protocol.ts'

/**
 * A frame from the guest agent. guest/protocol.json describes the format and lists all frames.
 * SECURITY: every byte is treated as hostile; a frame that is too long or of an unknown type breaks the channel.
 */
export type Frame =
  | { readonly kind: 'error'; readonly id: number; readonly text: string }
  | { readonly kind: 'ready'; readonly id: number; readonly status: ReadonlyMap<string, string> }
  | {
      readonly kind: 'violation'
      readonly id: number
      readonly guarantee: Guarantee
      readonly details: string
    }
  | { readonly kind: 'limit'; readonly id: number; readonly limit: AgentLimit }
  | { readonly kind: 'exit'; readonly id: number; readonly signaled: boolean; readonly code: number }
  | { readonly kind: 'started'; readonly id: number; readonly pid: number }
  | { readonly kind: 'refused'; readonly id: number; readonly text: string }
  | { readonly kind: 'stdout' | 'stderr' | 'data'; readonly id: number; readonly bytes: Uint8Array }
  | { readonly kind: 'use'; readonly id: number; readonly use: Use }
  | { readonly kind: 'window'; readonly id: number; readonly bytes: number }
  | { readonly kind: 'sudo'; readonly id: number; readonly request: SudoRequest }
  /** `command`: the id of the isolated command that opened it. */
  | { readonly kind: 'tunnel'; readonly id: number; readonly command?: number }
  | { readonly kind: 'end' | 'drop' | 'waiting' | 'renewed'; readonly id: number }

/** What `sudo` in the sandbox asks to start. */
export type SudoRequest = {
  readonly token: number
  /** The process that waits, inside the sandbox. */
  readonly pid: number
  readonly user: string
  readonly argv: readonly string[]
}

/** The limits that the agent itself enforces. */
type AgentLimit = (typeof LIMIT_NAMES)[number]

/** SECURITY: shorter payloads are copied, so that a few bytes for a slow reader do not keep a large buffer alive. */
const SMALL = 4096
const { stdout, stderr, data } = AGENT_FRAMES
const BULK = new Set([stdout, stderr, data].map((type) => type.charCodeAt(0)))

/** A frame of plain bytes that has not been received completely. */
type Bulk = { readonly type: number; readonly id: number; left: number }

/** Splits the bytes of a channel into frames. */
export class FrameReader {
  #rest: Buffer = Buffer.alloc(0)
  #bulk: Bulk | undefined
  #broken = false

  /**
   * Returns the frames that these bytes complete. Plain bytes are passed on as they arrive, in several frames if they
   * arrive in several chunks. After a broken frame it returns nothing more.
   */
  push(chunk: Uint8Array): Frame[] {
    const frames: Frame[] = []
    if (this.#broken) return frames
    const bytes = this.#rest.length === 0 ? bufferOf(chunk) : Buffer.concat([this.#rest, chunk])
    let at = this.#takeBulk(bytes, frames)
    while (bytes.length - at >= FRAME_HEADER) {
      const [type, id, length] = [bytes[at] as number, bytes.readUInt32LE(at + 1), bytes.readUInt32LE(at + 5)]
      const isBulk = BULK.has(type)
      if (length > (isBulk ? MAX_BYTES : MAX_TEXT)) return this.#break(frames)
      const end = at + FRAME_HEADER + length
      if (end > bytes.length && isBulk) {
        this.#bulk = { type, id, left: length }
        at += FRAME_HEADER
        at += this.#takeBulk(bytes.subarray(at), frames)
        break
      }
      if (end > bytes.length) break
      const frame = decode(type, id, bytes.subarray(at + FRAME_HEADER, end))
      if (!frame) return this.#break(frames)
      frames.push(frame)
      at = end
    }
    // A copy, because a view of a few bytes would keep the whole chunk alive.
    this.#rest = at === bytes.length ? NOTHING_LEFT : Buffer.from(bytes.subarray(at))
    return frames
  }

  /** Passes on what has arrived of an incomplete frame of plain bytes. Returns its length. */
  #takeBulk(bytes: Buffer, frames: Frame[]): number {
    if (this.#bulk === undefined || bytes.length === 0) return 0
    const { type, id, left } = this.#bulk
    const part = bytes.subarray(0, Math.min(left, bytes.length))
    frames.push(decode(type, id, part) as Frame)
    this.#bulk.left -= part.length
    if (this.#bulk.left === 0) this.#bulk = undefined
    return part.length
  }

  #break(frames: Frame[]): Frame[] {
    this.#broken = true
    this.#rest = NOTHING_LEFT
    frames.push({ kind: 'error', id: 0, text: 'the guest agent sent a broken frame' })
    return frames
  }
}

const NOTHING_LEFT = Buffer.alloc(0)
const bufferOf = (chunk: Uint8Array): Buffer => Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength)

const TEXTS = new Map<string, 'error' | 'refused'>([
  [AGENT_FRAMES.error, 'error'],
  [AGENT_FRAMES.refused, 'refused'],
])
const BYTES = new Map<string, 'stdout' | 'stderr' | 'data'>([
  [stdout, 'stdout'],
  [stderr, 'stderr'],
  [data, 'data'],
])
const SIGNS = new Map<string, 'end' | 'drop' | 'waiting' | 'renewed'>([
  [AGENT_FRAMES.renewed, 'renewed'],
  [AGENT_FRAMES.waiting, 'waiting'],
  [AGENT_FRAMES.end, 'end'],
  [AGENT_FRAMES.drop, 'drop'],
])

function decode(type: number, id: number, payload: Buffer): Frame | undefined {
  const letter = String.fromCharCode(type)
  const bytes = BYTES.get(letter)
  if (bytes) return { kind: bytes, id, bytes: payload.length < SMALL ? new Uint8Array(payload) : payload }
  const text = TEXTS.get(letter)
  if (text) return { kind: text, id, text: printable(payload) }
  const sign = SIGNS.get(letter)
  if (sign) return payload.length === 0 ? { kind: sign, id } : undefined
  return decodeReport(letter, id, payload)
}

function decodeReport(letter: string, id: number, payload: Buffer): Frame | undefined {
  switch (letter) {
    case AGENT_FRAMES.ready:
      return { kind: 'ready', id, status: statusOf(payload) }
    case AGENT_FRAMES.violation:
      return violationOf(id, payload)
    case AGENT_FRAMES.limit:
      return limitOf(id, payload.toString('latin1'))
    case AGENT_FRAMES.exit:
      return payload.length === 2
        ? { kind: 'exit', id, signaled: payload[0] === 1, code: payload[1] as number }
        : undefined
    case AGENT_FRAMES.use:
      return useOf(id, payload)
    case AGENT_FRAMES.tunnel:
      return tunnelOf(id, payload)
    case AGENT_FRAMES.sudo:
      return sudoOf(id, payload)
    case AGENT_FRAMES.started:
      return { kind: 'started', id, pid: payload.length === 4 ? payload.readUInt32LE(0) : 0 }
    case AGENT_FRAMES.window:
      return payload.length === 4 ? { kind: 'window', id, bytes: payload.readUInt32LE(0) } : undefined
    default:
      return undefined
  }
}

function tunnelOf(id: number, payload: Buffer): Frame | undefined {
  if (payload.length === 0) return { kind: 'tunnel', id }
  return payload.length === 4 ? { kind: 'tunnel', id, command: payload.readUInt32LE(0) } : undefined
}

function sudoOf(id: number, payload: Buffer): Frame | undefined {
  const words = printable(payload.subarray(8), '\0').split('\0').slice(0, -1)
  const [user, ...argv] = words
  if (payload.length < 8 || user === undefined || argv.length === 0) return undefined
  const request = { token: payload.readUInt32LE(0), pid: payload.readUInt32LE(4), user, argv }
  return { kind: 'sudo', id, request }
}

const USES: Readonly<Record<string, Use['kind']>> = ACCESS_KINDS

function useOf(id: number, payload: Buffer): Frame | undefined {
  const kind = USES[payload.toString('latin1', 0, 1)]
  return kind && { kind: 'use', id, use: { kind, path: payload.toString('utf8', 1) } }
}

function limitOf(id: number, text: string): Frame | undefined {
  const limit = LIMIT_NAMES.find((name) => name === text)
  return limit && { kind: 'limit', id, limit }
}

function violationOf(id: number, payload: Buffer): Frame | undefined {
  const end = payload.indexOf(0)
  const guarantee = payload.toString('latin1', 0, Math.max(0, end))
  if (!isGuarantee(guarantee)) return undefined
  return { kind: 'violation', id, guarantee, details: printable(payload.subarray(end + 1)) }
}

function statusOf(payload: Buffer): ReadonlyMap<string, string> {
  const pairs = printable(payload, '\n\t')
    .split('\n')
    .map((line) => line.split(':\t') as [string, string])
  return new Map(pairs.filter((pair) => pair.length === 2))
}

/** SECURITY: text from the guest must not reach a terminal or a log with control characters in it. */
function printable(bytes: Buffer, keep = ''): string {
  return bytes.toString('utf8').replace(UNPRINTABLE, (char) => (keep.includes(char) ? char : '\ufffd'))
}
// All control characters (terminals obey C1 too), line separators and changes of the text direction.
const UNPRINTABLE = /[\p{Cc}\u2028\u2029\u202a-\u202e\u2066-\u2069]/gu

/** The frames that the host sends. */
export type HostFrame = keyof typeof HOST_FRAMES

/** Encodes one frame for the agent. */
export function frame(type: HostFrame, id: number, payload: Uint8Array = NOTHING): Buffer {
  const bytes = Buffer.allocUnsafe(FRAME_HEADER + payload.length)
  bytes.set(payload, FRAME_HEADER)
  return withHead(bytes, type, id, payload.length)
}

/** Encodes the header of a frame whose payload is sent separately. */
export const frameHead = (type: HostFrame, id: number, length: number): Buffer =>
  withHead(Buffer.allocUnsafe(FRAME_HEADER), type, id, length)

function withHead(bytes: Buffer, type: HostFrame, id: number, length: number): Buffer {
  bytes.write(HOST_FRAMES[type], 0, 'latin1')
  bytes.writeUInt32LE(id, 1)
  bytes.writeUInt32LE(length, 5)
  return bytes
}
const NOTHING = new Uint8Array()

/** A frame whose payload is one 32-bit number. */
export function numberFrame(type: HostFrame, id: number, value: number): Buffer {
  const payload = Buffer.alloc(4)
  payload.writeUInt32LE(value)
  return frame(type, id, payload)
}

/** Fields of a command or configuration: each string ends in NUL. */
export const fieldsOf = (fields: readonly string[]): Buffer =>
  Buffer.from(fields.map((field) => `${field}\0`).join(''))

/** Encodes fields as a frame. */
export const fieldsFrame = (type: HostFrame, id: number, fields: readonly string[]): Buffer =>
  frame(type, id, fieldsOf(fields))
