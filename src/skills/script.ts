import { rmSync } from 'node:fs'
import { systemProgram } from '../host/system.ts'
import type { ExecResult } from '../model/command.ts'
import type { Decision } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import { type Json, VIOLATION_TYPE } from '../model/event.ts'
import type { Capability } from '../policy/grants/capability.ts'
import type { NetworkPolicy } from '../policy/network/network.ts'
import type { SkillViolation, ViolationType } from '../wasm/host/host-parts.ts'
import { CODE_OF, looseJson, oneLine, type RunError } from '../wasm/outcome.ts'
import type { LogLine } from '../wasm/worker/guest-protocol.ts'
import { judgeInput, scriptArguments } from './arguments.ts'
import { undeclaredVariables } from './inspect.ts'
import { mountsFor, type ScriptMounts } from './mounts.ts'
import { BoundedOutput } from './output.ts'
import { type SkillPackage, stageSkill } from './package.ts'

/** The part of the sandbox interface that a script needs; the gate opens the sandbox. */
export type ScriptSandbox = {
  exec(
    command: readonly string[],
    options: {
      readonly cwd: string
      readonly stdin: string
      readonly output: (stream: 'stdout' | 'stderr', chunk: Uint8Array) => void
      readonly approve: (decision: Decision) => boolean
      readonly signal?: AbortSignal
    },
  ): Promise<ExecResult>
  close(): Promise<void>
}
type OpenSandbox = (spec: unknown) => Promise<ScriptSandbox>

/** Limits of a script, as in `[sandbox]`. */
type ScriptLimits = { readonly timeoutMs: number; readonly outputCharacters: number }

/** One run of one script. */
export type ScriptRun = {
  readonly skill: SkillPackage
  readonly input: Json
  readonly grants: readonly Capability[]
  readonly workspace: string | undefined
  readonly variables: Readonly<Record<string, string>>
  readonly network: NetworkPolicy
  readonly limits: ScriptLimits
  readonly agentId: string | undefined
  readonly signal: AbortSignal | undefined
}

/** The result of a script. */
export type ScriptResult = ({ readonly ok: Json } | { readonly error: RunError }) & {
  readonly durationMs: number
  /** `recorded`: the sandbox has already written the violation to the audit log. */
  readonly violations: readonly (SkillViolation & { readonly recorded: boolean })[]
  readonly log: readonly LogLine[]
  readonly truncated: boolean
}

const PLACE = '/skill'
const PROGRAM = { python: ['python3', '-B'], node: ['node'] } as const
/** Variables that a sandbox sets for commands and that a script does not get. */
const UNSET = ['TMPDIR', 'USER', 'RINGFENCE']

/** Runs a Python or Node skill in the OS sandbox. */
export async function runScript(run: ScriptRun, open: OpenSandbox): Promise<ScriptResult> {
  const mounts = mountsFor(run.grants, run.workspace)
  const withheld = undeclaredVariables(run.skill)
    .filter((name) => !Object.hasOwn(run.variables, name))
    .map((name) => ({
      violationType: 'CapabilityDenied' as const,
      details: `EnvRead ${name}`,
      recorded: false,
    }))
  // Paths in the workspace that are not granted look absent to the script; only paths outside of it are refused here.
  const base = mounts.cwd ?? run.skill.dir
  const roots = [...mounts.read, ...mounts.write, base]
  const refusal = judgeInput(run.input, { base, roots, network: run.network })
  if (refusal) {
    const { code, message, violation } = refusal
    const violations = [{ ...violation, recorded: false }]
    return { error: { code, message }, durationMs: 0, violations, log: [], truncated: false }
  }
  const result = await inSandbox(run, mounts, open)
  return { ...result, violations: [...withheld, ...result.violations] }
}

async function inSandbox(run: ScriptRun, mounts: ScriptMounts, open: OpenSandbox): Promise<ScriptResult> {
  const command = commandFor(run)
  const staged = stageSkill(run.skill)
  const output = new BoundedOutput(run.limits.outputCharacters)
  try {
    const sandbox = await open(specFor(run, mounts, staged))
    try {
      const done = await sandbox.exec(command, {
        cwd: mounts.cwd ?? PLACE,
        stdin: JSON.stringify(run.input),
        output: output.take,
        approve: isSkillItself,
        ...(run.signal && { signal: run.signal }),
      })
      return resultOf(done, output)
    } finally {
      await sandbox.close()
    }
  } finally {
    rmSync(staged, { recursive: true, force: true })
  }
}

/** Running a skill by name approves the execution of its code, but nothing else that a rule asks about. */
const isSkillItself = ({ rules }: Decision): boolean =>
  rules.every((rule) => rule === 'code/outside' || rule === 'code/environment' || rule === 'default')

function commandFor({ skill, input }: ScriptRun): readonly string[] {
  const { type, entry } = skill.manifest.runtime
  const [name, ...flags] = PROGRAM[type as keyof typeof PROGRAM]
  const program = systemProgram(name)
  if (!program)
    throw new SandboxError('unsupported', `there is no ${name} on this host`, { hint: `install ${name}` })
  const unset = UNSET.flatMap((variable) => ['-u', variable])
  return ['/usr/bin/env', ...unset, program, ...flags, `${PLACE}/${entry}`, ...scriptArguments(input)]
}

/** If the whole workspace is granted, it becomes the sandbox's workspace, so that the script runs as its owner. */
function filesFor({ read, write, cwd }: ScriptMounts): Record<string, unknown> {
  const others = (paths: readonly string[]): readonly string[] => paths.filter((path) => path !== cwd)
  if (cwd !== undefined && write.includes(cwd)) return { workspace: cwd, read, write: others(write) }
  if (cwd !== undefined && write.length === 0 && read.includes(cwd))
    return { preset: 'read-only', workspace: cwd, read: others(read) }
  return { read, write }
}

function specFor(run: ScriptRun, mounts: ScriptMounts, staged: string): Record<string, unknown> {
  const hosts = run.grants.flatMap((grant) =>
    grant.kind === 'NetConnect' ? [grant.text.replace(/^\s*NetConnect\s*\(["']?|["']?\)\s*$/g, '')] : [],
  )
  return {
    mounts: [{ source: staged, target: PLACE, mode: 'ro' }],
    ...filesFor(mounts),
    env: { PATH: '/usr/bin:/bin', HOME: '/tmp', LANG: 'en_US.UTF-8', ...run.variables },
    network: hosts.length > 0 ? { mode: 'fetch', allowHosts: hosts } : { mode: 'offline' },
    limits: {
      wallMs: run.limits.timeoutMs,
      // Above the limit in characters, which truncates: this limit ends a script that keeps writing.
      outputBytes: run.limits.outputCharacters * 4 + 1024 * 1024,
    },
    ...(run.agentId !== undefined && { agentId: run.agentId }),
  }
}

function resultOf(done: ExecResult, output: BoundedOutput): ScriptResult {
  const { stdout, stderr, truncated } = output.result
  const violations = done.violations.map(({ guarantee, details }) => ({
    violationType: (VIOLATION_TYPE[guarantee] ?? 'CapabilityDenied') as ViolationType,
    details,
    recorded: true,
  }))
  const log = stderr
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => ({ level: 'error', text: oneLine(line) }))
  const around = { durationMs: done.durationMs, violations, log, truncated }
  const error = errorOf(done, violations, causeOf(log.map(({ text }) => text)))
  // Truncated output stays text: part of a JSON value could parse as a different value.
  return error ? { error, ...around } : { ok: truncated ? stdout : looseJson(stdout), ...around }
}

/** Lines that Node prints after an uncaught error. */
const NODE_TAIL = /^(Node\.js v\d|\(Use `node --trace-)/
const STACK = /^ {4}at /
const THROWN = /^(Uncaught )?[\w$.]*(Error|Exception)\b/

/**
 * The line of stderr that says why a script failed: Python's last line, and for Node the line above the stack, because its
 * last line is only its version.
 */
export function causeOf(lines: readonly string[]): string | undefined {
  const said = lines.filter((line) => !NODE_TAIL.test(line))
  if (said.length === lines.length) return said.at(-1)
  const stack = said.findLastIndex((line, index) => STACK.test(line) && !STACK.test(said[index - 1] ?? ''))
  const thrown = said.slice(0, Math.max(0, stack)).findLast((line) => THROWN.test(line))
  return thrown ?? said.at(stack === -1 ? -1 : stack - 1)
}

function errorOf(
  { outcome }: ExecResult,
  violations: readonly SkillViolation[],
  said: string | undefined,
): RunError | undefined {
  if (outcome.kind === 'exited' && outcome.code === 0) return undefined
  if (outcome.kind === 'stopped') {
    const { limit } = outcome
    if (limit === 'wall' || limit === 'idle' || limit === 'cancelled')
      return { code: 'timeout', message: 'the run did not end before its deadline' }
    return { code: 'resource-exhausted', message: `the run used up its ${limit}`, resource: limit }
  }
  const how =
    outcome.kind === 'exited' ? `exited with code ${outcome.code}` : `was ended by ${outcome.signal}`
  const code = violations
    .map(({ violationType }) => CODE_OF[violationType])
    .find((known) => known !== undefined)
  return { code: code ?? 'guest-error', message: `the skill ${how}${said === undefined ? '' : `: ${said}`}` }
}
