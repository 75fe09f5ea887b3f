import { SandboxError } from '../model/errors.ts'
import { CollectedBytes } from '../model/files/collected-bytes.ts'
import { exceededBy } from '../model/json.ts'
import type { Shape } from '../model/shape.ts'

const JSON_BYTES = 1024 * 1024
const LIMITS = { depth: 64, values: 1_000_000 }

/** A JSON body, measured while it comes in: neither its size nor its depth can hurt. */
export async function jsonBody<T>(request: Request, shape: Shape<T>, maxBytes = JSON_BYTES): Promise<T> {
  const type = request.headers.get('content-type') ?? ''
  const text = await textBody(request, maxBytes)
  if (text !== '' && !/^application\/([\w.+-]+\+)?json\s*(;|$)/i.test(type))
    throw new SandboxError('invalid-input', 'the body must be JSON', {
      hint: 'send `Content-Type: application/json`',
    })
  return shape.parse(parseJson(text), '')
}

/** The whole body as text, never more than allowed. */
export async function textBody(request: Request, maxBytes: number): Promise<string> {
  const said = Number(request.headers.get('content-length') ?? 0)
  if (said > maxBytes) throw tooLarge(maxBytes)
  if (!request.body) return ''
  const body = new CollectedBytes(maxBytes)
  for await (const part of bytesOf(request.body)) {
    if (body.size + part.length > maxBytes) throw tooLarge(maxBytes)
    body.add(part)
  }
  return utf8(body.all())
}

/** A web stream as an iterable that ends cleanly when the caller goes away. */
export async function* bytesOf(body: ReadableStream<Uint8Array> | null): AsyncGenerator<Uint8Array, void> {
  if (!body) return
  const reader = body.getReader()
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return
      yield value
    }
  } catch (cause) {
    throw new SandboxError('invalid-input', 'the request ended before its body', { cause })
  } finally {
    await reader.cancel().catch(() => {})
  }
}

/** Bytes as text; what is not UTF-8 is replaced. */
export const utf8 = ({ buffer, byteOffset, length }: Uint8Array<ArrayBuffer>): string =>
  Buffer.from(buffer, byteOffset, length).toString('utf8')

const tooLarge = (maxBytes: number): SandboxError =>
  new SandboxError('too-large', `the body is larger than ${maxBytes} bytes`)

/** Parses JSON of bounded depth and with a bounded number of values; throws `invalid-input` or `too-large`. */
export function parseJson(text: string): unknown {
  if (text.trim() === '') return {}
  const exceeded = exceededBy(text, LIMITS)
  if (exceeded === 'depth') throw new SandboxError('invalid-input', `JSON nested deeper than ${LIMITS.depth}`)
  if (exceeded) throw new SandboxError('too-large', `JSON with more than ${LIMITS.values} values`)
  try {
    return JSON.parse(text)
  } catch {
    throw new SandboxError('invalid-input', 'the body is not JSON')
  }
}

/** Query parameters as an object; one that is given twice is refused. */
export function queryOf(url: URL): Record<string, string> {
  const out: Record<string, string> = Object.create(null)
  for (const [name, value] of url.searchParams) {
    if (Object.hasOwn(out, name)) throw new SandboxError('invalid-input', `\`${name}\` is given twice`)
    out[name] = value
  }
  return out
}
