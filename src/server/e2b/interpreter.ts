import { randomUUID } from 'node:crypto'
import { SandboxError } from '../../model/errors.ts'
import { object, optional, record, text } from '../../model/shape.ts'
import type { LiveSandbox } from '../../supervisor/live-sandbox.ts'
import type { OpenSandbox } from '../../supervisor/open-sandbox.ts'
import { jsonBody } from '../body.ts'
import { ConnectError, connectProblem } from './errors.ts'
import { Kernel, type Language, languageOf, type MessageConsumer } from './kernel.ts'
import { ANSWER_MS } from './processes.ts'
import { HOME, pathOf, type SandboxRequest } from './sandbox-request.ts'
import { withoutNulls } from './shapes.ts'

/** The code interpreter: contexts that keep their state, and executions in them as lines of JSON. */

type CodeContext = {
  readonly id: string
  readonly language: Language
  readonly cwd: string
  kernel: Kernel | undefined
  /** One execution at a time. */
  tail: Promise<unknown>
}

/** By what runs: a sandbox that was paused without its memory has no contexts. */
const CONTEXTS = new WeakMap<OpenSandbox, Map<string, CodeContext>>()
const MOST = 32
const CODE_BYTES = 8 * 1024 * 1024

const executeShape = withoutNulls(
  object({
    code: text({ empty: true, max: CODE_BYTES }),
    context_id: optional(text({ max: 64 })),
    language: optional(text({ max: 32 })),
    env_vars: optional(record(text({ empty: true }), /^[A-Za-z_][A-Za-z0-9_]*$/)),
  }),
)
const contextShape = withoutNulls(
  object({ language: optional(text({ max: 32 })), cwd: optional(text({ max: 4096 })) }),
)

function contextsOf(entry: LiveSandbox): Map<string, CodeContext> {
  const sandbox = entry.ready()
  const known = CONTEXTS.get(sandbox)
  if (known) return known
  const made = new Map<string, CodeContext>()
  CONTEXTS.set(sandbox, made)
  return made
}

function newContext(entry: LiveSandbox, id: string, language: Language, cwd = HOME): CodeContext {
  const all = contextsOf(entry)
  if (all.size >= MOST)
    throw new ConnectError('resource_exhausted', `this sandbox already has ${MOST} contexts`)
  const made: CodeContext = { id, language, cwd, kernel: undefined, tail: Promise.resolve() }
  all.set(id, made)
  return made
}

function contextFor(
  { live }: SandboxRequest,
  id: string | undefined,
  language: string | undefined,
): CodeContext {
  const all = contextsOf(live)
  if (id !== undefined) {
    const found = all.get(id)
    if (!found) throw new SandboxError('not-found', `there is no context \`${id}\``)
    return found
  }
  const spoken = languageOf(language)
  return all.get(`default-${spoken}`) ?? newContext(live, `default-${spoken}`, spoken)
}

const shown = ({ id, language, cwd }: CodeContext) => ({ id, language, cwd })

/** Serves the code interpreter's API. */
export async function interpreter(guest: SandboxRequest): Promise<Response> {
  const { path, method } = guest.context.req
  if (path === '/health') return Response.json({ status: 'ok' })
  if (path === '/execute' && method === 'POST') return execute(guest)
  if (path === '/contexts' && method === 'GET')
    return Response.json([...contextsOf(guest.live).values()].map(shown))
  if (path === '/contexts' && method === 'POST') {
    const { language, cwd } = await jsonBody(guest.request, contextShape)
    return Response.json(shown(newContext(guest.live, randomUUID(), languageOf(language), pathOf(cwd))))
  }
  const [, id, verb] = /^\/contexts\/([\w-]{1,64})(\/restart)?$/.exec(path) ?? []
  if (id === undefined || method !== (verb ? 'POST' : 'DELETE'))
    throw new SandboxError('not-found', 'no such route')
  const found = contextFor(guest, id, undefined)
  found.kernel?.stop()
  found.kernel = undefined
  if (!verb) contextsOf(guest.live).delete(id)
  return new Response(null, { status: 204 })
}

/** SECURITY: each piece of code is judged and on record as the same code on a command line would be. */
async function admit(guest: SandboxRequest, context: CodeContext, code: string, gone: AbortSignal) {
  const { surface, live, sandbox } = guest
  const argv: [string, ...string[]] =
    context.language === 'python' ? ['python3', '-c', code] : ['node', '-e', code]
  const { cwd } = context
  await sandbox.admit(
    { argv },
    {
      cwd,
      approve: (decision, execId) =>
        surface.parts.approvals.ask({
          tenant: live.row.tenant,
          sandboxId: live.id,
          execId,
          agentId: live.row.agentId ?? undefined,
          command: argv,
          cwd,
          decision,
          signal: AbortSignal.any([gone, live.abort.signal, AbortSignal.timeout(ANSWER_MS)]),
        }),
    },
  )
}

async function execute(guest: SandboxRequest): Promise<Response> {
  const body = await jsonBody(guest.request, executeShape, CODE_BYTES)
  const context = contextFor(guest, body.context_id, body.language)
  return lines(guest, async (take, gone) => {
    await admit(guest, context, body.code, gone)
    await inTurn(context, () => runIn(guest, context, body, take, gone))
  })
}

/** Lines of JSON as they come; a slow reader holds the kernel and not our memory. */
function lines(
  guest: SandboxRequest,
  run: (take: MessageConsumer, gone: AbortSignal) => Promise<void>,
): Response {
  const gone = new AbortController()
  const end = guest.live.begin()
  let room: () => void = () => {}
  const stream = new ReadableStream<Uint8Array>({
    start(controller) {
      const take: MessageConsumer = (message) => {
        if (gone.signal.aborted) return undefined
        controller.enqueue(Buffer.from(`${JSON.stringify(message)}\n`))
        if ((controller.desiredSize ?? 1) > 0) return undefined
        return new Promise((resolve) => {
          room = resolve
        })
      }
      void run(take, gone.signal)
        .catch((error: unknown) => {
          const { message: value } = connectProblem(error, guest.surface.parts.log)
          void take({ type: 'error', name: 'SandboxError', value, traceback: value })
          void take({ type: 'end_of_execution' })
        })
        .finally(() => {
          end()
          if (!gone.signal.aborted) controller.close()
        })
    },
    pull: () => room(),
    cancel() {
      gone.abort()
      room()
    },
  })
  return new Response(stream, {
    headers: { 'content-type': 'application/x-ndjson', 'cache-control': 'no-store' },
  })
}

function inTurn(context: CodeContext, work: () => Promise<void>): Promise<void> {
  const done = context.tail.then(work, work)
  context.tail = done.catch(() => {})
  return done
}

async function runIn(
  { surface, live }: SandboxRequest,
  context: CodeContext,
  { code, env_vars: env }: ReturnType<typeof executeShape.parse>,
  take: MessageConsumer,
  signal: AbortSignal,
): Promise<void> {
  if (!context.kernel || context.kernel.isOver)
    context.kernel = await Kernel.start({ surface, entry: live, ...shown(context) })
  await context.kernel.run({ code, env }, take, AbortSignal.any([signal, live.abort.signal]))
}
