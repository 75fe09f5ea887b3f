import { SandboxError } from '../errors.ts'
import { CollectedBytes } from './collected-bytes.ts'

/** Maximum size of data that is read into memory at once. */
const MOST_BYTES = 64 * 1024 * 1024

/**
 * Joins the chunks of data from a sandbox. SECURITY: the sandbox controls the size, and a sparse file of a terabyte costs it
 * nothing; `what` names the data in the error when it is too large.
 */
export async function wholeOf(
  what: string,
  pieces: AsyncIterable<Uint8Array>,
  most = MOST_BYTES,
): Promise<Uint8Array<ArrayBuffer>> {
  const held = new CollectedBytes(most)
  for await (const piece of pieces) {
    if (held.size + piece.length > most)
      throw new SandboxError('too-large', `${what} has more than ${most} bytes`, {
        hint: 'request less at a time: a file as a stream or with a `length`, a directory with less depth',
      })
    held.add(piece)
  }
  return held.all()
}
