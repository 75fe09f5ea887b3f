import { SandboxError } from '../../model/errors.ts'
import { visible } from '../../model/text/visible.ts'
import { anthropicTools, WORKER_TOOLS } from '../models/anthropic.ts'
import { type Call, failure, Question } from '../operations/operation.ts'
import type { AgentSession } from '../session.ts'
import { type AnthropicClient, type SessionTool, sessionToken, type WorkItem } from './environment-client.ts'
import { Lease } from './lease.ts'

/** Runs the tools of agents that live in Anthropic's service, each session in a sandbox of its own. */

/** What a worker is made of. */
export type WorkerParts = {
  readonly client: AnthropicClient
  readonly environmentId: string
  readonly environmentKey: string
  /** Opens the sandbox of one session. */
  readonly open: (sessionId: string) => AgentSession
  /** Asks a person about a command; absent: nobody can be asked. */
  readonly ask?: ((question: Question, sessionId: string) => Promise<boolean>) | undefined
  /** Commands that need approval are approved. */
  readonly approveAll?: boolean
  readonly log: (line: string) => void
  /** Sessions at the same time. */
  readonly sessions: number
  /** How long a session without events is kept. */
  readonly idleMs?: number | undefined
}

/** SECURITY: the id becomes the name of a directory and of an agent, so only plain characters are accepted. */
const SESSION_ID = /^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$/

/** Serves sessions until `polling` is aborted; then waits for the running ones, or ends them with `ending`. */
export async function serveEnvironment(
  parts: WorkerParts,
  polling: AbortSignal,
  ending: AbortSignal,
): Promise<void> {
  const { client, environmentId, environmentKey, sessions } = parts
  const running = new Set<Promise<void>>()
  const poller = client.beta.environments.work.poller({
    environmentId,
    environmentKey,
    signal: polling,
    autoStop: false,
  })
  for await (const work of poller) {
    const served = serveItem(parts, work, ending)
      .catch((error: Error) =>
        parts.log(`work ${shown(work.id)} failed: ${visible(error.message).slice(0, 500)}`),
      )
      .finally(() => running.delete(served))
    running.add(served)
    // The next item is claimed only when there is room for it.
    while (running.size >= sessions && !polling.aborted) await Promise.race(running)
  }
  await Promise.all(running)
}

async function serveItem(parts: WorkerParts, work: WorkItem, ending: AbortSignal): Promise<void> {
  const client = parts.client.withOptions({
    authToken: sessionToken(work.secret) ?? parts.environmentKey,
    apiKey: null,
  })
  const lease = new Lease(client, work)
  const stop = (): void => lease.finish('done')
  ending.addEventListener('abort', stop, { once: true })
  if (ending.aborted) stop()
  try {
    if (work.data.type === 'session') await serveSession(parts, client, work.data.id, lease)
  } finally {
    ending.removeEventListener('abort', stop)
    stop()
    await release(client, work, await lease.ended(), parts.log)
  }
}

async function serveSession(
  parts: WorkerParts,
  client: AnthropicClient,
  sessionId: string,
  lease: Lease,
): Promise<void> {
  if (!SESSION_ID.test(sessionId))
    throw new SandboxError('invalid-input', `\`${shown(sessionId)}\` is not a session id`)
  parts.log(`session ${sessionId}: started`)
  await using session = parts.open(sessionId)
  const runner = client.beta.sessions.events.toolRunner(sessionId, {
    tools: sessionTools(parts, session, sessionId),
    signal: lease.signal,
    ...(parts.idleMs === undefined ? {} : { maxIdleMs: parts.idleMs }),
  })
  let calls = 0
  for await (const _ of runner) calls++
  parts.log(`session ${sessionId}: ended after ${calls} tool calls`)
}

/** Tells the environment that the item is done. A lost item belongs to another worker and is left alone. */
async function release(
  client: AnthropicClient,
  work: WorkItem,
  end: string,
  log: WorkerParts['log'],
): Promise<void> {
  if (end === 'lost') return log(`work ${shown(work.id)}: the lease was lost`)
  try {
    await client.beta.environments.work.stop(work.id, { environment_id: work.environment_id, force: true })
  } catch (error) {
    // 409: it is stopped already.
    if ((error as { status?: number }).status !== 409) log(`work ${shown(work.id)}: could not be stopped`)
  }
}

/** The tools that the agent toolset of the service has, in the sandbox. Other tools do not exist here. */
function sessionTools(parts: WorkerParts, session: AgentSession, sessionId: string): readonly SessionTool[] {
  const { run } = anthropicTools(session)
  return WORKER_TOOLS.map(({ name, about, input }) => ({
    name,
    description: about,
    input_schema: { ...input.schema, type: 'object' },
    parse: (given) => given,
    async run(given, context) {
      const call: Call = {
        signal: context?.signal ?? undefined,
        canAsk: parts.ask !== undefined,
        approved: parts.approveAll ? '--yes' : undefined,
      }
      const use = { id: '', name, input: given }
      const result = await run(use, call).catch((error: unknown) =>
        error instanceof Question
          ? answered(parts, error, sessionId, () => run(use, { ...call, approved: 'client' }))
          : refused(error),
      )
      // PLATFORM: the SDK marks a result as an error if the tool throws.
      if (result.is_error) throw new Error(textOf(result.content))
      return result.content
    },
  }))
}

async function answered<T>(
  { ask }: WorkerParts,
  question: Question,
  sessionId: string,
  again: () => Promise<T>,
): Promise<T | ReturnType<typeof refused>> {
  if (await ask?.(question, sessionId)) return again()
  return refused(
    new SandboxError('approval-required', `${question.why} (not approved)`, { reasons: ['not approved'] }),
  )
}

const refused = (error: unknown) => ({
  is_error: true,
  content: [{ type: 'text' as const, text: failure(error).text }],
})

const textOf = (content: readonly unknown[]): string =>
  content.map((part) => (part as { readonly text?: string }).text ?? '').join('\n')

const shown = (text: string): string => visible(String(text)).slice(0, 64)
