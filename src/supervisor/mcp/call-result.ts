import { SandboxError } from '../../model/errors.ts'
import { visibleLines } from '../../model/text/visible.ts'

/** One part of a result, for the model. */
type ResultPart =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'image'; readonly data: string; readonly mimeType: string }
  | { readonly type: 'audio'; readonly data: string; readonly mimeType: string }

/** The result of a call, checked and bounded. */
export type McpCallResult = {
  readonly content: readonly ResultPart[]
  readonly isError: boolean
  readonly bytes: number
}

const IMAGES = /^image\/(png|jpeg|gif|webp)$/
const AUDIO = /^audio\/[a-z0-9.+-]{1,40}$/
const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/
const MAX_PARTS = 256

/**
 * What a client receives of a server's answer. SECURITY: only text, images and sounds; control and invisible characters in texts are
 * escaped, links and resources become text, and metadata is dropped.
 */
export function callResult(answer: unknown, maxBytes: number): McpCallResult {
  const { content, structuredContent, isError } = (answer ?? {}) as Readonly<Record<string, unknown>>
  const parts = Array.isArray(content) ? content : []
  if (parts.length > MAX_PARTS) throw tooLarge(`more than ${MAX_PARTS} parts`)
  const known = parts.map((part) => partOf((part ?? {}) as Part))
  if (known.length === 0 && structuredContent !== undefined)
    known.push({ type: 'text', text: visibleLines(JSON.stringify(structuredContent)) })
  const bytes = known.reduce(
    (sum, part) => sum + Buffer.byteLength('text' in part ? part.text : part.data),
    0,
  )
  if (bytes > maxBytes) throw tooLarge(`${bytes} bytes, ${maxBytes} are allowed`)
  return { content: known, isError: isError === true, bytes }
}

type Part = Readonly<Record<string, unknown>>

function partOf(part: Part): ResultPart {
  const { type, text, data, mimeType } = part
  if (type === 'text' && typeof text === 'string') return { type: 'text', text: visibleLines(text) }
  if ((type === 'image' || type === 'audio') && typeof data === 'string' && typeof mimeType === 'string') {
    const isKnown = (type === 'image' ? IMAGES : AUDIO).test(mimeType) && BASE64.test(data)
    return isKnown ? { type, data, mimeType } : omitted(`${type} of an unknown format`)
  }
  if (type === 'resource') return resourceOf((part.resource ?? {}) as Part)
  if (type === 'resource_link')
    return { type: 'text', text: visibleLines(`[link: ${String(part.uri).slice(0, 2000)}]`) }
  return omitted('content of an unknown kind')
}

function resourceOf({ uri, text }: Part): ResultPart {
  const name = String(uri).slice(0, 2000)
  return typeof text === 'string'
    ? { type: 'text', text: visibleLines(`[${name}]\n${text}`) }
    : omitted(`binary resource ${name}`)
}

const omitted = (what: string): ResultPart => ({ type: 'text', text: visibleLines(`[omitted: ${what}]`) })

const tooLarge = (what: string): SandboxError =>
  new SandboxError('too-large', `the result is too large (${what})`, {
    hint: 'ask for less; the operator can raise `max_result_bytes` of this server',
  })
