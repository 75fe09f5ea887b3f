import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { type Frame, FrameReader, fieldsFrame, frame as hostFrame, numberFrame } from './frames.ts'

/** A frame as guest/agent/common/channel.c writes it. */
function frame(type: string, payload: string | Uint8Array, length?: number): Buffer {
  const body = Buffer.from(payload as string)
  const header = Buffer.alloc(9)
  header.write(type, 0, 'latin1')
  header.writeUInt32LE(0, 1)
  header.writeUInt32LE(length ?? body.length, 5)
  return Buffer.concat([header, body])
}

const read = (...chunks: readonly Uint8Array[]): Frame[] => {
  const reader = new FrameReader()
  return chunks.flatMap((chunk) => reader.push(chunk))
}

const BROKEN: Frame = { kind: 'error', id: 0, text: 'the guest agent sent a broken frame' }
const status = (entries: Record<string, string>): Frame => ({
  kind: 'ready',
  id: 0,
  status: new Map(Object.entries(entries)),
})

const GOOD: readonly (readonly [string, Buffer, Frame])[] = [
  [
    'an error',
    frame('E', 'cannot open /w: No such file'),
    { kind: 'error', id: 0, text: 'cannot open /w: No such file' },
  ],
  ['an empty error', frame('E', ''), { kind: 'error', id: 0, text: '' }],
  ['ready', frame('R', 'Seccomp:\t2\nns/pid:\tpid:[1]\n'), status({ Seccomp: '2', 'ns/pid': 'pid:[1]' })],
  ['ready with empty lines', frame('R', 'a\n:\tb\nc:\td:\te\n\n'), status({ '': 'b' })],
  [
    'a violation',
    frame('V', 'fs.protect\0write /w/.git/config'),
    { kind: 'violation', id: 0, guarantee: 'fs.protect', details: 'write /w/.git/config' },
  ],
  [
    'a violation without details',
    frame('V', 'fs.write\0'),
    { kind: 'violation', id: 0, guarantee: 'fs.write', details: '' },
  ],
  ['a limit', frame('L', 'memory'), { kind: 'limit', id: 0, limit: 'memory' }],
  ['an exit', frame('X', Uint8Array.of(0, 3)), { kind: 'exit', id: 0, signaled: false, code: 3 }],
  ['a signal', frame('X', Uint8Array.of(1, 9)), { kind: 'exit', id: 0, signaled: true, code: 9 }],
  ['the longest', frame('E', 'a'.repeat(4096)), { kind: 'error', id: 0, text: 'a'.repeat(4096) }],
  ['non-ASCII text', frame('E', 'Größe 大小 🦊'), { kind: 'error', id: 0, text: 'Größe 大小 🦊' }],
]

describe('frames', () => {
  test.each(GOOD)('%s', (_, bytes, expected) => {
    expect(read(bytes)).toEqual([expected])
  })

  test('several in one chunk, in order', () => {
    expect(read(Buffer.concat(GOOD.map(([, bytes]) => bytes)))).toEqual(
      GOOD.map(([, , expected]) => expected),
    )
  })

  test('split at every byte', () => {
    const bytes = Buffer.concat(GOOD.filter(([, one]) => one.length < 100).map(([, one]) => one))
    const whole = read(bytes)
    for (let cut = 0; cut <= bytes.length; cut++)
      expect(read(bytes.subarray(0, cut), bytes.subarray(cut))).toEqual(whole)
    expect(read(...Array.from(bytes, (byte) => Uint8Array.of(byte)))).toEqual(whole)
  })

  test('data is copied: the caller may reuse its buffer', () => {
    const reader = new FrameReader()
    const bytes = frame('E', 'abc')
    const head = bytes.subarray(0, 10)
    reader.push(head)
    head.fill(0xff)
    expect(reader.push(bytes.subarray(10))).toEqual([{ kind: 'error', id: 0, text: 'abc' }])
  })

  test('encodes frames to the agent byte for byte', () => {
    expect([...numberFrame('signal', 7, 15)]).toEqual([0x53, 7, 0, 0, 0, 4, 0, 0, 0, 15, 0, 0, 0])
    expect([...hostFrame('go', 0)]).toEqual([0x47, 0, 0, 0, 0, 0, 0, 0, 0])
    expect(fieldsFrame('command', 1, ['argv', 'a']).subarray(9).toString()).toBe('argv\0a\0')
  })
})

describe('hostile frames end the channel', () => {
  test.each([
    ['too long', frame('E', '', 4097)],
    ['too much output', frame('O', '', 65_537)],
    ['a window without a size', frame('W', '')],
    ['an end with content', frame('Q', 'x')],
    ['of the largest length', frame('E', '', 0xffffffff)],
    ['too long, of an unknown type', frame('Z', '', 0xffffffff)],
    ['an unknown type', frame('Z', 'x')],
    ['the host’s own type', frame('S', Uint8Array.of(9, 0, 0, 0))],
    ['type 0', frame('\0', '')],
    ['an exit that is too short', frame('X', Uint8Array.of(0))],
    ['an exit that is too long', frame('X', Uint8Array.of(0, 1, 2))],
    ['a violation without a terminator', frame('V', 'fs.write')],
    ['a violation without a guarantee', frame('V', '\0x')],
    ['a violation of an unknown guarantee', frame('V', 'fs.everything\0x')],
    ['a violation named like a property of Object', frame('V', 'constructor\0x')],
    ['an unknown limit', frame('L', 'patience')],
    ['a limit that only the host can reach', frame('L', 'cancelled')],
  ])('%s', (_, bytes) => {
    const reader = new FrameReader()
    expect(reader.push(Buffer.concat([frame('E', 'before'), bytes, frame('E', 'after')]))).toEqual([
      { kind: 'error', id: 0, text: 'before' },
      BROKEN,
    ])
    expect(reader.push(frame('X', Uint8Array.of(0, 0)))).toEqual([])
  })

  test.each([0, 1, 4, 5, 7])('a frame truncated after %i bytes gives no message', (length) => {
    expect(read(frame('E', 'abc').subarray(0, length))).toEqual([])
  })

  test('random bytes never throw, and nothing follows a broken frame', () => {
    const bytes = fc.oneof(
      fc.uint8Array({ maxLength: 200 }),
      fc.constantFrom(...GOOD.map(([, one]) => new Uint8Array(one))),
    )
    fc.assert(
      fc.property(fc.array(bytes, { maxLength: 8 }), (chunks) => {
        const frames = read(...chunks)
        const broken = frames.findIndex(
          (one) => one.kind === 'error' && one.text === (BROKEN as { text: string }).text,
        )
        expect(broken === -1 || broken === frames.length - 1).toBe(true)
      }),
      { numRuns: 500 },
    )
  })

  test('the split of the bytes never changes the result', () => {
    const pieces = fc.array(
      fc.constantFrom(...GOOD.map(([, one]) => one), frame('Z', 'x'), Buffer.of(0x45, 9)),
      { maxLength: 5 },
    )
    fc.assert(
      fc.property(pieces, fc.array(fc.nat(300), { maxLength: 6 }), (parts, cuts) => {
        const bytes = Buffer.concat(parts)
        const at = [0, ...cuts.map((cut) => Math.min(cut, bytes.length)).sort((a, b) => a - b), bytes.length]
        const chunks = at.slice(1).map((end, index) => bytes.subarray(at[index], end))
        expect(read(...chunks)).toEqual(read(bytes))
      }),
    )
  })

  test('at most one incomplete frame is buffered', () => {
    setFlagsFromString('--expose-gc')
    const collect = runInNewContext('gc') as () => void
    const reader = new FrameReader()
    collect()
    const before = process.memoryUsage().arrayBuffers
    reader.push(frame('E', '', 4096))
    // Each chunk is part of its own megabyte buffer, which must not be retained.
    for (let sent = 0; sent < 4000; sent += 40) reader.push(Buffer.alloc(1024 * 1024, 0x61).subarray(0, 40))
    collect()
    expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(32 * 1024 * 1024)
    expect(reader.push(Buffer.alloc(96, 0x61))).toEqual([{ kind: 'error', id: 0, text: 'a'.repeat(4096) }])
  })
})

describe('control characters never reach a terminal', () => {
  const all = Array.from({ length: 0xa0 }, (_, code) => String.fromCodePoint(code)).filter((char) =>
    /\p{Cc}/u.test(char),
  )
  test.each<[string, (text: string) => Buffer, (frame: Frame | undefined) => string]>([
    ['an error', (text) => frame('E', text), (one) => (one as { text: string }).text],
    ['details', (text) => frame('V', `fs.write\0${text}`), (one) => (one as { details: string }).details],
    [
      'a status',
      (text) => frame('R', `a:\t${text.replaceAll(/[\n\t]/g, '')}`),
      (one) => (one as Extract<Frame, { kind: 'ready' }>).status.get('a') as string,
    ],
  ])('in %s', (_, make, text) => {
    expect(all.length).toBe(65)
    expect(text(read(make(all.join('')))[0])).not.toMatch(/\p{Cc}/u)
  })

  test('nor do characters that change the text direction or end a line', () => {
    const text = '\u202egnp.exe\u2066\u2028\u2029'
    expect(read(frame('E', text))).toEqual([
      { kind: 'error', id: 0, text: '\ufffdgnp.exe\ufffd\ufffd\ufffd' },
    ])
  })

  test('invalid UTF-8 becomes the replacement character', () => {
    expect(read(frame('E', Uint8Array.of(0x61, 0xff, 0xc3)))).toEqual([
      { kind: 'error', id: 0, text: 'a\ufffd\ufffd' },
    ])
  })
})

describe('a request of `sudo`', () => {
  const sudo = (payload: Buffer): Buffer => {
    const head = Buffer.alloc(9)
    head.write('s', 0, 'latin1')
    head.writeUInt32LE(7, 1)
    head.writeUInt32LE(payload.length, 5)
    return Buffer.concat([head, payload])
  }
  const numbers = Buffer.from([1, 0, 0, 0, 42, 0, 0, 0])

  test('names the process, the user and the words, without control characters', () => {
    const frames = new FrameReader().push(
      sudo(Buffer.concat([numbers, Buffer.from('root\0ls\0a\u001b[1mb\0')])),
    )
    expect(frames).toEqual([
      {
        kind: 'sudo',
        id: 7,
        request: { token: 1, pid: 42, user: 'root', argv: ['ls', 'a\ufffd[1mb'] },
      },
    ])
  })

  test.each([Buffer.alloc(0), numbers, Buffer.concat([numbers, Buffer.from('root\0')])])(
    'that is incomplete breaks the channel',
    (payload) => {
      expect(new FrameReader().push(sudo(payload))).toMatchObject([{ kind: 'error' }])
    },
  )
})
