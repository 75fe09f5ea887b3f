import { SandboxError } from './errors.ts'

/** What is taken into memory at once. */
const MOST_BYTES = 64 * 1024 * 1024

/**
 * All pieces of something that a sandbox says, to be joined. SECURITY: the sandbox decides how much that is, and a file of
 * a terabyte costs it nothing; `what` names it when it is more than we keep.
 */
export async function wholeOf(
  what: string,
  pieces: AsyncIterable<Uint8Array>,
  most = MOST_BYTES,
): Promise<readonly Uint8Array<ArrayBuffer>[]> {
  const held: Uint8Array<ArrayBuffer>[] = []
  let size = 0
  for await (const piece of pieces) {
    size += piece.length
    if (size > most)
      throw new SandboxError('too-large', `${what} has more than ${most} bytes`, {
        hint: 'ask for less at a time: a file as a stream or with a `length`, a directory with less depth',
      })
    held.push(piece as Uint8Array<ArrayBuffer>)
  }
  return held
}
