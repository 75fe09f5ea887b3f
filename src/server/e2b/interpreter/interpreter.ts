import { randomUUID } from 'node:crypto'
import { SandboxError } from '../../../model/errors.ts'
import { object, optional, record, text } from '../../../model/shape.ts'
import { jsonBody } from '../../body.ts'
import { endStreamSoon } from '../../streams/stream-end.ts'
import { ANSWER_MS } from '../envd/processes.ts'
import { connectProblem } from '../errors.ts'
import { pathOf, type SandboxRequest } from '../sandbox-request.ts'
import { withoutNulls } from '../shapes.ts'
import {
  type CodeContext,
  contextsOf,
  contextWith,
  defaultContext,
  kernelOf,
  newContext,
  stopKernel,
} from './contexts.ts'
import type { MessageConsumer } from './kernel.ts'
import { assertInstalled, languageOf, rowOf } from './languages.ts'

/** The code interpreter: contexts that keep their state, and executions in them as lines of JSON. */

const CODE_BYTES = 8 * 1024 * 1024
/** How often a message is in memory until it was read: the kernel's text, its values, and the bytes to send. */
const COPIES = 3
/** How often a silent execution shows that it is still there, as with E2B. */
const KEEPALIVE_MS = 5000

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

const shown = ({ id, language, cwd }: CodeContext) => ({ id, language, cwd })

/** Serves the code interpreter's API. */
export async function interpreter(guest: SandboxRequest): Promise<Response> {
  const { path, method } = guest.context.req
  if (path === '/health') return Response.json('OK')
  if (path === '/execute' && method === 'POST') return execute(guest)
  if (path === '/contexts' && method === 'GET')
    return Response.json([...contextsOf(guest.live).values()].map(shown))
  if (path === '/contexts' && method === 'POST') return createContext(guest)
  const [, id, verb] = /^\/contexts\/([\w-]{1,64})(\/restart)?$/.exec(path) ?? []
  if (id === undefined || method !== (verb ? 'POST' : 'DELETE'))
    throw new SandboxError('not-found', 'no such route')
  stopKernel(contextWith(guest.live, id))
  if (!verb) contextsOf(guest.live).delete(id)
  return new Response(null, { status: 204 })
}

/** SECURITY: the traffic token is enough to come here, so nothing is run. */
async function createContext({ request, live, sandbox }: SandboxRequest): Promise<Response> {
  const body = await jsonBody(request, contextShape)
  const language = languageOf(body.language)
  await assertInstalled(sandbox, language)
  return Response.json(shown(newContext(live, randomUUID(), language, pathOf(body.cwd))))
}

/** SECURITY: each piece of code is judged and on record as the same code on a command line would be. */
async function admit(guest: SandboxRequest, { language, cwd }: CodeContext, code: string, gone: AbortSignal) {
  const { surface, live, sandbox } = guest
  for (const argv of rowOf(language).commands(code))
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
  if (body.context_id !== undefined && body.language !== undefined)
    throw new SandboxError('invalid-input', 'give a context or a language, not both')
  const { live, sandbox } = guest
  const context =
    body.context_id === undefined ? defaultContext(live, body.language) : contextWith(live, body.context_id)
  if (context.kernel === undefined) await assertInstalled(sandbox, context.language)
  return lines(guest, async (take, gone) => {
    await admit(guest, context, body.code, gone)
    await inTurn(context, () => runIn(guest, context, body, take, gone))
  })
}

/** Thrown when the connection is to break off, which E2B's clients take for the end of the sandbox. */
class Cut extends Error {}

/** Lines of JSON as they come; a slow reader holds the kernel and not our memory. */
function lines(
  guest: SandboxRequest,
  run: (take: MessageConsumer, gone: AbortSignal) => Promise<void>,
): Response {
  const { live, surface, context } = guest
  const { output: budget } = surface.parts.supervisor
  const gone = new AbortController()
  const end = live.begin()
  let room: () => void = () => {}
  let isOpen = true
  const stream = new ReadableStream<Uint8Array>({
    start(controller) {
      const put = (message: unknown): number => {
        const line = Buffer.from(`${JSON.stringify(message)}\n`)
        controller.enqueue(line)
        return line.length
      }
      const take: MessageConsumer = (message) => {
        if (!isOpen) return undefined
        const size = put(message)
        beat.refresh()
        if ((controller.desiredSize ?? 1) > 0) return undefined
        return new Promise((resolve) => {
          const release = budget.hold(live.row.tenant, size * COPIES, () => close(false))
          room = () => {
            release()
            resolve()
          }
        })
      }
      const beat = setInterval(() => {
        if (isOpen && (controller.desiredSize ?? 0) > 0) put({ type: 'keepalive' })
      }, KEEPALIVE_MS).unref()
      const close = (isWhole = true): void => {
        clearInterval(beat)
        forget()
        if (!isOpen) return
        isOpen = false
        if (isWhole) controller.close()
        else context.env.outgoing.destroy()
        room()
      }
      // The code goes on when the sandbox wakes; nobody hears what it says.
      const forget = live.onPause(() => close(false))
      void run(take, gone.signal)
        .catch((error: unknown) => {
          if (error instanceof Cut) return close(false)
          const { message: value } = connectProblem(error, surface.parts.log)
          void take({ type: 'error', name: 'SandboxError', value, traceback: value })
          void take({ type: 'end_of_execution' })
        })
        .finally(() => {
          end()
          close()
        })
    },
    pull: () => room(),
    cancel() {
      // Broken off from here: there is nobody to interrupt for.
      if (!isOpen) return
      isOpen = false
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
  { surface, live, sandbox }: SandboxRequest,
  context: CodeContext,
  { code, env_vars: env }: ReturnType<typeof executeShape.parse>,
  take: MessageConsumer,
  signal: AbortSignal,
): Promise<void> {
  const kernel = await kernelOf(surface, { sandbox, tenant: live.row.tenant }, context)
  if (await kernel.run({ code, env }, take, signal)) return
  if (await endStreamSoon(live)) throw new Cut()
  await take({ type: 'error', name: 'KernelDied', value: kernel.end, traceback: '' })
  await take({ type: 'end_of_execution' })
}
