import { SandboxError } from '../../../model/errors.ts'

/** One file of a form. Its bytes are to be read before the next part is asked for. */
export type Part = {
  readonly name: string
  readonly filename: string | undefined
  readonly data: AsyncGenerator<Uint8Array, void>
}

const HEAD_BYTES = 16 * 1024
const PARTS = 1000
const wrong = (why: string): SandboxError => new SandboxError('invalid-input', `the form is broken: ${why}`)

/** `multipart/form-data` part by part, as a stream: no file is ever whole in memory. */
export async function* parts(
  body: AsyncIterable<Uint8Array>,
  contentType: string,
): AsyncGenerator<Part, void> {
  const [, quoted, plain] = /boundary=(?:"([^"]{1,70})"|([^\s;]{1,70}))/i.exec(contentType) ?? []
  const boundary = quoted ?? plain
  if (boundary === undefined) throw wrong('it has no boundary')
  const reader = new Reader(body, Buffer.from(`\r\n--${boundary}`))
  await reader.preamble(Buffer.from(`--${boundary}`))
  for (let count = 0; !(await reader.isLast()); count++) {
    if (count === PARTS) throw wrong(`more than ${PARTS} parts`)
    const head = await reader.head()
    const data = reader.content()
    yield { ...named(head), data }
    // What a caller did not read stands between us and the next part.
    for await (const _ of data);
  }
}

function named(head: string): { readonly name: string; readonly filename: string | undefined } {
  const line = head.split('\r\n').find((one) => /^content-disposition:/i.test(one)) ?? ''
  const field = (name: string): string | undefined => {
    const text = new RegExp(`[;\\s]${name}="((?:[^"\\\\]|\\\\.)*)"`, 'i').exec(line)?.[1]
    return text
      ?.replace(/%22/g, '"')
      .replace(/%0D/gi, '\r')
      .replace(/%0A/gi, '\n')
      .replace(/\\(["\\])/g, '$1')
  }
  return { name: field('name') ?? '', filename: field('filename') }
}

class Reader {
  readonly #source: AsyncIterator<Uint8Array>
  readonly #mark: Buffer
  #rest: Buffer = Buffer.alloc(0)
  #over = false

  constructor(body: AsyncIterable<Uint8Array>, mark: Buffer) {
    this.#source = body[Symbol.asyncIterator]()
    this.#mark = mark
  }

  async preamble(mark: Buffer): Promise<void> {
    const before = await this.#until(mark, HEAD_BYTES)
    if (before.length > 0 && !before.toString('latin1').endsWith('\r\n')) throw wrong('it does not begin')
  }

  /** After a boundary: `--` ends the form, a line break begins a part. */
  async isLast(): Promise<boolean> {
    while (this.#rest.length < 2) if (!(await this.#more())) throw wrong('it does not end')
    const next = this.#rest.subarray(0, 2).toString('latin1')
    if (next === '--') return true
    if (next !== '\r\n') throw wrong('a boundary is followed by something else')
    this.#rest = this.#rest.subarray(2)
    return false
  }

  async head(): Promise<string> {
    return (await this.#until(Buffer.from('\r\n\r\n'), HEAD_BYTES)).toString('utf8')
  }

  /** Everything up to the next boundary. */
  async *content(): AsyncGenerator<Uint8Array, void> {
    for (;;) {
      const at = this.#rest.indexOf(this.#mark)
      // Bytes that may be the begin of a boundary wait for the rest of it.
      const ready = at === -1 ? this.#rest.length - this.#mark.length + 1 : at
      if (ready > 0) {
        const piece = this.#rest.subarray(0, ready)
        this.#rest = this.#rest.subarray(ready)
        yield piece
      }
      if (at !== -1) {
        this.#rest = this.#rest.subarray(this.#mark.length)
        return
      }
      if (!(await this.#more())) throw wrong('it does not end')
    }
  }

  async #until(mark: Buffer, most: number): Promise<Buffer> {
    for (;;) {
      const at = this.#rest.indexOf(mark)
      if (at !== -1) {
        const before = this.#rest.subarray(0, at)
        this.#rest = this.#rest.subarray(at + mark.length)
        return before
      }
      if (this.#rest.length > most) throw wrong('a head is too long')
      if (!(await this.#more())) throw wrong('it does not end')
    }
  }

  async #more(): Promise<boolean> {
    if (this.#over) return false
    const { done, value } = await this.#source.next()
    if (done) this.#over = true
    else this.#rest = this.#rest.length === 0 ? Buffer.from(value) : Buffer.concat([this.#rest, value])
    return !done
  }
}
