import { type CreateBody, envShape, ms, words } from '../model/api/create-sandbox.ts'
import { json } from '../model/api/fields.ts'
import { SHOWN_STATES } from '../model/api/sandboxes.ts'
import { SandboxError } from '../model/errors.ts'
import { EVENT_NAMES } from '../model/event.ts'
import { HOST_SCOPES } from '../model/host-question.ts'
import {
  boolean,
  type Infer,
  list,
  number,
  object,
  oneOf,
  optional,
  record,
  type Shape,
  text,
} from '../model/shape.ts'
import { ISOLATIONS, type Spec, specShape } from '../model/spec.ts'
import { SCOPES } from '../supervisor/access/keys.ts'
import type { ExecRequest } from '../supervisor/exec/exec-session.ts'

/** Request bodies and queries. Each shape is the parser and, in `/openapi.json`, the schema. */

/** The spec that a request asks for. */
export function specOf(body: CreateBody): Spec {
  const { network } = body
  return specShape.parse(
    JSON.parse(
      JSON.stringify({
        backend: body.backend,
        minIsolation: body.min_isolation,
        preset: body.preset,
        template: body.template,
        image: body.image,
        root: body.root ?? (body.template === undefined ? undefined : 'preferred'),
        workspace: body.workspace,
        read: body.read,
        write: body.write,
        deny: body.deny,
        mounts: body.mounts,
        volumes: body.volumes,
        network: network && {
          mode: network.mode,
          allowHosts: network.allow_hosts,
          unlisted: network.unlisted,
        },
        unixSockets: body.unix_sockets,
        secrets: body.secrets,
        isolation: body.isolation,
        limits: body.limits,
        env: body.env,
        waive: body.waive,
        metadata: body.metadata,
        review: body.review,
        publicPorts: body.public_ports,
        placement: body.placement,
        restart: body.restart,
        agentId: body.agent_id,
      }),
    ),
    '',
  )
}

const cells = () => number({ integer: true, min: 1, max: 1000 })
/** The size of a terminal. */
export const terminalShape = object({ cols: cells(), rows: cells() })

/** The body that runs a command. */
export const execShape = object({
  argv: optional(list(text({ empty: true }), 4096)),
  command: optional(text({ max: 1_000_000 })),
  cwd: optional(words(4096)),
  /** A user of a sandbox with a writable root; default: `user`. */
  user: optional(words(32)),
  env: optional(envShape),
  /** Must be what the sandbox was created with; otherwise the command is refused. */
  isolation: optional(oneOf(...ISOLATIONS)),
  /** Of an isolated command: the secrets of the sandbox that it may use, by name. Default: none. */
  secrets: optional(list(words(64), 64)),
  /** Of an isolated command: whether it may use the sandbox's proxy. Default: yes. */
  network: optional(boolean()),
  /** Of an isolated command: the ports at which it can be reached from outside. Default: none. */
  ports: optional(list(number({ integer: true, min: 1, max: 65_535 }), 64)),
  /** Text; `stdin_base64` for bytes. */
  stdin: optional(text({ empty: true, max: 8 * 1024 * 1024 })),
  stdin_base64: optional(text({ empty: true, max: 12 * 1024 * 1024 })),
  /** Keeps standard input open for `POST …/stdin`. */
  stdin_open: optional(boolean()),
  /** Runs the command in a terminal of this size; needs `[policy] allow_interactive`. All output is `stdout`. */
  terminal: optional(terminalShape),
  timeout_ms: optional(number({ integer: true, min: 1, max: 2 ** 31 - 1 })),
  background: optional(boolean()),
})
/** A parsed command. */
export type ExecBody = Infer<typeof execShape>

/** The command of a parsed body. */
export function execRequestOf(body: ExecBody): ExecRequest {
  if ((body.argv === undefined) === (body.command === undefined))
    throw new SandboxError('no-command', 'give either `argv` or `command`')
  if (body.cwd !== undefined && !body.cwd.startsWith('/'))
    throw new SandboxError('path-not-absolute', `\`${body.cwd}\` is not an absolute path`)
  return {
    command: (body.argv ?? body.command) as string | readonly string[],
    cwd: body.cwd,
    user: body.user,
    env: body.env,
    isolation: body.isolation,
    secrets: body.secrets,
    network: body.network,
    ports: body.ports,
    stdin: stdinOf(body),
    terminal: body.terminal,
    timeoutMs: body.timeout_ms,
    background: body.background,
    usesDefaults: true,
  }
}

function stdinOf(body: ExecBody): Uint8Array | 'open' | undefined {
  const given = [body.stdin, body.stdin_base64, body.stdin_open || undefined].filter(
    (one) => one !== undefined,
  )
  if (given.length > 1)
    throw new SandboxError('invalid-input', 'give one of `stdin`, `stdin_base64` and `stdin_open`')
  if (body.stdin_open) return 'open'
  if (body.stdin_base64 !== undefined) return bytesFrom(body.stdin_base64)
  return body.stdin === undefined ? undefined : Buffer.from(body.stdin)
}

/** Bytes from base64; anything else is refused. */
export function bytesFrom(text: string): Uint8Array {
  if (!/^[A-Za-z0-9+/]*={0,2}$/.test(text) || text.length % 4 !== 0)
    throw new SandboxError('invalid-input', 'expected base64')
  return Buffer.from(text, 'base64')
}

/** The body that writes to a command's input. */
export const stdinShape = object({
  exec_id: words(64),
  data: optional(text({ empty: true, max: 1024 * 1024 })),
  data_base64: optional(text({ empty: true, max: 1024 * 1024 })),
  eof: optional(boolean()),
})

const SIGNALS = [
  'SIGHUP',
  'SIGINT',
  'SIGQUIT',
  'SIGKILL',
  'SIGUSR1',
  'SIGUSR2',
  'SIGTERM',
  'SIGCONT',
  'SIGSTOP',
  'SIGTSTP',
  'SIGWINCH',
] as const
/** The body that signals a command. */
export const signalShape = object({ exec_id: words(64), signal: optional(oneOf(...SIGNALS)) })
/** The body that changes the size of a command's terminal. */
export const resizeShape = object({ exec_id: words(64), terminal: terminalShape })

/** The body that changes a lifetime. */
export const timeoutShape = object({ timeout_ms: ms(), only_longer: optional(boolean()) })
/** The body that changes the allowed hosts. */
export const networkShape = object({ allow_hosts: list(words(), 1024) })
/** The body of a snapshot. */
export const snapshotShape = object({ name: optional(words(128)) })
/** The body of a fork. */
export const forkShape = object({ timeout_ms: optional(ms()) })
/** An empty body. */
export const noBody = object({})
/** Paths inside the sandbox. A directory includes everything below it; without paths, all changes are applied. */
export const applyShape = object({
  paths: optional(list(words(4096), 20_000)),
  /** The version of each change that was reviewed: only these are applied, and only if unchanged since. */
  seen: optional(record(text({ max: 64 }))),
})

/** The body that asks for a decision. */
export const evaluateShape = object({
  command: optional(text({ max: 1_000_000 })),
  argv: optional(list(text({ empty: true }), 4096)),
  workspace: optional(words(4096)),
  cwd: optional(words(4096)),
  /** Judge it as a command of this sandbox, which may answer questions of the built-in rules. */
  sandbox_id: optional(words(128)),
})
/** The body that answers an approval. */
export const answerShape = object({
  approve: boolean(),
  /** The person's reason, recorded in the audit log. */
  reason: optional(text({ empty: true, max: 1024 })),
  /** For a host: how far a yes reaches; default: `once`. `always` needs the host in the policy. */
  scope: optional(oneOf(...HOST_SCOPES)),
})
/** The body of a console sign-in. */
export const signInShape = object({ link: optional(text({ max: 128 })), key: optional(text({ max: 256 })) })
/** The body that creates a sign-in link. */
export const newLinkShape = object({ key_id: optional(words(64)) })
const policyText = () => text({ empty: true, max: 512 * 1024 })
/** The body that checks a policy. */
export const policyTextShape = object({ text: policyText() })
/** The body that saves a policy. */
export const policySaveShape = object({ text: policyText(), base: text({ empty: true, max: 64 }) })
/** The body that tries a command, path or URL against the policy. */
export const tryShape = object({
  command: optional(text({ max: 1_000_000 })),
  path: optional(text({ max: 4096 })),
  op: optional(oneOf('read', 'write', 'create', 'delete-recursive', 'mount-ro', 'mount-rw')),
  url: optional(text({ max: 4096 })),
  workspace: optional(words(4096)),
  cwd: optional(words(4096)),
})
/** The body that creates a key. */
export const keyShape = object({
  name: optional(text({ empty: true, max: 128 })),
  scopes: optional(list(oneOf(...SCOPES), SCOPES.length)),
  tenant: optional({
    ...text({ max: 64 }),
    parse: (value: unknown, at: string) => tenantName(text({ max: 64 }).parse(value, at), at),
  }),
  e2b: optional(boolean()),
})
const tenantName = (name: string, at: string): string => {
  if (!/^[\w.-]+$/.test(name)) throw new SandboxError('invalid-input', `${at}: a tenant is a word`)
  return name
}
/** The body that creates a webhook. */
export const webhookShape = object({ url: words(2048), events: optional(list(oneOf(...EVENT_NAMES), 16)) })
/** The body that runs a skill. */
export const skillShape = object({ input: optional(json()) })

/** Query parameters come as text. */
const count = (max: number): Shape<number> => ({
  schema: { type: 'integer', minimum: 1, maximum: max },
  parse: (value, at) =>
    number({ integer: true, min: 1, max }).parse(
      /^\d{1,9}$/.test(String(value)) ? Number(value) : Number.NaN,
      at,
    ),
})
const position = (): Shape<number> => ({
  schema: { type: 'integer', minimum: 0 },
  parse: (value, at) =>
    number({ integer: true, min: 0 }).parse(
      /^\d{1,15}$/.test(String(value)) ? Number(value) : Number.NaN,
      at,
    ),
})
const moment = (): Shape<string> => ({
  schema: { type: 'string', format: 'date-time' },
  parse(value, at) {
    const time = Date.parse(text({ max: 64 }).parse(value, at))
    if (!Number.isFinite(time)) throw new SandboxError('invalid-input', `${at}: not a time`)
    return new Date(time).toISOString()
  },
})
const flag = (): Shape<boolean> => ({
  schema: { type: 'boolean' },
  parse: (value, at) => oneOf('true', 'false', '1', '0').parse(value, at) === 'true' || value === '1',
})

/** The query that lists sandboxes. */
export const listQuery = object({
  state: optional(oneOf(...SHOWN_STATES, 'live')),
  agent_id: optional(text({ max: 256 })),
  cursor: optional(text({ max: 256 })),
  limit: optional(count(200)),
})
/** A query with a path. */
export const pathQuery = object({ path: words(4096) })
/** The query that reads a file. */
export const readQuery = object({
  path: words(4096),
  offset: optional(position()),
  length: optional(position()),
})
/** The query that lists files. */
export const filesQuery = object({ path: words(4096), depth: optional(count(16)) })
/** The query that watches a directory. */
export const watchQuery = object({ path: words(4096), recursive: optional(flag()) })
/** The query that attaches to a command. */
export const attachQuery = object({ after: optional(position()) })
/** The query that reads the audit log. */
export const auditQuery = object({
  event: optional(oneOf(...EVENT_NAMES)),
  event_type: optional(text({ max: 64 })),
  agent_id: optional(text({ max: 256 })),
  sandbox_id: optional(words(64)),
  exec_id: optional(words(64)),
  since: optional(moment()),
  limit: optional(count(1000)),
  cursor: optional(position()),
  /** Newest first with `desc`; `before` is then the cursor. */
  order: optional(oneOf('asc', 'desc')),
  before: optional(position()),
})
/** The query that reads raw lines of the audit log. */
export const linesQuery = object({ after: optional(position()), limit: optional(count(2048)) })
/** A query with a position in the audit log. */
export const positionQuery = object({ after: optional(position()) })
/** The query that follows events. */
export const eventsQuery = object({
  after: optional(position()),
  sandbox_id: optional(words(64)),
  event: optional(oneOf(...EVENT_NAMES)),
})
/** The query that lists approvals. */
export const approvalsQuery = object({
  state: optional(oneOf('pending', 'approved', 'rejected', 'expired')),
  limit: optional(count(200)),
})
/** The query that reads a sandbox's log. */
export const logsQuery = object({ limit: optional(count(1000)), after: optional(position()) })
/** A query that is passed on as it is. */
export const anyQuery: Shape<Readonly<Record<string, string>>> = record(text({ empty: true }), /^/)
/** The query that reads the log of a build. */
export const buildQuery = object({ after: optional(position()) })
