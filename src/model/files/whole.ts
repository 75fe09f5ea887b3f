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

/** Maximum number of entries in one listing. */
export const MAX_ENTRIES = 50_000

/** SECURITY: the sandbox controls how many files it has, and an entry of a listing costs much more than its bytes. */
export function assertEntries(path: string, entries: number): void {
  if (entries > MAX_ENTRIES)
    throw new SandboxError('too-large', `\`${path}\` has more than ${MAX_ENTRIES} entries`, {
      hint: 'list it with less depth, or one directory at a time',
    })
}
