import type { StopLimit } from '../../../model/command.ts'
import { ownedTargets } from '../../../model/plan.ts'
import { boolean, list, number, object, oneOf, optional, record, text } from '../../../model/shape.ts'
import type { ExecSession } from '../../../supervisor/exec/exec-session.ts'
import type { LiveSandbox } from '../../../supervisor/lifecycle/live-sandbox.ts'
import { bytesFrom } from '../../shapes.ts'
import { withStreamEnd } from '../../streams/stream-end.ts'
import { ConnectError, streamEndError } from '../errors.ts'
import { gatewayStart } from '../mcp.ts'
import { basicUser, homeOf, pathOf, type SandboxRequest, userOf } from '../sandbox-request.ts'
import { optionsOf, specOf } from '../views.ts'
import { messages, onlyMessage, type Stream } from './connect.ts'

/** `process.Process`: commands, by their process number inside the sandbox. */

const size = object({
  size: optional(
    object({
      cols: optional(number({ integer: true, min: 1, max: 1000 })),
      rows: optional(number({ integer: true, min: 1, max: 1000 })),
    }),
  ),
})
const config = object({
  cmd: text({ max: 4096 }),
  args: optional(list(text({ empty: true, max: 1_000_000 }), 4096)),
  envs: optional(record(text({ empty: true }), /^[A-Za-z_][A-Za-z0-9_]*$/)),
  cwd: optional(text({ empty: true, max: 4096 })),
})
const startShape = object({
  process: config,
  pty: optional(size),
  tag: optional(text({ empty: true, max: 256 })),
  stdin: optional(boolean()),
})
const selector = object({
  pid: optional(number({ integer: true, min: 0, max: 2 ** 32 - 1 })),
  tag: optional(text({ max: 256 })),
})
const connectShape = object({ process: selector })
const inputShape = object({
  stdin: optional(text({ empty: true, max: 12 * 1024 * 1024 })),
  pty: optional(text({ empty: true, max: 12 * 1024 * 1024 })),
})
const sendShape = object({ process: selector, input: optional(inputShape) })
const signalShape = object({
  process: selector,
  signal: oneOf('SIGNAL_UNSPECIFIED', 'SIGNAL_SIGTERM', 'SIGNAL_SIGKILL'),
})
const updateShape = object({ process: selector, pty: optional(size) })
const streamInputShape = object({
  start: optional(connectShape),
  data: optional(object({ input: optional(inputShape) })),
  keepalive: optional(object({})),
})

type Config = ReturnType<typeof config.parse>
type Known = { readonly config: Config; readonly tag: string | undefined; readonly pty: boolean }
type Selector = ReturnType<typeof selector.parse>

/** What was asked for, for as long as somebody holds the command. */
const KNOWN = new WeakMap<ExecSession, Known>()

/** The message that keeps a silent stream open. */
export const KEEPALIVE = { event: { keepalive: {} } }

/** The client's own deadline; it counts here too, because a client that went away cannot end anything. */
function timeoutOf(request: Request): number | undefined {
  const ms = Number(request.headers.get('connect-timeout-ms') ?? Number.NaN)
  return Number.isInteger(ms) && ms > 0 && ms < 2 ** 31 ? ms : undefined
}

/** A question to a human is withdrawn before E2B's clients give up waiting for the begin of their command. */
export const ANSWER_MS = 45_000

/** PLATFORM: a directory that is not there ends a command before it can say so. */
async function checkDirectory({ sandbox }: SandboxRequest, cwd: string): Promise<void> {
  if (['/', '/tmp', '/root', ...ownedTargets(sandbox.plan)].includes(cwd)) return
  const info = await sandbox.files.stat(cwd).catch(() => undefined)
  if (!info || info.kind === 'file')
    throw new ConnectError('invalid_argument', `the directory \`${cwd}\` does not exist`)
}

/** Starts a command and streams its events. */
export async function* start(guest: SandboxRequest, signal: AbortSignal): Stream {
  const { process, pty, tag, stdin } = startShape.parse(await onlyMessage(guest.request), '')
  const { surface, principal, live, request } = guest
  const defaults = guest.sandbox.plan.root ? optionsOf(specOf(live)) : undefined
  const named = basicUser(request)
  const user = userOf(guest.sandbox, named || defaults?.user)
  if (pty && !surface.parts.settings.allowInteractive())
    throw new ConnectError(
      'permission_denied',
      'interactive sessions are switched off (an operator can set `[policy] allow_interactive = true`)',
    )
  // Without one, the command starts in the directory of the template, or in the home directory of its user.
  const workdir = named && named !== defaults?.user ? undefined : defaults?.workdir
  const cwd = process.cwd ? pathOf(process.cwd, homeOf(user)) : workdir
  if (cwd !== undefined) await checkDirectory(guest, cwd)
  const { session } = await surface.parts.supervisor.exec(
    principal,
    live.id,
    {
      command: [process.cmd, ...gatewayStart(guest, process.args ?? [], process.envs)],
      ...(cwd === undefined ? {} : { cwd }),
      env: process.envs,
      ...(user === 'user' ? {} : { user }),
      ...(pty ? { terminal: { cols: pty.size?.cols ?? 80, rows: pty.size?.rows ?? 24 } } : {}),
      ...(stdin === false || pty ? {} : { stdin: 'open' }),
      timeoutMs: timeoutOf(request),
      background: true,
    },
    {
      signal: AbortSignal.any([signal, live.abort.signal, AbortSignal.timeout(ANSWER_MS)]),
    },
  )
  KNOWN.set(session, { config: process, tag: tag || undefined, pty: pty !== undefined })
  yield* told(guest, session, signal)
}

/** Reattaching brings everything that is still kept, not only what comes. */
export async function* connect(guest: SandboxRequest, signal: AbortSignal): Stream {
  const { process } = connectShape.parse(await onlyMessage(guest.request), '')
  yield* told(guest, find(guest, process), signal)
}

async function* told({ live }: SandboxRequest, session: ExecSession, signal: AbortSignal): Stream {
  yield { event: { start: { pid: session.pid } } }
  const pty = KNOWN.get(session)?.pty
  // Looked at when it happens: a slow reader must not take the sandbox's end, which came later, for the command's.
  const end = endOf(session, live)
  end.catch(() => {})
  for await (const chunk of session.log.follow(0, signal)) {
    if ('gap' in chunk) continue
    const data = Buffer.from(chunk.data).toString('base64')
    yield { event: { data: pty ? { pty: data } : { [chunk.stream]: data } } }
  }
  if (!signal.aborted) yield { event: { end: await end } }
}

async function endOf(session: ExecSession, entry: LiveSandbox): Promise<unknown> {
  const outcome = await session.result.then(
    (done) => done.outcome,
    () => undefined,
  )
  if (outcome?.kind === 'exited')
    return { exitCode: outcome.code, exited: true, status: `exit status ${outcome.code}` }
  if (outcome?.kind === 'stopped' && outcome.limit !== 'cancelled') return stoppedBy(outcome.limit)
  const cut = await withStreamEnd(entry, outcome)
  if (cut) throw streamEndError(cut)
  if (!outcome)
    throw new ConnectError('unavailable', `the sandbox ended: ${(session.failure as Error).message}`)
  if (outcome.kind === 'stopped') throw new ConnectError('unavailable', 'the sandbox was ended')
  const why = `signal: ${outcome.signal}`
  return { exitCode: -1, exited: false, status: why, error: why }
}

function stoppedBy(limit: StopLimit): unknown {
  if (limit === 'wall') throw new ConnectError('deadline_exceeded', 'the command was ended at its time limit')
  const why = `stopped by the limit \`${limit}\``
  return { exitCode: 137, exited: false, status: why, error: why }
}

/** By number the running one, or the last that had it; by tag the last. */
function find({ live }: SandboxRequest, { pid, tag }: Selector): ExecSession {
  live.touch()
  const fits = [...live.execs.values()].filter((session) =>
    tag === undefined ? session.pid === pid : KNOWN.get(session)?.tag === tag,
  )
  const found = fits.find(({ state }) => state === 'running') ?? fits.at(-1)
  if (!found) throw new ConnectError('not_found', `there is no process ${tag ?? pid} in this sandbox`)
  return found
}

function running(guest: SandboxRequest, which: Selector): ExecSession {
  const session = find(guest, which)
  if (session.state !== 'running')
    throw new ConnectError('not_found', `process ${which.tag ?? which.pid} has ended`)
  return session
}

async function take(
  session: ExecSession,
  input: ReturnType<typeof inputShape.parse> | undefined,
): Promise<void> {
  const data = input?.stdin ?? input?.pty
  if (data === undefined) throw new ConnectError('invalid_argument', 'there is no input')
  await session.write(bytesFrom(data)).catch(() => {
    throw new ConnectError('failed_precondition', 'the process no longer reads its input')
  })
}

/** A stream from the client alone; its one answer comes when it ended. */
export async function* streamInput(guest: SandboxRequest): Stream {
  yield await takeAll(guest)
}

async function takeAll(guest: SandboxRequest): Promise<unknown> {
  let session: ExecSession | undefined
  for await (const message of messages(guest.request)) {
    const { start: first, data } = streamInputShape.parse(message, '')
    if (first) session = running(guest, first.process)
    else if (data && session) await take(session, data.input)
  }
  return {}
}

/** The methods of the process service that have one answer. */
export const UNARY: Readonly<Record<string, (guest: SandboxRequest, message: unknown) => Promise<unknown>>> =
  {
    async List({ live }) {
      const sessions = [...live.execs.values()].filter((one) => one.state === 'running' && KNOWN.has(one))
      return {
        processes: sessions.map((session) => {
          const known = KNOWN.get(session) as Known
          return { config: known.config, pid: session.pid, ...(known.tag ? { tag: known.tag } : {}) }
        }),
      }
    },
    async SendInput(guest, message) {
      const { process, input } = sendShape.parse(message, '')
      await take(running(guest, process), input)
      return {}
    },
    async CloseStdin(guest, message) {
      running(guest, connectShape.parse(message, '').process).endInput()
      return {}
    },
    async SendSignal(guest, message) {
      const { process, signal } = signalShape.parse(message, '')
      running(guest, process).signal(signal === 'SIGNAL_SIGKILL' ? 'SIGKILL' : 'SIGTERM')
      return {}
    },
    async Update(guest, message) {
      const { process, pty } = updateShape.parse(message, '')
      const session = running(guest, process)
      if (pty?.size) session.resize({ cols: pty.size.cols ?? 80, rows: pty.size.rows ?? 24 })
      return {}
    },
  }
