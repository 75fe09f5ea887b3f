/** What a program requires of the dynamic loader. Reads 64-bit little-endian ELF, the only supported kind. */
export type Needs = {
  readonly interpreter: string | undefined
  readonly libraries: readonly string[]
  /** Library search paths, with `$ORIGIN` unresolved. */
  readonly paths: readonly string[]
}

const MAGIC = 0x464c457f
const PT_LOAD = 1
const PT_DYNAMIC = 2
const PT_INTERP = 3
const DT_NEEDED = 1
const DT_STRTAB = 5
const DT_RPATH = 15
const DT_RUNPATH = 29

type Segment = {
  readonly type: number
  readonly offset: number
  readonly address: number
  readonly size: number
}

/** Undefined if it is not such a file. A file with invalid offsets has no needs. */
export function needsOf(file: Buffer): Needs | undefined {
  if (file.length < 64 || file.readUInt32LE(0) !== MAGIC || file[4] !== 2 || file[5] !== 1) return undefined
  try {
    const segments = segmentsOf(file)
    return { interpreter: interpreterOf(file, segments), ...dynamicOf(file, segments) }
  } catch {
    return { interpreter: undefined, libraries: [], paths: [] }
  }
}

function segmentsOf(file: Buffer): readonly Segment[] {
  const start = Number(file.readBigUInt64LE(32))
  const size = file.readUInt16LE(54)
  return Array.from({ length: file.readUInt16LE(56) }, (_, index) => {
    const at = start + index * size
    return {
      type: file.readUInt32LE(at),
      offset: Number(file.readBigUInt64LE(at + 8)),
      address: Number(file.readBigUInt64LE(at + 16)),
      size: Number(file.readBigUInt64LE(at + 32)),
    }
  })
}

function interpreterOf(file: Buffer, segments: readonly Segment[]): string | undefined {
  const found = segments.find(({ type }) => type === PT_INTERP)
  return found && textAt(file, found.offset)
}

function dynamicOf(file: Buffer, segments: readonly Segment[]): Pick<Needs, 'libraries' | 'paths'> {
  const table = segments.find(({ type }) => type === PT_DYNAMIC)
  if (!table) return { libraries: [], paths: [] }
  const entries: [tag: number, value: number][] = []
  for (let at = table.offset; at < table.offset + table.size; at += 16)
    entries.push([Number(file.readBigInt64LE(at)), Number(file.readBigUInt64LE(at + 8))])
  const address = entries.find(([tag]) => tag === DT_STRTAB)?.[1] ?? 0
  const home = segments.find(
    ({ type, address: first, size }) => type === PT_LOAD && address >= first && address < first + size,
  )
  const strings = home ? home.offset + address - home.address : address
  const texts = (...tags: number[]): string[] =>
    entries.filter(([tag]) => tags.includes(tag)).map(([, value]) => textAt(file, strings + value))
  return {
    libraries: texts(DT_NEEDED),
    paths: texts(DT_RPATH, DT_RUNPATH).flatMap((path) => path.split(':')),
  }
}

function textAt(file: Buffer, at: number): string {
  const end = file.indexOf(0, at)
  if (at >= file.length || end < 0) throw new RangeError('a string outside the file')
  return file.toString('latin1', at, end)
}
