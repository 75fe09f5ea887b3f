import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import type { ExecResult } from '../../src/model/command.ts'
import { packageRoot, type World } from './world.ts'

/**
 * Each guarantee as attacks. A backend that claims it must survive every one; the same attack must succeed on
 * `native`, or it proves nothing. A guarantee without a proof does not compile.
 */
export type Attack = {
  readonly name: string
  /** A bash script; it runs in the workspace. */
  readonly script: (world: World, workspace: string) => string
  /** More than a workspace and the probe: limits, network. Limits are left out in the control run. */
  readonly spec?: Readonly<Record<string, unknown>>
  readonly limits?: Readonly<Record<string, number>>
  /** Did the attacker get what it wanted? Looked at from the host. */
  readonly succeeded: (result: ExecResult, world: World, workspace: string) => boolean | Promise<boolean>
  /** Why the kernel itself stops it here even without a wall, so that the control says nothing. */
  readonly notApplicable?: () => string | undefined
}

/** What it printed. */
export const stdout = (result: ExecResult): string => Buffer.from(result.stdout).toString('utf8')
/** Whether it printed this. */
export const says = (word: string) => (result: ExecResult) => stdout(result).includes(word)
export const isRoot = process.getuid?.() === 0
export const rootOnly = () => (isRoot ? undefined : 'an ordinary user may not do this on the host either')
export const x64Only = () =>
  process.arch === 'x64' ? undefined : 'only x86-64 has a second system call table'
export const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

/** For what some kernels refuse to everybody: whether our probe gets it here without a wall. */
export const unlessProbed =
  (...args: readonly string[]) =>
  (): string | undefined => {
    const { stdout: said } = spawnSync(join(packageRoot(), 'dist', 'test', 'probe'), args, {
      encoding: 'utf8',
    })
    return said.includes('yes') ? undefined : `this kernel refuses it without a wall too (${said.trim()})`
  }
/** What must not be tried where there is no wall. */
export const onlyInside = (why: string) => (): string => why
