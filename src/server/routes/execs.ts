import {
  type ExecResult,
  execEvents,
  execPage,
  execShape,
  resizedShape,
  signalSentShape,
  writtenShape,
} from '../../model/api/execs.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Started } from '../../supervisor/exec/exec-service.ts'
import {
  ANSWER_BYTES,
  type ExecRequest,
  type ExecSession,
  execJson,
} from '../../supervisor/exec/exec-session.ts'
import { execViewOf, recordedExec, recordedExecs } from '../exec-views.ts'
import { assertInteractive } from '../guard.ts'
import { problemOf } from '../problem.ts'
import type { Call, EventOf, Reply, Route } from '../route.ts'
import { reply, route } from '../route.ts'
import {
  attachQuery,
  bytesFrom,
  type ExecBody,
  execRequestOf,
  execShape as newExecShape,
  resizeShape,
  signalShape,
  stdinShape,
} from '../shapes.ts'
import { lastEventId, sse } from '../streams/sse.ts'
import { endStreamNow } from '../streams/stream-end.ts'

/** Commands in a sandbox: start, follow, write to, signal, list. */

type ExecEvent = EventOf<typeof execEvents>

const BODY_BYTES = 16 * 1024 * 1024

const wantsStream = (request: Request): boolean =>
  (request.headers.get('accept') ?? '').includes('text/event-stream')

const STREAM = { type: 'text/event-stream', events: execEvents } as const

/** Routes of commands. */
export const execRoutes: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/exec',
    summary: 'Run a command: a JSON result, or a stream of events with `Accept: text/event-stream`',
    scope: 'exec',
    sandboxToken: true,
    body: newExecShape,
    maxBytes: BODY_BYTES,
    answers: {
      200: { description: 'the result', shape: execShape, ...STREAM },
      202: { description: 'the command runs in the background', shape: execShape },
    },
    handle: (call) => (wantsStream(call.request) ? execStream(call) : execAnswer(call)),
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/:id/execs',
    summary: 'List the commands of a sandbox, newest first: running ones and recorded ones',
    scope: 'read',
    sandboxToken: true,
    answers: { 200: { description: 'a page', shape: execPage } },
    async handle({ parts, principal, params }) {
      const { row, live } = await parts.supervisor.get(principal, params.id)
      const held = [...(live?.execs.values() ?? [])].map(execViewOf)
      const known = new Set(held.map(({ exec_id }) => exec_id))
      const past = (await recordedExecs(parts, row.id)).filter(({ exec_id }) => !known.has(exec_id))
      const items = [...held, ...past].sort((a, b) => (a.started_at < b.started_at ? 1 : -1))
      return reply(200, { items, next: null })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/:id/execs/:exec',
    summary: 'Get a command: its result so far, or its events after a position',
    scope: 'read',
    sandboxToken: true,
    query: attachQuery,
    answers: { 200: { description: 'the command', shape: execShape, ...STREAM } },
    async handle(call) {
      const { parts, principal, params, query, request } = call
      const { live } = await parts.supervisor.get(principal, params.id)
      const session = live?.execs.get(params.exec)
      const sandbox = live?.sandbox
      if (!session || !live || !sandbox) return reply(200, await recordedExec(parts, principal, params))
      const after = lastEventId(request) ?? query.after ?? 0
      return wantsStream(request)
        ? sse(call, (signal) => eventsOf({ session, live: sandbox, entry: live }, after, signal))
        : reply(200, answerOf({ session, live: sandbox, entry: live }))
    },
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/stdin',
    summary: 'Write to a running command',
    scope: 'exec',
    sandboxToken: true,
    body: stdinShape,
    maxBytes: 2 * 1024 * 1024,
    answers: { 200: { description: 'the number of bytes written', shape: writtenShape } },
    async handle(call) {
      const session = await running(call, call.body.exec_id)
      const { data, data_base64, eof } = call.body
      const bytes = data_base64 === undefined ? Buffer.from(data ?? '') : bytesFrom(data_base64)
      if (bytes.length > 0) await session.write(bytes)
      if (eof) session.endInput()
      return reply(200, { written: bytes.length })
    },
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/signal',
    summary: 'Send a signal to a running command',
    scope: 'exec',
    sandboxToken: true,
    body: signalShape,
    answers: { 200: { description: 'the signal that was sent', shape: signalSentShape } },
    async handle(call) {
      const session = await running(call, call.body.exec_id)
      session.signal(call.body.signal ?? 'SIGTERM')
      return reply(200, { sent: call.body.signal ?? 'SIGTERM' })
    },
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/resize',
    summary: 'Change the size of the terminal of a running command',
    scope: 'exec',
    sandboxToken: true,
    body: resizeShape,
    answers: { 200: { description: 'the size that was set', shape: resizedShape } },
    async handle(call) {
      const session = await running(call, call.body.exec_id)
      if (!session.isTerminal)
        throw new SandboxError('wrong-state', 'this command has no terminal', {
          hint: 'start it with `terminal`',
        })
      session.resize(call.body.terminal)
      return reply(200, call.body.terminal)
    },
  }),
]

function requestOf({ parts, body }: Call<'id', ExecBody>): ExecRequest {
  if (body.terminal) assertInteractive(parts.settings)
  return execRequestOf(body)
}

async function execAnswer(
  call: Call<'id', ExecBody>,
): Promise<Reply<200, ExecResult> | Reply<202, ExecResult>> {
  const { parts, principal, params } = call
  const request = requestOf(call)
  const started = await parts.supervisor.exec(principal, params.id, request)
  if (request.background) return reply(202, answerOf(started))
  const release = started.session.log.hold()
  try {
    await started.session.result
    return reply(200, answerOf(started))
  } finally {
    release()
  }
}

/** The stream opens when the command runs, or when a human is asked; a refusal before that is an ordinary answer. */
async function execStream(call: Call<'id', ExecBody>): Promise<Response> {
  const { parts, principal, params } = call
  const request = { ...requestOf(call), background: true, keepBytes: ANSWER_BYTES }
  let asked: (id: string) => void = () => {}
  const question = new Promise<string>((resolve) => {
    asked = resolve
  })
  const started = parts.supervisor.exec(principal, params.id, request, { onAsked: asked })
  const first = await Promise.race([started.then(() => undefined), question])
  if (first === undefined) {
    const running = await started
    return sse(call, (signal) => eventsOf(running, 0, signal))
  }
  return sse(call, (signal) => afterQuestion(call, first, started, signal))
}

/** The command as it stands; where its sandbox ended around it, that is said too. */
function answerOf({ session, live, entry }: Started): ExecResult {
  const cut = session.state === 'running' ? undefined : endStreamNow(entry)
  return { ...execJson(session, live), ...(cut && wasStopped(session) ? { cut } : {}) }
}

/** What exited by itself did so before the end. */
const wasStopped = ({ done }: ExecSession): boolean => done?.outcome.kind !== 'exited'

async function* afterQuestion(
  call: Call,
  id: string,
  started: Promise<Started>,
  signal: AbortSignal,
): AsyncGenerator<ExecEvent, void> {
  yield { event: 'approval', data: { id } }
  try {
    yield* eventsOf(await started, 0, signal)
  } catch (error) {
    yield { event: 'error', data: problemOf(error, call.requestId, call.parts.log) }
  }
}

async function* eventsOf(
  started: Started,
  after: number,
  signal: AbortSignal,
): AsyncGenerator<ExecEvent, void> {
  const { session, live } = started
  yield { event: 'start', data: { exec_id: session.id, sandbox_id: live.id, pid: session.pid } }
  for await (const chunk of session.log.follow(after, signal)) {
    if ('gap' in chunk) yield { event: 'gap', data: { up_to: chunk.id }, id: chunk.id }
    else yield { event: chunk.stream, data: Buffer.from(chunk.data).toString('base64'), id: chunk.id }
  }
  if (signal.aborted) return
  try {
    await session.result
    const { stdout: _out, stderr: _err, ...end } = answerOf(started)
    yield { event: 'end', data: end, id: session.log.lastId }
  } catch (error) {
    yield { event: 'error', data: problemOf(error, session.id) }
  }
}

async function running(call: Call<'id'>, execId: string): Promise<ExecSession> {
  const entry = await call.parts.supervisor.use(call.principal, call.params.id)
  const session = entry.execs.get(execId)
  if (!session) throw new SandboxError('not-found', `there is no command \`${execId}\` in this sandbox`)
  entry.touch()
  return session
}
