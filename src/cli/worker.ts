import { mkdirSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { serveEnvironment } from '../adapters/anthropic/worker.ts'
import type { Question } from '../adapters/operations/operation.ts'
import { openOnServer } from '../adapters/remote-tool-sandbox.ts'
import { AgentSession, localSession } from '../agents.ts'
import { anthropicSdk, environment } from '../compose/compose.ts'
import { SandboxError } from '../model/errors.ts'
import { visible } from '../model/text/visible.ts'
import { numberOption, parseOptions, usage } from './options/options.ts'
import { SESSION_OPTIONS, sessionSpec } from './options/session-options.ts'
import { server } from './server/remote.ts'
import { askLine } from './terminal/ask.ts'
import { err } from './terminal/output.ts'

const OPTIONS = {
  ...SESSION_OPTIONS,
  environment: { type: 'string' },
  sessions: { type: 'string' },
  drain: { type: 'string' },
  idle: { type: 'string' },
  server: { type: 'boolean' },
} as const

type Values = ReturnType<typeof parseOptions<typeof OPTIONS>>['values']

/** `ringfence worker anthropic`: runs the tools of agents that live elsewhere, each session in a sandbox of its own. */
export async function worker(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('worker', args, OPTIONS)
  if (positionals.length !== 1 || positionals[0] !== 'anthropic')
    throw usage('worker', 'name the service: `anthropic`')
  const environmentId = values.environment ?? environment().ANTHROPIC_ENVIRONMENT_ID
  if (!environmentId) throw usage('worker', '--environment is missing')
  const { ANTHROPIC_ENVIRONMENT_KEY: environmentKey, ANTHROPIC_BASE_URL: baseURL } = environment()
  if (!environmentKey)
    throw new SandboxError('unauthenticated', 'ANTHROPIC_ENVIRONMENT_KEY is not set', {
      hint: 'set it to the key of the environment',
    })
  const sdk = await anthropicSdk()
  const client = new sdk.default({ authToken: environmentKey, apiKey: null, ...(baseURL && { baseURL }) })
  const { polling, ending } = stopSignals(numberOption('--drain', values.drain) ?? 30)
  const idle = numberOption('--idle', values.idle)
  const log = (line: string): void => {
    if (!values.quiet) err(`ringfence: worker: ${line}\n`)
  }
  log(`waiting for sessions of ${visible(environmentId)}`)
  await serveEnvironment(
    {
      client,
      environmentId,
      environmentKey,
      sessions: numberOption('--sessions', values.sessions) ?? 4,
      open: opener(values),
      ask: process.stdin.isTTY && process.stderr.isTTY && !values.server ? askAtTerminal() : undefined,
      approveAll: values.yes ?? false,
      log,
      ...(idle === undefined ? {} : { idleMs: idle * 1000 }),
    },
    polling,
    ending,
  )
  return 0
}

/** Opens the sandbox of a session: with a directory of its own, or on a server. */
function opener(values: Values): (sessionId: string) => AgentSession {
  const agentOf = (sessionId: string): string => values['agent-id'] ?? `anthropic/${sessionId}`
  if (values.server) {
    const remote = server()
    return (sessionId) => new AgentSession(() => openOnServer(remote, agentOf(sessionId)))
  }
  const base = resolve(values.workspace ?? '.')
  return (sessionId) => {
    const workspace = join(base, sessionId)
    mkdirSync(workspace, { recursive: true, mode: 0o700 })
    const files = { config: values.config, policy: values.policy }
    return localSession(sessionSpec({ ...values, workspace }, agentOf(sessionId)), files)
  }
}

/** The first signal ends the polling, and after the drain time everything; the second ends everything at once. */
function stopSignals(drainSecs: number): { readonly polling: AbortSignal; readonly ending: AbortSignal } {
  const [polling, ending] = [new AbortController(), new AbortController()]
  const stop = (): void => {
    if (polling.signal.aborted) ending.abort()
    polling.abort()
    setTimeout(() => ending.abort(), drainSecs * 1000).unref()
  }
  for (const name of ['SIGINT', 'SIGTERM'] as const) process.on(name, stop)
  return { polling: polling.signal, ending: ending.signal }
}

/** Questions of many sessions come one after another. */
function askAtTerminal(): (question: Question, sessionId: string) => Promise<boolean> {
  let last: Promise<unknown> = Promise.resolve()
  return (question, sessionId) => {
    const { what, why, particulars } = question
    const about = particulars.map(([name, text]) => `\n  ${name}: ${visible(text)}`).join('')
    const text = `ringfence: session ${sessionId}: approval needed: ${visible(why)}\n  ${visible(what)}${about}\nrun it in the sandbox? [y/N] `
    const asked = last.then(async () => /^y(es)?$/i.test((await askLine(text)) ?? ''))
    last = asked.catch(() => {})
    return asked
  }
}
