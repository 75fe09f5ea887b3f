import { SandboxError } from '../../model/errors.ts'
import { parseAddress } from '../network/address.ts'
import { canonicalHost, isHostName } from '../network/hosts.ts'
import {
  contains,
  is,
  literalTokens,
  MANY,
  matchesSegment,
  nameTokens,
  ONE,
  type Pattern,
  pathTokens,
  sameSegment,
} from './capability-pattern.ts'

/** Capabilities of a skill, parsed. A grant is frozen; it cannot be widened after it was created. */

const NAMED = ['ToolInvoke', 'MemoryRead', 'MemoryWrite', 'EnvRead', 'ShellExec', 'AgentMessage'] as const
const EXACT = ['AgentKill'] as const
const FILES = ['FileRead', 'FileWrite'] as const
const AMOUNTS = ['LlmMaxTokens', 'EconSpend'] as const
const PLAIN = ['AgentSpawn'] as const

/** Kinds whose value is a name. */
export type NamedKind = (typeof NAMED)[number] | (typeof EXACT)[number]
/** Kinds whose value is a path glob. */
export type FileKind = (typeof FILES)[number]
/** Kinds whose value is a limit. */
export type AmountKind = (typeof AMOUNTS)[number]

/** One grant, parsed; `text` is the original. */
export type Capability = { readonly text: string } & (
  | { readonly kind: NamedKind; readonly pattern: Pattern }
  | { readonly kind: FileKind; readonly root: 'any' | 'absolute' | 'workspace'; readonly pattern: Pattern }
  | { readonly kind: 'NetConnect'; readonly host: Pattern; readonly port: number | undefined }
  | { readonly kind: AmountKind; readonly amount: number }
  | { readonly kind: (typeof PLAIN)[number] }
)

const among = <T extends string>(list: readonly T[], kind: string): kind is T => list.includes(kind as T)

const wrong = (text: string, why: string): SandboxError =>
  new SandboxError('invalid-input', `\`${text}\` is not a capability: ${why}`, {
    hint: 'write `ToolInvoke(file_read)`, `FileRead(/data/**)`, `NetConnect(api.example.com:443)`, `MemoryRead(key)`',
  })

/** Parses `Kind(value)`; quotes around the value are optional. */
export function parseCapability(text: string): Capability {
  const [, kind = '', inner] = /^\s*([A-Za-z]+)\s*(?:\((.*)\))?\s*$/s.exec(text) ?? []
  const value = inner?.trim().replace(/^(["'])(.*)\1$/s, '$2')
  if (kind === 'ToolAll' && value === undefined) return named(text, 'ToolInvoke', '*')
  if (among(PLAIN, kind)) {
    if (value) throw wrong(text, `${kind} takes no value`)
    return Object.freeze({ text, kind })
  }
  if (value === undefined || value === '') throw wrong(text, 'a kind with a value in parentheses is expected')
  if (value.length > 4096 || /[\u0000-\u001f\u007f]/.test(value))
    throw wrong(text, 'the value is not plain text')
  if (among(NAMED, kind) || among(EXACT, kind)) return named(text, kind, value)
  if (among(FILES, kind)) return file(text, kind, value)
  if (among(AMOUNTS, kind)) return amount(text, kind, value)
  if (kind === 'NetConnect') return network(text, value)
  throw wrong(text, `the kind \`${kind}\` is unknown`)
}

/** Parses a list of grants; one invalid entry rejects the whole list. */
export const parseCapabilities = (texts: readonly string[]): readonly Capability[] =>
  Object.freeze(texts.map(parseCapability))

function named(text: string, kind: NamedKind, value: string): Capability {
  if (among(EXACT, kind) && value.includes('*') && value !== '*')
    throw wrong(text, `${kind} takes no pattern`)
  return Object.freeze({ text, kind, pattern: Object.freeze(nameTokens(value, false)) })
}

function amount(text: string, kind: AmountKind, value: string): Capability {
  if (!/^\d+(\.\d+)?$/.test(value)) throw wrong(text, 'a number is expected')
  return Object.freeze({ text, kind, amount: Number(value) })
}

function file(text: string, kind: FileKind, value: string): Capability {
  if (value === '*' || value === '**') return Object.freeze({ text, kind, root: 'any', pattern: [MANY] })
  const segments = value.split('/').filter((segment) => segment !== '' && segment !== '.')
  if (segments.includes('..')) throw wrong(text, 'a path must not hold `..`')
  if (value.includes('\\')) throw wrong(text, 'a path must not hold a backslash')
  const root = value.startsWith('/') ? 'absolute' : 'workspace'
  return Object.freeze({ text, kind, root, pattern: Object.freeze(pathTokens(segments)) })
}

function network(text: string, value: string): Capability {
  const [, host = '', portText] = /^(\[[^\]]*\]|[^:]*)(?::(\d{1,5}|\*))?$/.exec(value.toLowerCase()) ?? []
  const port = portText === undefined || portText === '*' ? undefined : Number(portText)
  if (port !== undefined && (port < 1 || port > 65_535)) throw wrong(text, 'the port is out of range')
  return Object.freeze({ text, kind: 'NetConnect', host: Object.freeze(hostTokens(text, host)), port })
}

/**
 * SECURITY: wildcards match whole labels. `*openai.com` would also match `evilopenai.com`, so a wildcard in part of a
 * label is rejected.
 */
function hostTokens(text: string, host: string): Pattern {
  if (host === '*') return [MANY]
  const address = parseAddress(host.replace(/^\[|\]$/g, ''))
  if (address) return [is(canonicalHost(address))]
  const labels = host.split('.')
  const plain = labels.filter((label) => label !== '*')
  if (!isHostName(plain.join('.')) || labels.at(-1) === '*') throw wrong(text, 'it names no host')
  const tokens = labels.map((label) => (label === '*' ? ONE : is(label)))
  // A leading `*.` matches deeper names as well, as in every other host list.
  return labels[0] === '*' ? [ONE, MANY, ...tokens.slice(1)] : tokens
}

/** Whether one capability includes another: `child ⊆ parent`, or a need created by `need`. */
export function covers(parent: Capability, child: Capability): boolean {
  if ('amount' in parent && 'amount' in child)
    return parent.kind === child.kind && parent.amount >= child.amount
  if (parent.kind === 'NetConnect' && child.kind === 'NetConnect') {
    return (parent.port === undefined || parent.port === child.port) && contains(parent.host, child.host)
  }
  if ('root' in parent && 'root' in child) {
    const reaches = parent.root === 'any' || parent.root === child.root
    return parent.kind === child.kind && reaches && contains(parent.pattern, child.pattern, sameSegment)
  }
  if ('pattern' in parent && 'pattern' in child) {
    return parent.kind === child.kind && !('root' in parent) && contains(parent.pattern, child.pattern)
  }
  return parent.kind === child.kind && among(PLAIN, parent.kind)
}

/** The child's capabilities that no single capability of the parent includes: each would be an escalation. */
export const escalations = (
  parent: readonly Capability[],
  child: readonly Capability[],
): readonly Capability[] => child.filter((wanted) => !parent.some((held) => covers(held, wanted)))

/** Whether a name is granted. `*` in the name is an ordinary character. */
export function grantsName(grants: readonly Capability[], kind: NamedKind, name: string): boolean {
  const wanted = literalTokens(name)
  return grants.some((held) => held.kind === kind && 'pattern' in held && contains(held.pattern, wanted))
}

/** A host in canonical form (parsed by `policy/network/network.ts`) and a port. */
export function grantsHost(grants: readonly Capability[], host: string, port: number): boolean {
  const address = parseAddress(host)
  const wanted = address ? [is(canonicalHost(address))] : host.split('.').map(is)
  return grants.some(
    (held) =>
      held.kind === 'NetConnect' &&
      (held.port === undefined || held.port === port) &&
      contains(held.host, wanted),
  )
}

/** A file by its absolute path and, if it is in the workspace, by its relative path. */
export type FileLocation = { readonly absolute: string; readonly inWorkspace: string | undefined }

const segmentsOf = (path: string): Pattern =>
  path
    .split('/')
    .filter((segment) => segment !== '')
    .map(is)

/** Whether access to a file is granted. */
export function grantsFile(grants: readonly Capability[], kind: FileKind, location: FileLocation): boolean {
  const absolute = segmentsOf(location.absolute)
  const relative = location.inWorkspace === undefined ? undefined : segmentsOf(location.inWorkspace)
  return grants.some((held) => {
    if (held.kind !== kind || !('root' in held)) return false
    const wanted = held.root === 'workspace' ? relative : absolute
    return wanted !== undefined && contains(held.pattern, wanted, matchesSegment)
  })
}

/** Whether at least this amount is granted. */
export const grantsAmount = (grants: readonly Capability[], kind: AmountKind, amount: number): boolean =>
  grants.some((held) => held.kind === kind && 'amount' in held && held.amount >= amount)

/** The fixed prefix of a path grant, before its first wildcard. */
export function fixedPart(grant: Extract<Capability, { root: string }>): string | undefined {
  const fixed: string[] = []
  for (const token of grant.pattern) {
    if (token.kind !== 'is' || /[*?]/.test(token.text)) break
    fixed.push(token.text)
  }
  return fixed.length === 0 ? undefined : `${grant.root === 'absolute' ? '/' : ''}${fixed.join('/')}`
}
