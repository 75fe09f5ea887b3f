import type { Answer } from '../worker/guest-worker.ts'
import type { HostFunctions, HostReply, Params } from './host-parts.ts'

/** The text of a guest's request becomes a call, and its answer text again. */

const refusal = (error: string, code = 'invalid-input'): HostReply => ({ error, code })

/** INVARIANT: only the worker writes it; what a guest names goes to `call`, which knows no such name. */
const FILES = 'wasi:'

/** Answers a guest's questions; nothing that it writes makes this throw. */
export function requestHandlerFor(host: HostFunctions, messageBytes: number): Answer {
  return async (method, text, signal) => {
    try {
      const reply = JSON.stringify(await answer(host, method, text, signal))
      if (Buffer.byteLength(reply) <= messageBytes) return reply
      return JSON.stringify(refusal(`the reply is longer than ${messageBytes} bytes`, 'resource-exhausted'))
    } catch {
      // A tool may answer with something that JSON cannot hold.
      return JSON.stringify(refusal('the host could not do it', 'internal'))
    }
  }
}

async function answer(
  host: HostFunctions,
  method: string | undefined,
  text: string,
  signal: AbortSignal,
): Promise<HostReply> {
  if (method?.startsWith(FILES)) return host.files(method.slice(FILES.length), JSON.parse(text) as Params)
  if (method !== undefined) return host.call(method, namedParams(method, text), signal)
  const request = parsed(text)
  if (!isParams(request)) return refusal('the request is not a JSON object')
  const { method: wanted, params = {} } = request
  if (typeof wanted !== 'string') return refusal('missing `method`')
  if (!isParams(params)) return refusal('`params` is not an object')
  return host.call(wanted, params, signal)
}

const isParams = (value: unknown): value is Params =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** What plain text means to a function that is named by its import. */
const PLAIN_PARAM: Readonly<Record<string, string>> = {
  file_read: 'path',
  file_list: 'path',
  net_fetch: 'url',
  memory_recall: 'key',
}

/** Parameters as a JSON object, or the one that matters as plain text. */
function namedParams(method: string, text: string): Params {
  const value = parsed(text)
  if (isParams(value)) return value
  const name = PLAIN_PARAM[method]
  return name === undefined ? {} : { [name]: typeof value === 'string' ? value : text }
}
