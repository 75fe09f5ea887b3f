import type { IncomingMessage } from 'node:http'
import { claimedSandbox } from '../../supervisor/access/sandbox-tokens.ts'
import { fromE2bId, targetOf } from '../e2b/ids.ts'

/** What a request is about, as far as that decides which node answers it. */
export type Subject =
  | { readonly kind: 'sandbox'; readonly id: string }
  | { readonly kind: 'approval'; readonly id: string }
  | { readonly kind: 'volume'; readonly id: string }
  /** A session that one node keeps in its memory. */
  | { readonly kind: 'session'; readonly node: string }
  /** Work of a caller that may be anywhere, but always in the same place. */
  | { readonly kind: 'caller'; readonly name: string }
  | { readonly kind: 'create' }
  /** A file, by an address that is signed for one sandbox and does not name it. */
  | { readonly kind: 'signed' }

const SANDBOX = /^(?:\/v2)?(\/v1)?\/sandboxes\/([^/?]+)(?:\/|$)/
const APPROVAL = /^\/v1\/approvals\/(ap_\w+)$/
const VOLUME = /^(?:(?:\/v1)?\/volumes|\/volumecontent)\/([^/]+)(?:\/|$)/
const NEW_VOLUME = /^(\/v1)?\/volumes$/
const TEMPLATES = /^(\/v[123])?\/templates(\/|$)/
const CREATE = /^(\/v1|\/v2)?\/sandboxes$/
const ENVD = /^\/(files|health|process\.Process\/|filesystem\.Filesystem\/)/
/** A stream of one sandbox's records ends with the sandbox. */
const FOLLOWED = /[?&]sandbox_id=(sb_\w+)/
const SIGNED = /[?&]signature=/
/** The sessions of MCP name the node that keeps them. */
const SESSION = /^([0-9a-f]{16})\./

/** The subject of a request; undefined: any node answers it. */
export function subjectOf(request: IncomingMessage): Subject | undefined {
  const header = (name: string): string | undefined => {
    const value = request.headers[name]
    return Array.isArray(value) ? value[0] : value
  }
  const direct = targetOf(request.headers.host ?? '', header)
  if (direct) return { kind: 'sandbox', id: direct.id }
  const path = routedPath((request.url ?? '/').split('?')[0] as string)
  const id = decoded(SANDBOX.exec(path)?.[2])
  if (id !== undefined) return { kind: 'sandbox', id: fromE2bId(id) ?? id }
  if (request.method === 'POST' && CREATE.test(path)) return { kind: 'create' }
  const approval = APPROVAL.exec(path)?.[1]
  if (approval !== undefined && request.method === 'POST') return { kind: 'approval', id: approval }
  const volume = decoded(VOLUME.exec(path)?.[1])
  if (volume !== undefined) return { kind: 'volume', id: volume }
  // Volumes of one caller are on one node, so that a sandbox can mount several of them.
  if (request.method === 'POST' && NEW_VOLUME.test(path)) return callerOf(header)
  // A build, and the files that are uploaded for it, are in one place until it has ended.
  if (TEMPLATES.test(path)) return { kind: 'caller', name: 'template builds' }
  if (path === '/mcp') return mcpSubject(header)
  const followed = path === '/v1/events' ? FOLLOWED.exec(request.url ?? '')?.[1] : undefined
  if (followed !== undefined) return { kind: 'sandbox', id: followed }
  const claimed = ENVD.test(path) ? claimedSandbox(header('x-access-token') ?? '') : undefined
  if (claimed !== undefined) return { kind: 'sandbox', id: claimed }
  return path === '/files' && SIGNED.test(request.url ?? '') ? { kind: 'signed' } : undefined
}

function mcpSubject(header: (name: string) => string | undefined): Subject {
  const node = SESSION.exec(header('mcp-session-id') ?? '')?.[1]
  if (node !== undefined) return { kind: 'session', node }
  return callerOf(header)
}

const callerOf = (header: (name: string) => string | undefined): Subject => ({
  kind: 'caller',
  name: header('authorization') ?? header('x-api-key') ?? '',
})

/** The path as the routes of the server see it, which decode it once: `/v1/%73andboxes` is `/v1/sandboxes`. */
function routedPath(path: string): string {
  try {
    return decodeURI(path.replaceAll('%25', '%2525'))
  } catch {
    return path
  }
}

function decoded(text: string | undefined): string | undefined {
  try {
    return text === undefined ? undefined : decodeURIComponent(text)
  } catch {
    return text
  }
}
