import { expect, test } from 'vitest'
import { type TarEntry, type TarLimits, TarReader } from './reader.ts'
import { header } from './writer.ts'

const END = Buffer.alloc(1024)

async function read(pieces: Iterable<Uint8Array>, limits?: TarLimits): Promise<readonly TarEntry[]> {
  const source = async function* (): AsyncGenerator<Uint8Array> {
    yield* pieces
  }
  const reader = new TarReader(source(), limits)
  const entries: TarEntry[] = []
  for (let entry = await reader.next(); entry; entry = await reader.next()) entries.push(entry)
  return entries
}

test('names and link targets together have a limit', async () => {
  const long = 'n'.repeat(1000)
  const archive = Buffer.concat([
    ...header({ name: long, type: '0', mode: 0o644 }),
    ...header({ name: 'link', type: '2', mode: 0o777, link: long }),
    END,
  ])
  expect((await read([archive], { nameBytes: 2004 })).map(({ name }) => name)).toEqual([long, 'link'])
  await expect(read([archive], { nameBytes: 2003 })).rejects.toThrow('names that are too long in total')
})

test('data after the end is discarded, but not without end', async () => {
  const [one] = header({ name: 'one', type: '0', mode: 0o644 })
  let pieces = 0
  function* endless(most: number): Generator<Uint8Array> {
    yield Buffer.concat([one as Buffer, END])
    for (pieces = 0; pieces < most; pieces++) yield Buffer.alloc(64 * 1024)
  }
  expect(await read(endless(160))).toHaveLength(1)
  expect(pieces).toBe(160)
  await expect(read(endless(1_000_000))).rejects.toThrow('too much data after its end')
  expect(pieces).toBeLessThan(300)
})
