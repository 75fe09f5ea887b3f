import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { compose, newId, type Ringfence } from '../compose/compose.ts'
import type { Config } from '../model/config.ts'
import { SandboxError } from '../model/errors.ts'
import type { Json } from '../model/event.ts'
import { visible, visibleJson } from '../model/text/visible.ts'
import { networkPolicyOf } from '../policy/network/network.ts'
import { memoryOf } from '../skills/memory.ts'
import { isComponent } from '../wasm/component/decode.ts'
import { publicFetcher } from '../wasm/host/fetch.ts'
import { MAX_FRAMES, meterModule } from '../wasm/meter/meter.ts'
import {
  type RunErrorCode,
  type WasmResult,
  type WasmRunOptions,
  WasmSandbox,
  type WasmSandboxOptions,
} from '../wasm/sandbox.ts'
import { eventsOf } from '../wasm/skill-events.ts'
import { numberOption, parseOptions, usage } from './options/options.ts'
import { err, out } from './terminal/output.ts'

const OPTIONS = {
  output: { type: 'string', short: 'o' },
  input: { type: 'string' },
  fuel: { type: 'string' },
  memory: { type: 'string' },
  timeout: { type: 'string' },
  grant: { type: 'string', multiple: true },
  call: { type: 'string' },
  workspace: { type: 'string', short: 'w' },
  'agent-id': { type: 'string' },
} as const

type Values = ReturnType<typeof parseOptions<typeof OPTIONS>>['values']

/** `ringfence wasm meter IN -o OUT` and `ringfence wasm run FILE`. */
export async function wasm(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('wasm', args, OPTIONS)
  const [action, file, ...more] = positionals
  if (action !== 'meter' && action !== 'run') throw usage('wasm', 'missing action: run or meter')
  if (file === undefined || more.length > 0) throw usage('wasm', `wasm ${action} takes one file`)
  const ringfence = await compose({ config: values.config, policy: values.policy })
  const bytes = moduleBytes(resolve(ringfence.cwd, file), file)
  const limits = limitsOf(ringfence.config, values)
  try {
    return action === 'meter'
      ? meter(bytes, resolve(ringfence.cwd, outputOf(values)), values, limits)
      : await run(bytes, { ringfence, skill: file }, values, limits)
  } finally {
    await ringfence.close()
  }
}

function moduleBytes(path: string, asked: string): Uint8Array {
  try {
    return readFileSync(path)
  } catch (cause) {
    throw new SandboxError('invalid-input', `\`${asked}\` cannot be read`, { cause })
  }
}

function outputOf({ output }: Values): string {
  if (output === undefined) throw usage('wasm', 'wasm meter needs `-o OUT`')
  return output
}

type Limits = Required<Omit<WasmSandboxOptions, 'runner' | 'cacheDirectory'>>

/** Limits from the flags, then from the configuration, then defaults. */
function limitsOf({ sandbox = {} }: Config, values: Values): Limits {
  const seconds = numberOption('--timeout', values.timeout)
  return {
    fuel: numberOption('--fuel', values.fuel) ?? sandbox.wasm_fuel_limit ?? 10_000_000,
    memoryMb: numberOption('--memory', values.memory) ?? sandbox.wasm_memory_limit_mb ?? 64,
    epochDeadline: seconds === undefined ? (sandbox.wasm_epoch_deadline ?? 10) : Math.ceil(seconds * 10),
    stack: Math.min(sandbox.wasm_stack_limit ?? 1024, MAX_FRAMES),
  }
}

function meter(bytes: Uint8Array, out: string, values: Values, { fuel, memoryMb, stack }: Limits): number {
  if (isComponent(bytes))
    throw new SandboxError('unsupported', 'a component is metered when it runs, not in advance', {
      hint: '`ringfence wasm run` runs it; `wasm meter` takes a core module',
    })
  const metered = meterModule(bytes, { memoryMb, initial: { fuel, frames: stack } })
  writeFileSync(out, metered.bytes)
  const facts = { bytes: bytes.length, metered_bytes: metered.bytes.length, fuel, memory_mb: memoryMb, stack }
  if (values.json) print({ ...facts, out })
  else if (!values.quiet)
    say(`${visible(out)}: ${bytes.length} → ${metered.bytes.length} bytes, ${fuel} fuel\n`)
  return 0
}

type Job = { readonly ringfence: Ringfence; readonly skill: string }

async function run(
  bytes: Uint8Array,
  { ringfence, skill }: Job,
  values: Values,
  limits: Limits,
): Promise<number> {
  const { cwd, env, trail } = ringfence
  const input = inputOf(values)
  const grants = values.grant ?? []
  const identity = { skill, execId: newId('ex'), agentId: values['agent-id'] ?? env.RINGFENCE_AGENT_ID }
  // Recorded before it runs, like every action.
  const who = identity.agentId === undefined ? {} : { agent_id: identity.agentId }
  await trail.append({ event: 'SkillRun', ...who, exec_id: identity.execId, skill, state: 'started', grants })
  const sandbox = new WasmSandbox({ ...limits, cacheDirectory: join(ringfence.stateDir, 'wasm') })
  try {
    const result = await sandbox.run(bytes, input, {
      grants,
      workspace: resolve(cwd, values.workspace ?? '.'),
      ...hostOf(ringfence, identity.agentId),
      ...(values.call !== undefined && { call: values.call }),
    })
    await Promise.all(eventsOf(result, identity).map((event) => trail.append(event)))
    show(result, values)
    if ('error' in result && !values.quiet) noteUnreadConfig(result.error.code, ringfence)
    return 'ok' in result ? 0 : exitCodeOf(result.error.code)
  } finally {
    sandbox.close()
  }
}

/** The same network access and memory that a skill has. */
function hostOf({ config, stateDir }: Ringfence, agentId = ''): WasmRunOptions {
  const allowPrivate = config.network?.allow_private ?? []
  return {
    memory: memoryOf(stateDir, agentId),
    network: networkPolicyOf({ allowPrivate }),
    fetcher: publicFetcher({ allowPrivate }),
  }
}

function inputOf({ input }: Values): Json {
  if (input === undefined) return null
  try {
    return JSON.parse(input) as Json
  } catch {
    throw usage('wasm', `--input takes JSON, not \`${input.slice(0, 60)}\``)
  }
}

const say = (text: string): boolean => out(text)
const print = (value: unknown): boolean => out(`${visibleJson(value)}\n`)

function show(result: WasmResult, values: Values): void {
  const { fuel, durationMs, violations, log } = result
  if (values.json) {
    print({
      ...('ok' in result ? { ok: result.ok } : { error: result.error }),
      fuel,
      duration_ms: Math.round(durationMs * 1000) / 1000,
      violations: violations.map(({ violationType, details }) => ({
        violation_type: violationType,
        details,
      })),
      log,
    })
    return
  }
  if (!values.quiet) for (const { level, text } of log) err(`${level}: ${visible(text)}\n`)
  if ('ok' in result) print(result.ok)
  else err(`ringfence: ${result.error.code}: ${visible(result.error.message)}\n`)
}

/** After a limit ended a run: says so if a ringfence.toml in the working directory was not read. */
export function noteUnreadConfig(code: RunErrorCode, { cwd, policyFile }: Ringfence): void {
  const here = join(cwd, 'ringfence.toml')
  if ((code !== 'resource-exhausted' && code !== 'timeout') || policyFile === here || !existsSync(here))
    return
  err('ringfence: the ringfence.toml in this directory is not read; use `--config ringfence.toml`\n')
}

/** Failures of the module exit with 1; failures of ringfence use the common exit codes. */
export function exitCodeOf(code: RunErrorCode): number {
  switch (code) {
    case 'resource-exhausted':
    case 'timeout':
      return 124
    case 'invalid-module':
      return 2
    case 'unsupported':
    case 'internal':
      return 125
    case 'trap':
    case 'abi-error':
    case 'guest-error':
    case 'capability-denied':
    case 'path-traversal':
    case 'ssrf-blocked':
      return 1
    default:
      return code satisfies never
  }
}
