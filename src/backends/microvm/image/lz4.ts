import { SandboxError } from '../../../model/errors.ts'

const MAGIC = 0x184c2102
/** A kernel has some tens of megabytes; anything that claims to be larger is corrupt. */
const MAX_BYTES = 512 * 1024 * 1024
const BLOCK_BYTES = 8 * 1024 * 1024

/** Decompresses the legacy LZ4 frame format of Linux kernels: blocks, each preceded by its length. */
export function unpackLz4(packed: Buffer): Buffer {
  if (packed.readUInt32LE(0) !== MAGIC) throw broken('wrong magic number')
  const blocks: Buffer[] = []
  let total = 0
  for (let at = 4; at + 4 <= packed.length; ) {
    const length = packed.readUInt32LE(at)
    at += 4
    // The uncompressed size of the kernel follows the last block.
    if (length === 0 || length > packed.length - at) break
    const block = unpackBlock(packed.subarray(at, at + length))
    blocks.push(block)
    at += length
    total += block.length
    if (total > MAX_BYTES) throw broken('it is too large')
  }
  return Buffer.concat(blocks)
}

function unpackBlock(from: Buffer): Buffer {
  const to = Buffer.allocUnsafe(BLOCK_BYTES)
  let at = 0
  let end = 0
  const lengthOf = (nibble: number): number => {
    let length = nibble
    for (let more = nibble === 15 ? 255 : 0; more === 255; length += more) more = from[at++] ?? 0
    return length
  }
  while (at < from.length) {
    const token = from[at++] as number
    const literals = lengthOf(token >> 4)
    if (end + literals > BLOCK_BYTES || at + literals > from.length) throw broken('a block is too long')
    from.copy(to, end, at, at + literals)
    at += literals
    end += literals
    if (at >= from.length) break
    const back = from.readUInt16LE(at)
    at += 2
    const length = lengthOf(token & 15) + 4
    if (back === 0 || back > end || end + length > BLOCK_BYTES) throw broken('a block points outside')
    // Source and destination may overlap; then it is copied byte by byte.
    if (back >= length) to.copyWithin(end, end - back, end - back + length)
    else for (let i = 0; i < length; i++) to[end + i] = to[end - back + i] as number
    end += length
  }
  return to.subarray(0, end)
}

const broken = (why: string): SandboxError =>
  new SandboxError('launch-failed', `the kernel cannot be unpacked: ${why}`)
