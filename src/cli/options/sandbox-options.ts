import { resolve } from 'node:path'
import type { Ringfence } from '../../compose/compose.ts'
import { isTerminalStream } from '../terminal/output.ts'
import { durationOption, numberOption, type parseOptions, sizeOption, usage } from './options.ts'

/** The options of `run` that describe a sandbox. */
export const SANDBOX_OPTIONS = {
  preset: { type: 'string' },
  workspace: { type: 'string', short: 'w' },
  read: { type: 'string', multiple: true },
  write: { type: 'string', multiple: true },
  deny: { type: 'string', multiple: true },
  mount: { type: 'string', multiple: true },
  network: { type: 'string' },
  'allow-host': { type: 'string', multiple: true },
  'ask-hosts': { type: 'boolean' },
  'unix-socket': { type: 'string', multiple: true },
  env: { type: 'string', short: 'e', multiple: true },
  secret: { type: 'string', multiple: true },
  cpus: { type: 'string' },
  memory: { type: 'string' },
  disk: { type: 'string' },
  pids: { type: 'string' },
  timeout: { type: 'string' },
  idle: { type: 'string' },
  output: { type: 'string' },
  backend: { type: 'string' },
  'min-isolation': { type: 'string' },
  waive: { type: 'string', multiple: true },
  review: { type: 'boolean' },
  isolate: { type: 'boolean' },
  image: { type: 'string' },
  'agent-id': { type: 'string' },
} as const

/** Parsed options of a sandbox. */
export type SandboxValues = ReturnType<typeof parseOptions<typeof SANDBOX_OPTIONS>>['values']

/** The spec that the options of `run` describe. */
export function specOf(
  values: SandboxValues,
  { cwd, env }: Pick<Ringfence, 'cwd' | 'env'>,
): Record<string, unknown> {
  const agentId = values['agent-id'] ?? env.RINGFENCE_AGENT_ID
  return defined({
    backend: values.backend,
    minIsolation: values['min-isolation'],
    preset: values.preset,
    workspace: resolve(cwd, values.workspace ?? '.'),
    read: values.read,
    write: values.write,
    deny: values.deny,
    mounts: values.mount?.map(mountOf),
    network: networkOf(values),
    secrets: values.secret,
    unixSockets: values['unix-socket'],
    env: environmentOf(values, env),
    limits: limitsOf(values),
    review: values.review,
    isolation: values.isolate ? 'command' : undefined,
    waive: values.waive,
    image: values.image,
    agentId,
  })
}

function networkOf(values: SandboxValues): Record<string, unknown> | undefined {
  const { network, 'allow-host': hosts, 'ask-hosts': asks } = values
  if (network === undefined && hosts === undefined && asks === undefined) return undefined
  return defined({ mode: network, allowHosts: hosts, unlisted: asks ? 'ask' : undefined })
}

const defined = (fields: Record<string, unknown>): Record<string, unknown> =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined))

function mountOf(text: string): Record<string, string> {
  const [source = '', target = '', mode = 'rw', ...rest] = text.split(':')
  if (rest.length > 0 || !source || !target || (mode !== 'ro' && mode !== 'rw'))
    throw usage('run', `--mount takes SRC:DST[:ro], not \`${text}\``)
  return { source, target, mode }
}

function environmentOf(values: SandboxValues, env: Readonly<Record<string, string>>): Record<string, string> {
  const terminal: Record<string, string> = env.TERM && isTerminalStream('stdout') ? { TERM: env.TERM } : {}
  for (const pair of values.env ?? []) {
    const at = pair.indexOf('=')
    const name = at < 0 ? pair : pair.slice(0, at)
    const value = at < 0 ? env[name] : pair.slice(at + 1)
    if (value === undefined) throw usage('run', `--env ${name}: not set in this environment`)
    terminal[name] = value
  }
  return terminal
}

function limitsOf(values: SandboxValues): Record<string, number> {
  return defined({
    cpus: numberOption('--cpus', values.cpus),
    memoryMb: sizeOption('--memory', values.memory),
    diskMb: sizeOption('--disk', values.disk),
    pids: numberOption('--pids', values.pids),
    wallMs: durationOption('--timeout', values.timeout),
    idleMs: durationOption('--idle', values.idle),
    outputBytes: numberOption('--output', values.output) ?? (values.json ? CAPTURED_BYTES : undefined),
  }) as Record<string, number>
}

/** Default output limit with `--json`. */
const CAPTURED_BYTES = 64 * 1024 * 1024
