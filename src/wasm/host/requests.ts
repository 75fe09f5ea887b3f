import type { Answer } from '../worker/guest-worker.ts'
import type { HostFunctions, HostReply, Params } from './host-parts.ts'

/** Parses a guest's request text, calls the host function and serialises the reply. */

const refusal = (error: string, code = 'invalid-input'): HostReply => ({ error, code })

/** INVARIANT: only the worker uses this prefix; methods named by a guest go to `call`, which has no such method. */
const FILES = 'wasi:'

/** Answers a guest's requests; no input makes it throw. */
export function requestHandlerFor(host: HostFunctions, messageBytes: number): Answer {
  return async (method, text, signal) => {
    try {
      const reply = JSON.stringify(await answer(host, method, text, signal))
      if (Buffer.byteLength(reply) <= messageBytes) return reply
      return JSON.stringify(refusal(`the reply is longer than ${messageBytes} bytes`, 'resource-exhausted'))
    } catch {
      // A tool may return a value that JSON cannot represent.
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

/** The parameter that plain text stands for, by the name of the import. */
const PLAIN_PARAM: Readonly<Record<string, string>> = {
  file_read: 'path',
  file_list: 'path',
  net_fetch: 'url',
  memory_recall: 'key',
}

/** Parameters as a JSON object, or the main parameter as plain text. */
function namedParams(method: string, text: string): Params {
  const value = parsed(text)
  if (isParams(value)) return value
  const name = PLAIN_PARAM[method]
  return name === undefined ? {} : { [name]: typeof value === 'string' ? value : text }
}
