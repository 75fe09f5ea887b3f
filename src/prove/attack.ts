import { spawnSync } from 'node:child_process'
import type { Backend } from '../backends/backend.ts'
import type { Command, ExecResult } from '../model/command.ts'
import type { World } from './world.ts'

/**
 * Attacks that test each guarantee. Every attack must fail on a backend that claims the guarantee and succeed on
 * `native`, otherwise it proves nothing. A guarantee without attacks does not compile.
 */
export type Attack = {
  readonly name: string
  /** A bash script; it runs in the workspace. */
  readonly script: (world: World, workspace: string) => string
  /** Another command of the same sandbox, which runs before and during the attack; it is ready when the file `ready` exists. */
  readonly victim?: string
  /** What the victim is given, and what the attacker is not. */
  readonly victimCommand?: Omit<Command, 'argv'>
  readonly command?: Omit<Command, 'argv'>
  /** Spec fields in addition to the workspace and the probe. Limits are omitted in the control run. */
  readonly spec?: Readonly<Record<string, unknown>>
  readonly limits?: Readonly<Record<string, number>>
  /** Whether the attack succeeded, as seen from the host. */
  readonly succeeded: (result: ExecResult, world: World, workspace: string) => boolean | Promise<boolean>
  /** Why the attack fails on this kernel even without isolation, so that the control run shows nothing. */
  readonly notApplicable?: (world: World, backend: Pick<Backend, 'level'>) => string | undefined
}

/** The standard output as text. */
export const stdout = (result: ExecResult): string => Buffer.from(result.stdout).toString('utf8')
/** Whether the output contains the text. */
export const says = (word: string) => (result: ExecResult) => stdout(result).includes(word)
/** Whether the suite runs as root. */
export const isRoot = process.getuid?.() === 0
/** For attacks that only root can make, even without a sandbox. */
export const rootOnly = () => (isRoot ? undefined : 'an unprivileged user may not do this on the host either')
/** For attacks on a system call table that only x86-64 has. */
export const x64Only = () =>
  process.arch === 'x64' ? undefined : 'only x86-64 has a second system call table'
/** Resolves after this time. */
export const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

/** For calls that some kernels reject for everyone: whether the probe succeeds on `native`. */
export const unlessProbed =
  (...args: readonly string[]) =>
  ({ probe }: World): string | undefined => {
    const { stdout: said } = spawnSync(probe, args, {
      encoding: 'utf8',
    })
    return said.includes('yes') ? undefined : `this kernel also rejects it on native (${said.trim()})`
  }
/** What must not be tried where there is no wall. */
export const onlyInside = (why: string) => (): string => why
