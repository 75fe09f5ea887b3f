import { SandboxError } from '../../model/errors.ts'
import { GrowingBuffer, type Source } from '../source.ts'

/**
 * HTTP/1.1 heads, parsed strictly and serialized again: ambiguous input is rejected, so that no server
 * sees another request than the one that was checked.
 */

export type Headers = readonly (readonly [name: string, value: string])[]
/** How the length of a body is known. */
export type Framing =
  | { readonly kind: 'none' }
  | { readonly kind: 'length'; readonly bytes: number }
  | { readonly kind: 'chunked' }
  | { readonly kind: 'close' }

/** The parsed head of a request. */
export type RequestHead = {
  readonly method: string
  readonly target: string
  readonly version: '1.0' | '1.1'
  readonly headers: Headers
}

/** The parsed head of a response. */
export type ResponseHead = {
  readonly status: number
  readonly reason: string
  readonly version: '1.0' | '1.1'
  readonly headers: Headers
}

const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/
const VALUE = /^[\t\x20-\x7e\x80-\xff]*$/
const MAX_FIELDS = 128

const malformed = (what: string): SandboxError => new SandboxError('invalid-input', `the request ${what}`)

/** The text of one head without its blank line, or `undefined` at a clean end. `limit` counts bytes. */
export async function readHead(source: Source, limit: number): Promise<string | undefined> {
  const gathered = new GrowingBuffer()
  for (;;) {
    const chunk = await source.next()
    if (chunk === undefined) {
      if (gathered.length === 0) return undefined
      throw malformed('ends inside its head')
    }
    const from = Math.max(0, gathered.length - 3)
    const held = gathered.add(chunk)
    const end = held.indexOf('\r\n\r\n', from, 'latin1')
    if (end > limit || (end < 0 && held.length > limit)) throw tooLarge(limit)
    if (end < 0) continue
    source.unshift(held.subarray(end + 4))
    return held.toString('latin1', 0, end)
  }
}

const tooLarge = (limit: number): SandboxError =>
  new SandboxError('invalid-input', `the head is larger than ${limit} bytes`)

/** Parses a request's head. */
export function parseRequest(text: string): RequestHead {
  const { first, headers } = fieldsOf(text)
  const [, method = '', target = '', version] = /^(\S+) (\S+) HTTP\/(1\.[01])$/.exec(first) ?? []
  if (version === undefined || !TOKEN.test(method) || !/^[\x21-\x7e]+$/.test(target))
    throw malformed('line is not valid')
  return { method, target, version: version as '1.0' | '1.1', headers }
}

/** Parses the head of a response. */
export function parseResponse(text: string): ResponseHead {
  const { first, headers } = fieldsOf(text)
  const [, version, status, reason = ''] = /^HTTP\/(1\.[01]) ([1-9]\d\d)(?: (.*))?$/.exec(first) ?? []
  if (version === undefined || !VALUE.test(reason)) throw malformed('got no valid status line')
  return { status: Number(status), reason, version: version as '1.0' | '1.1', headers }
}

function fieldsOf(text: string): { readonly first: string; readonly headers: Headers } {
  const [first = '', ...lines] = text.split('\r\n')
  // SECURITY: a bare CR or LF ends a line for some parsers and not for others.
  if (/[\r\n\0]/.test(first) || lines.length > MAX_FIELDS) throw malformed('head is not valid')
  return { first, headers: lines.map(fieldOf) }
}

function fieldOf(line: string): readonly [string, string] {
  const colon = line.indexOf(':')
  const name = line.slice(0, Math.max(colon, 0))
  const value = line.slice(colon + 1).replace(/^[ \t]+|[ \t]+$/g, '')
  // SECURITY: no folded lines, no space before the colon, no control characters.
  if (!TOKEN.test(name) || !VALUE.test(value)) throw malformed('holds a header that is not valid')
  return [name, value]
}

/** All values of a header, in order. */
export const valuesOf = (headers: Headers, name: string): readonly string[] =>
  headers
    .filter(([key]) => key.length === name.length && key.toLowerCase() === name)
    .map(([, value]) => value)

/** How the end of a request's body is determined. Ambiguous framing is rejected. */
export function requestFraming({ headers, version }: RequestHead): Framing {
  const framing = framingOf(headers)
  if (framing.kind === 'chunked' && version === '1.0') throw malformed('is chunked in HTTP/1.0')
  return framing
}

/** How the end of a response's body is determined. */
export function responseFraming({ status, headers }: ResponseHead, method: string): Framing {
  const framing = framingOf(headers)
  if (method === 'HEAD' || status === 204 || status === 304 || status < 200) return { kind: 'none' }
  return framing.kind === 'none' ? { kind: 'close' } : framing
}

function framingOf(headers: Headers): Framing {
  const lengths = valuesOf(headers, 'content-length')
  const codings = valuesOf(headers, 'transfer-encoding')
  if (lengths.length + codings.length > 1) throw malformed('says twice where its body ends')
  if (codings.length > 0) {
    if (codings[0]?.toLowerCase() !== 'chunked') throw malformed('has an unknown transfer encoding')
    return { kind: 'chunked' }
  }
  if (lengths.length === 0) return { kind: 'none' }
  if (!/^\d{1,15}$/.test(lengths[0] as string)) throw malformed('has a length that is no number')
  return { kind: 'length', bytes: Number(lengths[0]) }
}

/** Hop-by-hop headers, which are never forwarded. */
const HOP =
  /^(connection|keep-alive|proxy-connection|proxy-authorization|proxy-authenticate|te|trailer|transfer-encoding|upgrade|http2-settings)$/i

/** The headers to forward: without hop-by-hop headers and those named in `connection`. */
export function endToEnd(headers: Headers, ours: RegExp): [string, string][] {
  const named = new Set(
    valuesOf(headers, 'connection').flatMap((value) => value.toLowerCase().split(/[ \t]*,[ \t]*/)),
  )
  return headers
    .filter(([name]) => !HOP.test(name) && !ours.test(name) && !named.has(name.toLowerCase()))
    .map(([name, value]) => [name, value])
}

/** Whether the sender keeps the connection open after this message. */
export function keepsAlive({ headers, version }: { headers: Headers; version: string }): boolean {
  const said = [...valuesOf(headers, 'connection'), ...valuesOf(headers, 'proxy-connection')].join(',')
  if (/(^|,)[ \t]*close[ \t]*(,|$)/i.test(said)) return false
  return version === '1.1' || /(^|,)[ \t]*keep-alive[ \t]*(,|$)/i.test(said)
}

/** A head as bytes. */
export function headBytes(first: string, headers: Headers): Buffer {
  let text = `${first}\r\n`
  for (const [name, value] of headers) text += `${name}: ${value}\r\n`
  return Buffer.from(`${text}\r\n`, 'latin1')
}
