import { SandboxError } from '../../model/errors.ts'
import type { Json } from '../../model/event.ts'
import { grantsHost, grantsName } from '../../policy/grants/capability.ts'
import { judgeTarget, networkPolicyOf, parseTarget } from '../../policy/network/network.ts'
import { createHostFiles } from './files.ts'
import {
  denied,
  type FetchRequest,
  type HostFunctions,
  type HostParts,
  HostRefusal,
  type HostReply,
  type MemoryStore,
  notHere,
  type Params,
  textParam,
} from './host-parts.ts'
import { WasiFiles } from './wasi-files.ts'

const MAX_KEY = 256
const MAX_VALUE = 65_536

type Handler = (params: Params, signal: AbortSignal) => Promise<Json>

/** Older names of the same functions, so that existing modules run. */
const ALIASES: Readonly<Record<string, string>> = {
  fs_read: 'file_read',
  fs_write: 'file_write',
  fs_list: 'file_list',
  kv_get: 'memory_recall',
  kv_set: 'memory_store',
}

/** The host functions for one run. */
export function createHostFunctions(parts: HostParts): HostFunctions {
  const files = new WasiFiles(parts)
  const handlers: Readonly<Record<string, Handler>> = {
    ...createHostFiles(parts),
    net_fetch: (params, signal) => fetchFor(parts, params, signal),
    memory_recall: (params) => recall(parts, params),
    memory_store: (params) => store(parts, params),
    env_read: async (params) => readVariable(parts, textParam(params, 'name')),
    time_now: async () => Math.floor((parts.now ?? Date.now)() / 1000),
    shell_exec: async (params) => unavailable(parts, 'ShellExec', textParam(params, 'command')),
    agent_send: async (params) => unavailable(parts, 'AgentMessage', textParam(params, 'target')),
    agent_spawn: async () => unavailable(parts, 'ToolInvoke', 'agent_spawn'),
  }
  return {
    async call(method, params, signal) {
      const name = ALIASES[method] ?? method
      try {
        const handler = Object.hasOwn(handlers, name) ? handlers[name] : undefined
        return { ok: await (handler ? handler(params, signal) : useTool(parts, method, params, signal)) }
      } catch (error) {
        return replyOf(error)
      }
    },
    files(method, params) {
      try {
        return { ok: files.call(method, params) }
      } catch (error) {
        return replyOf(error)
      }
    },
    close: () => files.close(),
  }
}

/** Unexpected errors disclose nothing to the guest. */
function replyOf(error: unknown): HostReply {
  if (error instanceof HostRefusal) return { error: error.message, code: error.code }
  if (error instanceof SandboxError) return { error: error.message, code: error.code }
  return { error: 'the host could not do it', code: 'internal' }
}

async function useTool(parts: HostParts, method: string, params: Params, signal: AbortSignal): Promise<Json> {
  if (!parts.tool) throw new HostRefusal('invalid-input', `unknown method \`${method.slice(0, 200)}\``)
  if (!grantsName(parts.grants, 'ToolInvoke', method)) throw denied(parts, 'ToolInvoke', method)
  return parts.tool(method, params, signal)
}

async function fetchFor(parts: HostParts, params: Params, signal: AbortSignal): Promise<Json> {
  const url = textParam(params, 'url')
  const target = parseTarget(url, 'url')
  if (target.kind === 'blocked') throw ssrf(parts, url, target.reason)
  const { host, port } = target.value
  if (!grantsHost(parts.grants, host, port)) throw denied(parts, 'NetConnect', `${host}:${port}`)
  const verdict = judgeTarget(parts.network ?? networkPolicyOf({}), target.value)
  if (verdict.verdict === 'block') throw ssrf(parts, url, verdict.reason)
  if (!parts.fetcher) throw new HostRefusal('unsupported', 'no network is attached to this run')
  try {
    const { status, headers, body } = await parts.fetcher(requestOf(url, params), signal)
    return { status, headers, body: bodyText(body, params.encoding === 'base64') }
  } catch (error) {
    // Only the fetcher knows the address that a host name resolves to.
    if (error instanceof SandboxError && error.code === 'ssrf-blocked') throw ssrf(parts, url, error.message)
    throw error
  }
}

const bodyText = (body: string | Uint8Array, base64: boolean): string => {
  if (base64) return Buffer.from(body).toString('base64')
  return typeof body === 'string' ? body : new TextDecoder().decode(body)
}

function requestOf(url: string, params: Params): FetchRequest {
  const { method = 'GET', headers = {}, body } = params
  if (typeof method !== 'string' || !/^[A-Z]{1,16}$/.test(method)) {
    throw new HostRefusal('invalid-input', 'the method is not an HTTP method')
  }
  if (typeof headers !== 'object' || headers === null)
    throw new HostRefusal('invalid-input', 'headers must be an object')
  const given = Object.entries(headers).filter(
    (entry): entry is [string, string] => typeof entry[1] === 'string',
  )
  const text = typeof body === 'string' ? body : undefined
  const binary = params.encoding === 'base64' && text !== undefined
  return {
    url,
    method,
    headers: Object.fromEntries(given),
    body: binary ? Buffer.from(text, 'base64') : text,
  }
}

function ssrf(parts: HostParts, url: string, reason: string): HostRefusal {
  parts.onViolation({ violationType: 'SsrfBlocked', details: url.slice(0, 200) })
  return new HostRefusal('ssrf-blocked', reason)
}

function keyOf(parts: HostParts, kind: 'MemoryRead' | 'MemoryWrite', params: Params): string {
  const key = textParam(params, 'key')
  if (key.length > MAX_KEY) throw new HostRefusal('invalid-input', `a key has at most ${MAX_KEY} characters`)
  if (!grantsName(parts.grants, kind, key)) throw denied(parts, kind, key)
  return key
}

const memoryOf = ({ memory }: HostParts): MemoryStore => {
  if (!memory) throw new HostRefusal('unsupported', 'no memory is attached to this run')
  return memory
}

async function recall(parts: HostParts, params: Params): Promise<Json> {
  const key = keyOf(parts, 'MemoryRead', params)
  return (await memoryOf(parts).recall(key)) ?? null
}

async function store(parts: HostParts, params: Params): Promise<Json> {
  const key = keyOf(parts, 'MemoryWrite', params)
  const { value } = params
  if (value === undefined) throw new HostRefusal('invalid-input', 'missing parameter `value`')
  if (JSON.stringify(value).length > MAX_VALUE) {
    throw new HostRefusal('resource-exhausted', `a value has at most ${MAX_VALUE} characters`)
  }
  await memoryOf(parts).store(key, value as Json)
  return true
}

function readVariable(parts: HostParts, name: string): Json {
  if (!grantsName(parts.grants, 'EnvRead', name)) throw denied(parts, 'EnvRead', name)
  const value = parts.env && Object.hasOwn(parts.env, name) ? parts.env[name] : undefined
  if (value === undefined) throw notHere(name)
  return value
}

/** Functions of the interface that WASM skills cannot use yet. */
function unavailable(
  parts: HostParts,
  kind: 'ShellExec' | 'AgentMessage' | 'ToolInvoke',
  name: string,
): never {
  if (!grantsName(parts.grants, kind, name)) throw denied(parts, kind, name)
  throw new HostRefusal('unsupported', `\`${name.slice(0, 200)}\` cannot be reached from a WASM skill`)
}
