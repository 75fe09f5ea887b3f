import { createSandboxConfigForMode, Sandbox } from '../api.ts'
import { type ComposeOptions, compose } from '../compose/compose.ts'
import type { Config } from '../model/config.ts'
import { SandboxError } from '../model/errors.ts'
import type { Spec } from '../model/spec.ts'
import { POISONED, SECRET_VARIABLE } from '../policy/commands/environment.ts'
import { inspectLine } from '../policy/commands/judge.ts'
import { ExecPolicy } from '../policy/exec-policy.ts'
import { compilePolicy } from '../policy/policy.ts'
import { AutoSandboxRouter } from '../policy/router.ts'

/**
 * Compatibility functions for older programs. Only this file keeps singletons, because callers of these names expect to
 * share one policy and to reset it between tests.
 */

export type ExecuteOptions = {
  readonly timeout?: number
  readonly workDir?: string
  readonly env?: Readonly<Record<string, string>>
  readonly networkEnabled?: boolean
  /** Megabytes. */
  readonly memoryLimit?: number
  readonly signal?: AbortSignal
  readonly compose?: ComposeOptions
}

/** The result of `sandboxExecute`. */
export type ExecuteResult = {
  readonly success: boolean
  readonly output: string
  readonly error?: string
  readonly exitCode: number
  readonly durationMs: number
  readonly containerId: string
}

const running = new Set<AbortController>()

/** Runs one shell line in one sandbox. If isolation fails, the result is a failure; the line never runs on the host. */
export async function sandboxExecute(command: string, options: ExecuteOptions = {}): Promise<ExecuteResult> {
  let output = ''
  const started = Date.now()
  try {
    const end = await inSandbox(command, options, (_, chunk) => {
      output += Buffer.from(chunk).toString('utf8')
    })
    return { ...end, output, durationMs: Date.now() - started }
  } catch (error) {
    const { message } = error as Error
    const exitCode = error instanceof SandboxError ? error.exitCode : 1
    return {
      success: false,
      output,
      error: message,
      exitCode,
      durationMs: Date.now() - started,
      containerId: '',
    }
  }
}

type End = Pick<ExecuteResult, 'success' | 'exitCode' | 'containerId' | 'error'>

async function inSandbox(
  command: string,
  options: ExecuteOptions,
  onChunk: (stream: 'stdout' | 'stderr', chunk: Uint8Array) => void,
): Promise<End> {
  const stop = new AbortController()
  options.signal?.addEventListener('abort', () => stop.abort(), { once: true })
  if (options.signal?.aborted) stop.abort()
  running.add(stop)
  try {
    await using sandbox = await Sandbox.create(specOf(options), options.compose)
    const done = await sandbox
      .exec(command, { output: onChunk, signal: stop.signal })
      .catch((error: unknown) => {
        if (stop.signal.aborted) return undefined
        throw error
      })
    if (!done) return { success: false, exitCode: 128, error: 'aborted', containerId: sandbox.id }
    const { outcome } = done
    if (outcome.kind === 'stopped')
      return { success: false, exitCode: 124, error: `stopped: ${outcome.limit}`, containerId: sandbox.id }
    const exitCode = outcome.kind === 'exited' ? outcome.code : 128
    return { success: exitCode === 0, exitCode, containerId: sandbox.id }
  } finally {
    running.delete(stop)
  }
}

function specOf({ timeout, workDir, env, networkEnabled, memoryLimit }: ExecuteOptions): Spec {
  return {
    ...createSandboxConfigForMode('workspace-write', workDir ?? process.cwd()),
    network: { mode: networkEnabled ? 'full' : 'offline' },
    limits: { wallMs: timeout ?? 60_000, ...(memoryLimit === undefined ? {} : { memoryMb: memoryLimit }) },
    ...(env === undefined ? {} : { env }),
  }
}

/** One event of a streamed command. */
export type StreamEvent =
  | { readonly type: 'stdout' | 'stderr'; readonly data: string }
  | ({ readonly type: 'end' } & End)

/** Like `sandboxExecute`, with streamed output. */
export async function* executeStreaming(
  command: string,
  options: ExecuteOptions = {},
): AsyncGenerator<StreamEvent> {
  const queue: StreamEvent[] = []
  let wake = (): void => {}
  const push = (event: StreamEvent): void => {
    queue.push(event)
    wake()
  }
  const done = inSandbox(command, options, (type, chunk) =>
    push({ type, data: Buffer.from(chunk).toString('utf8') }),
  ).then(
    (end) => push({ type: 'end', ...end }),
    (error: Error) =>
      push({ type: 'end', success: false, exitCode: 1, error: error.message, containerId: '' }),
  )
  for (;;) {
    const event = queue.shift()
    if (event) yield event
    else
      await new Promise<void>((resolve) => {
        wake = resolve
        if (queue.length > 0) resolve()
      })
    if (event?.type === 'end') return await done
  }
}

/** Destroys every sandbox that these functions started. Returns how many there were. */
export function dispose(): number {
  const count = running.size
  for (const stop of running) stop.abort()
  return count
}

/** Does nothing: sandboxes end with their command, so nothing is left to prune. */
export const prune = async (): Promise<number> => 0

/** The available backends, best first. */
export async function detectCapabilities(
  options: ComposeOptions = {},
): Promise<readonly { readonly name: string; readonly available: boolean; readonly level: string }[]> {
  const { registry } = await compose(options)
  return Promise.all(
    registry
      .list()
      .map(async ({ name, level }) => ({ name, level, available: (await registry.probe(name)).available })),
  )
}

let policy: ExecPolicy | undefined
let router: AutoSandboxRouter | undefined

const directoriesOf = (ringfence: { readonly cwd: string; readonly home: string }) => ({
  workspace: ringfence.cwd,
  home: ringfence.home,
})

/** Loads the shared policy from this user's configuration. */
export async function initializeExecPolicy(options: ComposeOptions = {}): Promise<ExecPolicy> {
  const ringfence = await compose(options)
  policy = new ExecPolicy(ringfence.config, directoriesOf(ringfence))
  return policy
}

/** The shared policy; the built-in one until `initializeExecPolicy` has loaded another. */
export function getExecPolicy(): ExecPolicy {
  policy ??= new ExecPolicy({}, hereAndNow())
  return policy
}

/** Forgets the shared policy. */
export function resetExecPolicy(): void {
  policy = undefined
}

/** The shared router, made from the configuration at first use. */
export function getAutoSandboxRouter(config: Config = {}): AutoSandboxRouter {
  router ??= AutoSandboxRouter.fromConfig(config, hereAndNow())
  return router
}

/** Resets the shared router; registries are created for each sandbox and need no reset. */
export function resetSandboxRegistry(): void {
  router = undefined
}

const hereAndNow = () => ({ workspace: process.cwd(), home: '/nonexistent' })

/** Every simple command in a shell line, at any depth. */
export function parseBashCommand(
  line: string,
): readonly { readonly command: string; readonly args: readonly string[] }[] {
  const { nodes } = inspectLine(compilePolicy({}), line, hereAndNow())
  return nodes.map(({ argv: [command = '', ...args] }) => ({ command, args }))
}

/** Additional patterns of the caller. */
export const DANGEROUS_PATTERNS: { readonly pattern: RegExp; readonly reason: string }[] = []

/** Whether the built-in policy or a pattern of the caller denies this line. */
export function isDangerousCommand(line: string): boolean {
  if (DANGEROUS_PATTERNS.some(({ pattern }) => pattern.test(line))) return true
  return inspectLine(compilePolicy({}), line, hereAndNow()).decision.action === 'deny'
}

/** Variables that a command line must not set but an environment may contain. */
const KEPT = [
  'PATH',
  'HOME',
  'TERM',
  'LANG',
  'LC_*',
  'TMPDIR',
  'USER',
  'LOGNAME',
  'PWD',
  'TZ',
  'NODE_ENV',
  'CI',
]
/** Further variables: options of build tools that load code. */
const REMOVED = [
  ...POISONED.flatMap(({ names }) => names),
  ...[
    'NPM_CONFIG_*',
    'PIP_*',
    'CARGO_*',
    'DOTNET_*',
    'CORECLR_*',
    'COR_*',
    '*_OPTS',
    '*_TOOL_OPTIONS',
    'BASH_FUNC_*',
  ],
]

/** Removes variables that change how programs run, and variables that look like credentials. */
export function sanitizeEnvVars(env: Readonly<Record<string, string | undefined>>): Record<string, string> {
  const listed = (names: readonly string[], name: string): boolean =>
    names.some((pattern) => matches(pattern, name))
  const keep = ([name, value]: [string, string | undefined]): boolean =>
    value !== undefined && (listed(KEPT, name) || (!SECRET_VARIABLE.test(name) && !listed(REMOVED, name)))
  return Object.fromEntries(Object.entries(env).filter(keep)) as Record<string, string>
}

/** Case-insensitive, because some programs read these variables in either case. */
function matches(pattern: string, name: string): boolean {
  const [head = '', tail] = pattern.toUpperCase().split('*')
  const upper = name.toUpperCase()
  return tail === undefined ? upper === head : upper.startsWith(head) && upper.endsWith(tail)
}
