import { SandboxError } from '../../model/errors.ts'
import type { Started } from '../../supervisor/exec/exec-service.ts'
import { ANSWER_BYTES, type ExecSession, execJson } from '../../supervisor/exec/exec-session.ts'
import { problem } from '../problem.ts'
import { type Call, type Route, route } from '../route.ts'
import {
  attachQuery,
  bytesFrom,
  type ExecBody,
  execRequestOf,
  execShape,
  signalShape,
  stdinShape,
} from '../shapes.ts'
import { lastEventId, type SseEvent, sse } from '../sse.ts'
import { endStreamNow } from '../stream-end.ts'
import { execSchema } from '../views.ts'

const BODY_BYTES = 16 * 1024 * 1024

const wantsStream = (request: Request): boolean =>
  (request.headers.get('accept') ?? '').includes('text/event-stream')

export const execRoutes: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/exec',
    summary: 'Run a command: a JSON result, or events with `Accept: text/event-stream`',
    scope: 'exec',
    sandboxToken: true,
    body: execShape,
    maxBytes: BODY_BYTES,
    answers: {
      200: { description: 'how it ended', schema: execSchema },
      202: { description: 'it runs in the background', schema: execSchema },
    },
    handle: (call) => (wantsStream(call.request) ? execStream(call) : execAnswer(call)),
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/:id/execs/:exec',
    summary: 'A command: its result so far, or its events from any point on',
    scope: 'read',
    sandboxToken: true,
    query: attachQuery,
    answers: { 200: { description: 'the command', schema: execSchema } },
    async handle(call) {
      const { parts, principal, params, query, request } = call
      const { live } = await parts.supervisor.get(principal, params.id as string)
      const session = live?.execs.get(params.exec as string)
      const sandbox = live?.sandbox
      if (!session || !live || !sandbox) return fromTrail(call as Call)
      const after = lastEventId(request) ?? query.after ?? 0
      return wantsStream(request)
        ? sse(call, (signal) => eventsOf({ session, live: sandbox, entry: live }, after, signal))
        : Response.json(answerOf({ session, live: sandbox, entry: live }))
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
    answers: { 200: { description: 'taken' } },
    async handle(call) {
      const session = await running(call as Call, call.body.exec_id)
      const { data, data_base64, eof } = call.body
      const bytes = data_base64 === undefined ? Buffer.from(data ?? '') : bytesFrom(data_base64)
      if (bytes.length > 0) await session.write(bytes)
      if (eof) session.endInput()
      return Response.json({ written: bytes.length })
    },
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/signal',
    summary: 'Send a signal to a running command',
    scope: 'exec',
    sandboxToken: true,
    body: signalShape,
    answers: { 200: { description: 'sent' } },
    async handle(call) {
      const session = await running(call as Call, call.body.exec_id)
      session.signal(call.body.signal ?? 'SIGTERM')
      return Response.json({ sent: call.body.signal ?? 'SIGTERM' })
    },
  }),
]

async function execAnswer(call: Call<ExecBody>): Promise<Response> {
  const { parts, principal, params, body } = call
  const request = execRequestOf(body)
  const started = await parts.supervisor.exec(principal, params.id as string, request)
  if (request.background) return Response.json(answerOf(started), { status: 202 })
  const release = started.session.log.hold()
  try {
    await started.session.result
    return Response.json(answerOf(started))
  } finally {
    release()
  }
}

/** The stream opens when the command runs, or when a human is asked; a refusal before that is an ordinary answer. */
async function execStream(call: Call<ExecBody>): Promise<Response> {
  const { parts, principal, params, body } = call
  const request = { ...execRequestOf(body), background: true, keepBytes: ANSWER_BYTES }
  let asked: (id: string) => void = () => {}
  const question = new Promise<string>((resolve) => {
    asked = resolve
  })
  const started = parts.supervisor.exec(principal, params.id as string, request, { onAsked: asked })
  const first = await Promise.race([started.then(() => undefined), question])
  if (first === undefined) {
    const running = await started
    return sse(call, (signal) => eventsOf(running, 0, signal))
  }
  return sse(call, (signal) => afterQuestion(call, first, started, signal))
}

/** The command as it stands; where its sandbox ended around it, that is said too. */
function answerOf({ session, live, entry }: Started) {
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
): AsyncGenerator<SseEvent, void> {
  yield { event: 'approval', data: { id } }
  try {
    yield* eventsOf(await started, 0, signal)
  } catch (error) {
    yield { event: 'error', data: await problem(error, call.requestId, call.parts.log).json() }
  }
}

async function* eventsOf(
  started: Started,
  after: number,
  signal: AbortSignal,
): AsyncGenerator<SseEvent, void> {
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
    yield { event: 'error', data: await problem(error, session.id).json() }
  }
}

async function running(call: Call, execId: string): Promise<ExecSession> {
  const entry = await call.parts.supervisor.use(call.principal, call.params.id as string)
  const session = entry.execs.get(execId)
  if (!session) throw new SandboxError('not-found', `there is no command \`${execId}\` in this sandbox`)
  entry.touch()
  return session
}

/** Once it is no longer in memory, the trail still knows how a command ended. */
async function fromTrail({ parts, principal, params }: Call): Promise<Response> {
  const { row } = await parts.supervisor.get(principal, params.id as string)
  const records = await parts.trail.query({ sandboxId: row.id, execId: params.exec, limit: 1000 })
  const decided = records.find(({ event }) => event === 'PolicyDecision')
  if (!decided) throw new SandboxError('not-found', `there is no command \`${params.exec}\` in this sandbox`)
  const end = records.find(({ event }) => event === 'Exec')
  return Response.json({
    sandbox_id: row.id,
    exec_id: params.exec,
    state: end?.state ?? 'failed',
    backend: row.backend,
    level: row.level,
    layers: end?.layers ?? [],
    outcome: end?.outcome ?? null,
    stdout: '',
    stderr: '',
    truncated: true,
    duration_ms: end?.duration_ms ?? null,
    violations: records
      .filter(({ event }) => event === 'SandboxViolation')
      .map(({ guarantee, details }) => ({ guarantee, details })),
    decision: { action: decided.action, reason: decided.reason, rules: decided.rules },
  })
}
