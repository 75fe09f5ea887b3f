/**
 * The control channel to the guest agent: type (1 byte), length (4 bytes, little endian), payload.
 * SECURITY: every byte is treated as hostile; a frame that is too long or of an unknown type ends the channel.
 */
export type Frame =
  | { readonly kind: 'error'; readonly text: string }
  | { readonly kind: 'ready'; readonly status: ReadonlyMap<string, string> }
  | { readonly kind: 'violation'; readonly guarantee: string; readonly details: string }
  | { readonly kind: 'limit'; readonly limit: string }
  | { readonly kind: 'exit'; readonly signaled: boolean; readonly code: number }

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
      return { kind: 'limit', limit: printable(payload) }
    case 'X':
      return payload.length === 2
        ? { kind: 'exit', signaled: payload[0] === 1, code: payload[1] as number }
        : undefined
    default:
      return undefined
  }
}

function violationOf(payload: Buffer): Frame | undefined {
  const end = payload.indexOf(0)
  if (end <= 0) return undefined
  const guarantee = printable(payload.subarray(0, end))
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
  return Array.from(bytes.toString('utf8'), (char) =>
    keep.includes(char) || (char >= ' ' && char !== '\x7f') ? char : '\ufffd',
  ).join('')
}

/** The one thing that the host tells a running agent: send this signal to the command's process group. */
export function signalFrame(signal: number): Uint8Array {
  const frame = Buffer.alloc(HEADER + 4)
  frame.write('S', 0, 'latin1')
  frame.writeUInt32LE(4, 1)
  frame.writeUInt32LE(signal, HEADER)
  return frame
}
