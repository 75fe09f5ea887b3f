import { CollectedBytes } from '../../model/files/collected-bytes.ts'

/** The head of an HTTP response. */
export type ResponseHead = {
  readonly status: number
  readonly headers: readonly { readonly name: string; readonly value: string }[]
}

const MAX_HEAD = 256 * 1024

type ReaderOptions = {
  readonly maxBody: number
  /** Takes the body as it comes; without it the body is kept. */
  readonly body?: ((bytes: Uint8Array) => unknown) | undefined
}

/** Reads what `curl -i` prints: heads of interim answers and redirects, then the head and the body of the last response. */
export class HttpResponseReader {
  readonly #isFollowing: boolean
  readonly #options: ReaderOptions
  #pending = new CollectedBytes()
  readonly #body = new CollectedBytes()
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
    return Buffer.from(this.#body.all())
  }

  /** While a promise that it returns is pending, the body is held back. */
  push(chunk: Uint8Array): unknown {
    if (this.isTooLarge) return undefined
    if (this.head) return this.#take(Buffer.from(chunk))
    // What was searched before is not searched again, except for the begin of a separator.
    let from = Math.max(0, this.#pending.size - 3)
    this.#pending.add(chunk)
    const { buffer, byteOffset, length } = this.#pending.all()
    const bytes = Buffer.from(buffer, byteOffset, length)
    let start = 0
    while (!this.head) {
      const end = separatorIn(bytes, from)
      if (!end) return this.#keep(bytes, start)
      const head = parseHead(bytes.subarray(start, end.at).toString('utf8'))
      start = from = end.after
      if (!this.#isInterim(head)) this.head = head
    }
    this.#pending = new CollectedBytes()
    this.#markReady()
    return this.#take(Buffer.from(bytes.subarray(start)))
  }

  #keep(bytes: Buffer, start: number): void {
    if (bytes.length - start > MAX_HEAD) this.isTooLarge = true
    if (start === 0 && !this.isTooLarge) return
    this.#pending = new CollectedBytes()
    if (!this.isTooLarge) this.#pending.add(bytes.subarray(start))
  }

  /** Whether the head of another response follows. */
  #isInterim({ status, headers }: ResponseHead): boolean {
    if (status >= 100 && status < 200) return true
    const isRedirect = [301, 302, 303, 307, 308].includes(status)
    return this.#isFollowing && isRedirect && headers.some(({ name }) => name.toLowerCase() === 'location')
  }

  #take(bytes: Buffer): unknown {
    if (bytes.length === 0) return undefined
    this.#bytes += bytes.length
    if (this.#bytes > this.#options.maxBody) this.isTooLarge = true
    else if (this.#options.body) return this.#options.body(bytes)
    else this.#body.add(bytes)
    return undefined
  }
}

/** The empty line that ends a head: where it begins, with the line break before it, and what follows it. */
function separatorIn(
  bytes: Buffer,
  from: number,
): { readonly at: number; readonly after: number } | undefined {
  for (let line = bytes.indexOf(10, from); line !== -1; line = bytes.indexOf(10, line + 1)) {
    const next = bytes[line + 1] === 13 ? line + 2 : line + 1
    if (bytes[next] === 10) return { at: bytes[line - 1] === 13 ? line - 1 : line, after: next + 1 }
  }
  return undefined
}

function parseHead(text: string): ResponseHead {
  const [status = '', ...lines] = text.split(/\r?\n/)
  const headers = lines.map((line) => {
    const at = line.indexOf(':')
    return { name: line.slice(0, at), value: line.slice(at + 1).trim() }
  })
  return { status: Number(/^HTTP\/[\d.]+ (\d{3})/.exec(status)?.[1] ?? 0), headers }
}
