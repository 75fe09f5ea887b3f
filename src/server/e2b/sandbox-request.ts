import { posix } from 'node:path'
import type { Context } from 'hono'
import type { Event } from '../../model/event.ts'
import type { Guarantee } from '../../model/guarantee.ts'
import type { Principal } from '../../supervisor/access/keys.ts'
import type { SandboxTokens } from '../../supervisor/access/sandbox-tokens.ts'
import type { LiveSandbox } from '../../supervisor/lifecycle/live-sandbox.ts'
import type { OpenSandbox } from '../../supervisor/open-sandbox.ts'
import type { Templates } from '../../supervisor/snapshots/templates.ts'
import type { UsageHistory } from '../../supervisor/telemetry/usage-history.ts'
import type { AppEnv, Surface } from '../app.ts'
import { makerInForce } from '../auth.ts'
import type { RateLimit } from '../guard.ts'
import { ConnectError, NotRunning } from './errors.ts'
import type { HostCeiling, Internet } from './network.ts'
import type { Builds } from './templates/builds.ts'

/** A secret of the operator that sandboxes of a key may use, without its value. */
export type LentSecret = { readonly name: string; readonly hosts: readonly string[]; readonly since: number }

/** What this surface needs beside the server's own parts. */
export type E2bParts = {
  readonly tokens: SandboxTokens
  readonly templates: Templates
  readonly builds: Builds
  /** Why this server has no sandboxes with a root of their own; undefined if it has. */
  readonly rootsUnavailable: () => { readonly reason: string; readonly fix: string } | undefined
  /** Writes to the audit log. */
  readonly record: (event: Event) => Promise<void>
  /** How often a sandbox may be woken by requests. */
  readonly wakes: RateLimit
  /** What each of these sandboxes used over time. */
  readonly usage: UsageHistory
  /** What policy permits to the sandboxes of this key. */
  readonly policyFor: (principal: Principal) => {
    readonly networkModes: readonly string[]
    readonly max: { readonly diskMb: number }
    readonly publicPorts?: boolean
  } & HostCeiling
  /** `[e2b] internet` as it is now. */
  readonly internet: () => Internet | undefined
  /** How much one of these sandboxes may keep on the disk, where policy permits as much. */
  readonly diskMb: number
  /** The secrets that sandboxes of this key may use. */
  readonly secretsFor: (principal: Principal) => readonly LentSecret[]
  /** `[e2b] waive` as it is now. */
  readonly waive: () => readonly Guarantee[]
  /** `[e2b] ready`: how many code interpreters are kept ready; with 0 kernels start with their first code. */
  readonly ready: number
  /** The MCP servers of the operator, for sandboxes that select some of them. */
  readonly mcp: {
    readonly names: (principal: Principal) => readonly string[]
    readonly serve: (
      request: Request,
      principal: Principal,
      sandboxId: string,
      names: readonly string[],
    ) => Promise<Response>
  }
  /** The text of a program in guest/kernels. */
  readonly kernel: (file: string) => string
}

/** The server's parts together with those of E2B's API. */
export type E2bSurface = Surface & { readonly e2b: E2bParts }

/** What creating a sandbox needs of them. */
export type SandboxSurface = Pick<E2bSurface, 'parts' | 'e2b'>

/** The home directory of E2B's user. */
export const HOME = '/home/user'
/** The directories that each of these sandboxes has to itself. */
export const PRIVATE = [HOME, '/workspace'] as const

/** One request to a running sandbox, after its token was checked. */
export type SandboxRequest = {
  readonly surface: E2bSurface
  readonly context: Context<AppEnv>
  readonly request: Request
  readonly principal: Principal
  readonly live: LiveSandbox
  readonly sandbox: OpenSandbox
}

/** The sandbox when it is awake; otherwise the answer is the same for all reasons. */
export function awake(entry: LiveSandbox | undefined, id: string): OpenSandbox {
  if (entry?.state !== 'ready' || !entry.sandbox) throw new NotRunning(id)
  return entry.sandbox
}

/**
 * The sandbox after it was woken, if it sleeps and its creator wants requests to wake it. SECURITY: called after the
 * request was authorized; the sandbox wakes in the name of the key that made it, and only while that key is in force. Requests to a
 * public port need no key, so a sandbox wakes a few times a minute at most.
 */
export async function woken(
  { parts, e2b }: Pick<E2bSurface, 'parts' | 'e2b'>,
  entry: LiveSandbox | undefined,
  id: string,
): Promise<OpenSandbox> {
  if (entry && parts.supervisor.wakes(entry)) {
    const maker = await makerInForce(parts.keys, entry.row.keyId)
    e2b.wakes.assert(id)
    await parts.supervisor.wake(maker, entry)
  }
  return awake(entry, id)
}

/** Work in flight counts as use of the sandbox. */
export async function within<T>({ live }: SandboxRequest, work: () => Promise<T>): Promise<T> {
  const end = live.begin()
  try {
    return await work()
  } finally {
    end()
  }
}

/** Paths as E2B's clients write them: relative ones and `~` are below the home directory of the user. */
export function pathOf(text: string | undefined, home: string = HOME): string {
  if (text === undefined || text === '') return home
  if (text.includes('\0')) throw new ConnectError('invalid_argument', 'a path holds a NUL character')
  const whole = text === '~' || text.startsWith('~/') ? `${home}${text.slice(1)}` : text
  const path = posix.resolve(home, whole)
  return path
}

/** The home directory of a user. */
export const homeOf = (user: string): string => (user === 'root' ? '/root' : `/home/${user}`)

/** The user that a request names. Without a root user there is only `user`. */
export function userOf({ plan }: Pick<OpenSandbox, 'plan'>, name: string | undefined): string {
  if (name === undefined || name === '' || name === 'user') return 'user'
  if (plan.root && /^[a-z_][a-z0-9_-]{0,31}$/.test(name)) return name
  const only = plan.root ? '' : '; everything runs as `user`'
  throw new ConnectError(
    'invalid_argument',
    `there is no user \`${name.slice(0, 32)}\` in this sandbox${only}`,
  )
}

/** The files of the sandbox; what a request creates belongs to the user that it names. */
export function filesOf(
  { sandbox, request }: Pick<SandboxRequest, 'sandbox' | 'request'>,
  name = basicUser(request),
): { readonly files: OpenSandbox['files']; readonly home: string } {
  const user = userOf(sandbox, name)
  return { files: sandbox.files.ownedBy(user), home: homeOf(user) }
}

/** The user that a client names in `Authorization: Basic`. */
export function basicUser(request: Request): string | undefined {
  const text = /^Basic ([A-Za-z0-9+/=]{1,256})$/i.exec(request.headers.get('authorization') ?? '')?.[1]
  return text && Buffer.from(text, 'base64').toString('utf8').split(':')[0]
}
