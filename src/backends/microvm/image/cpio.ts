/** One entry of an initramfs. */
export type CpioEntry =
  | { readonly path: string; readonly kind: 'dir' }
  | { readonly path: string; readonly kind: 'file'; readonly mode: number; readonly bytes: Uint8Array }
  | { readonly path: string; readonly kind: 'device'; readonly major: number; readonly minor: number }

const TRAILER = 'TRAILER!!!'

/** Encodes an initramfs: the same bytes for the same entries, without owners and times. */
export function cpioOf(entries: readonly CpioEntry[]): Buffer {
  const parts = entries.flatMap((entry, index) => recordOf(entry, index + 1))
  const whole = Buffer.concat([...parts, ...record({ name: TRAILER, inode: 0, mode: 0 })])
  return Buffer.concat([whole, Buffer.alloc((512 - (whole.length % 512)) % 512)])
}

function recordOf(entry: CpioEntry, inode: number): readonly Uint8Array[] {
  const name = entry.path.replace(/^\//, '')
  if (entry.kind === 'dir') return record({ name, inode, mode: 0o040755 })
  if (entry.kind === 'device')
    return record({ name, inode, mode: 0o020600, major: entry.major, minor: entry.minor })
  return record({ name, inode, mode: 0o100000 | entry.mode, bytes: entry.bytes })
}

type Fields = {
  readonly name: string
  readonly inode: number
  readonly mode: number
  readonly bytes?: Uint8Array
  readonly major?: number
  readonly minor?: number
}

function record({ name, inode, mode, bytes, major = 0, minor = 0 }: Fields): readonly Uint8Array[] {
  const size = bytes?.length ?? 0
  const numbers = [inode, mode, 0, 0, 1, 0, size, 0, 0, major, minor, Buffer.byteLength(name) + 1, 0]
  const text = `070701${numbers.map((value) => value.toString(16).padStart(8, '0')).join('')}${name}\0`
  const head = Buffer.from(text)
  return [head, padding(head.length), ...(bytes ? [bytes, padding(size)] : [])]
}

const padding = (length: number): Buffer => Buffer.alloc((4 - (length % 4)) % 4)
