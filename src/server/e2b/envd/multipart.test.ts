import { describe, expect, test } from 'vitest'
import { parts } from './multipart.ts'

const TYPE = 'multipart/form-data; boundary=XX'

async function* inPieces(body: Uint8Array, size: number): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < body.length; at += size) yield body.subarray(at, at + size)
}

const file = (name: string, filename: string, content: string): string =>
  `--XX\r\nContent-Disposition: form-data; name="${name}"; filename="${filename}"\r\n\r\n${content}\r\n`

async function read(body: string, { size = 1000, type = TYPE, skip = false } = {}) {
  const found: { name: string; filename: string | undefined; content: string }[] = []
  for await (const { name, filename, data } of parts(inPieces(Buffer.from(body), size), type)) {
    const chunks: Uint8Array[] = []
    if (!skip) for await (const chunk of data) chunks.push(chunk)
    found.push({ name, filename, content: Buffer.concat(chunks).toString() })
  }
  return found
}

describe('multipart/form-data', () => {
  const body = `${file('file', '/a b.txt', 'one\r\n--X\r\n')}${file('file', 'q"x\\', 'grüße')}--XX--\r\n`

  test.each([1, 2, 3, 7, 1000])('is parsed the same in pieces of %i bytes', async (size) => {
    const written = body.replace('q"x\\', 'q%22x\\\\')
    expect(await read(written, { size })).toEqual([
      { name: 'file', filename: '/a b.txt', content: 'one\r\n--X\r\n' },
      { name: 'file', filename: 'q"x\\', content: 'grüße' },
    ])
  })

  test('may have an empty part, a field without a file name and a preamble', async () => {
    const field = '--XX\r\ncontent-disposition: form-data; name="a"\r\n\r\n\r\n'
    expect(await read(`\r\n${field}--XX--`)).toEqual([{ name: 'a', filename: undefined, content: '' }])
  })

  test('parts that the caller does not read are skipped', async () => {
    expect(
      (await read(`${file('a', 'x', 'long '.repeat(500))}${file('b', 'y', '')}--XX--`, { skip: true })).map(
        ({ name }) => name,
      ),
    ).toEqual(['a', 'b'])
  })

  test('the boundary may be quoted', async () => {
    expect(
      await read(`${file('a', 'x', '1')}--XX--`, { type: 'multipart/form-data; boundary="XX"' }),
    ).toHaveLength(1)
  })

  test.each<[string, string, string?]>([
    ['no boundary', '--XX--', 'multipart/form-data'],
    ['no end', file('a', 'x', '1')],
    ['nothing at all', ''],
    ['a preamble without a line break', `x${file('a', 'x', '1')}--XX--`],
    ['something after a boundary', '--XXyy\r\n\r\n'],
    ['a head that never ends', `--XX\r\n${'x'.repeat(20_000)}`],
  ])('%s is refused', async (_, text, type = TYPE) => {
    await expect(read(text, { type })).rejects.toThrow(/the form is broken/)
  })
})
