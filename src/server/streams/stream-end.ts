import type { Outcome } from '../../model/command.ts'
import { STREAM_ENDS, type StreamEnd, streamEndOfSandbox } from '../../model/stream-end.ts'
import type { LiveSandbox } from '../../supervisor/lifecycle/live-sandbox.ts'

/** What hangs on a sandbox may notice its death sooner than the supervisor. */
const GRACE_MS = 50
/** The longest reason that a WebSocket carries. */
const REASON_BYTES = 123

/** The reason, when the sandbox is ending or has ended. */
export const endStreamNow = ({ ending }: LiveSandbox): StreamEnd | undefined =>
  ending === undefined ? undefined : streamEndOfSandbox(ending)

/** The same for what broke off by itself, where the sandbox may be about to be found dead. */
export async function endStreamSoon(entry: LiveSandbox): Promise<StreamEnd | undefined> {
  if (entry.ending === undefined) await new Promise((resolve) => setTimeout(resolve, GRACE_MS))
  return endStreamNow(entry)
}

/** The same for a command, by what became of it, if that is known: what exited by itself did so before the end. */
export async function withStreamEnd(
  entry: LiveSandbox,
  outcome: Outcome | undefined,
): Promise<StreamEnd | undefined> {
  if (outcome?.kind === 'exited') return undefined
  return outcome ? endStreamNow(entry) : endStreamSoon(entry)
}

/** Code and words for a WebSocket's close. */
export const closeOf = ({ reason, message }: StreamEnd): readonly [code: number, reason: string] => [
  STREAM_ENDS[reason].close,
  Buffer.from(message).subarray(0, REASON_BYTES).toString(),
]

/** The frame that closes a WebSocket from the server's side. */
export function closeFrame(end: StreamEnd): Buffer {
  const [code, reason] = closeOf(end)
  const words = Buffer.from(reason)
  const frame = Buffer.from([0x88, words.length + 2, code >> 8, code & 0xff])
  return Buffer.concat([frame, words])
}

const CLOSE = 8

/**
 * Follows the frames of a WebSocket that a program inside serves, to know when a frame of ours may stand between two of
 * its own. Nothing is changed or kept.
 */
export class FrameTrack {
  #begun: Buffer = Buffer.alloc(0)
  #left = 0
  #isOpen = true

  /** Whether a frame of ours may come next. */
  get isBetween(): boolean {
    return this.#isOpen && this.#left === 0 && this.#begun.length === 0
  }

  see(chunk: Buffer): void {
    let rest = chunk
    while (this.#isOpen && rest.length > 0) rest = this.#frame(rest)
  }

  #frame(bytes: Buffer): Buffer {
    if (this.#left > 0) {
      const skipped = Math.min(this.#left, bytes.length)
      this.#left -= skipped
      return bytes.subarray(skipped)
    }
    const head = Buffer.concat([this.#begun, bytes.subarray(0, 14)])
    const short = (head[1] ?? 0) & 0x7f
    const size = 2 + (short === 127 ? 8 : short === 126 ? 2 : 0) + ((head[1] ?? 0) & 0x80 ? 4 : 0)
    if (head.length < size) {
      this.#begun = head
      return Buffer.alloc(0)
    }
    this.#left =
      short === 127 ? Number(head.readBigUInt64BE(2)) : short === 126 ? head.readUInt16BE(2) : short
    // After its own close nothing may follow.
    if (((head[0] as number) & 0x0f) === CLOSE) this.#isOpen = false
    const taken = size - this.#begun.length
    this.#begun = Buffer.alloc(0)
    return bytes.subarray(taken)
  }
}
