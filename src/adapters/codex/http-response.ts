/** The head of an HTTP response. */
export type ResponseHead = {
  readonly status: number
  readonly headers: readonly { readonly name: string; readonly value: string }[]
}

const MAX_HEAD = 256 * 1024
const SEPARATOR = /\r?\n\r?\n/

type ReaderOptions = {
  readonly maxBody: number
  /** Takes the body as it comes; without it the body is kept. */
  readonly body?: ((bytes: Uint8Array) => void) | undefined
}

/** Reads what `curl -i` prints: heads of interim answers and redirects, then the head and the body of the last response. */
export class HttpResponseReader {
  readonly #isFollowing: boolean
  readonly #options: ReaderOptions
  #pending: Buffer = Buffer.alloc(0)
  readonly #parts: Buffer[] = []
  #bytes = 0
  #markReady: () => void = () => {}
  head: ResponseHead | undefined
  isTooLarge = false
  readonly headReady: Promise<undefined> = new Promise((resolve) => {
    this.#markReady = () => resolve(undefined)
  })

  constructor(isFollowing: boolean, options: ReaderOptions) {
    this.#isFollowing = isFollowing
    this.#options = options
  }

  get body(): Buffer {
    return Buffer.concat(this.#parts)
  }

  push(chunk: Uint8Array): void {
    if (this.head) {
      this.#take(Buffer.from(chunk))
      return
    }
    this.#pending = Buffer.concat([this.#pending, chunk])
    while (!this.head) {
      // One character for one byte, so that positions in the text are positions in the bytes.
      const text = this.#pending.toString('latin1')
      const end = SEPARATOR.exec(text)
      if (!end) {
        if (text.length > MAX_HEAD) this.isTooLarge = true
        return
      }
      const head = parseHead(this.#pending.subarray(0, end.index).toString('utf8'))
      this.#pending = this.#pending.subarray(end.index + end[0].length)
      if (!this.#isInterim(head)) this.head = head
    }
    this.#markReady()
    this.#take(this.#pending)
    this.#pending = Buffer.alloc(0)
  }

  /** Whether the head of another response follows. */
  #isInterim({ status, headers }: ResponseHead): boolean {
    if (status >= 100 && status < 200) return true
    const isRedirect = [301, 302, 303, 307, 308].includes(status)
    return this.#isFollowing && isRedirect && headers.some(({ name }) => name.toLowerCase() === 'location')
  }

  #take(bytes: Buffer): void {
    if (bytes.length === 0) return
    this.#bytes += bytes.length
    if (this.#bytes > this.#options.maxBody) this.isTooLarge = true
    else if (this.#options.body) this.#options.body(bytes)
    else this.#parts.push(bytes)
  }
}

function parseHead(text: string): ResponseHead {
  const [status = '', ...lines] = text.split(/\r?\n/)
  const headers = lines.map((line) => {
    const at = line.indexOf(':')
    return { name: line.slice(0, at), value: line.slice(at + 1).trim() }
  })
  return { status: Number(/^HTTP\/[\d.]+ (\d{3})/.exec(status)?.[1] ?? 0), headers }
}
