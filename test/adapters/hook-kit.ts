import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { cli } from '../cli/program.ts'
import { packageRoot } from '../conformance/world.ts'

/** The built `ringfence hook`, as a coding agent starts it: one JSON on stdin, an answer in that agent's format. */

export type Ran = { readonly status: number | null; readonly stdout: string; readonly stderr: string }
export type Env = Readonly<Record<string, string>>

export const program = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')

export class HookKit {
  readonly base = mkdtempSync(join(tmpdir(), 'rf-hook-'))
  readonly workspace = join(this.base, 'work')
  readonly env: Env = {
    HOME: this.base,
    PATH: process.env.PATH ?? '',
    RINGFENCE_HOME: join(this.base, 'state'),
  }

  constructor() {
    mkdirSync(this.workspace)
  }

  remove(): void {
    // A broker may be starting in it.
    rmSync(this.base, { recursive: true, force: true, maxRetries: 5 })
  }

  hook(args: readonly string[], input: string, env: Env = {}, cwd = this.workspace): Ran {
    return this.#ran(...cli(['hook', ...args]), input, env, cwd)
  }

  /** A command from the settings, as a client starts it. */
  started(command: string, env: Env = {}): Ran {
    const input = this.call('Bash', { command: 'pwd' })
    return this.#ran('/bin/bash', ['-c', command], input, { PATH: '/usr/bin:/bin', ...env }, this.workspace)
  }

  call(tool_name: string, tool_input: unknown, more: object = {}): string {
    const cwd = this.workspace
    return JSON.stringify({
      session_id: 's',
      hook_event_name: 'PreToolUse',
      cwd,
      tool_name,
      tool_input,
      ...more,
    })
  }

  #ran(file: string, args: readonly string[], input: string, env: Env, cwd: string): Ran {
    const options = { input, cwd, env: { ...this.env, ...env }, encoding: 'utf8' } as const
    const { status, stdout, stderr } = spawnSync(file, args, options)
    return { status, stdout, stderr }
  }
}

/** What the client makes of an answer. */
export function decisionIn({ stdout }: Ran): string {
  const { decision, hookSpecificOutput } = JSON.parse(stdout) as {
    readonly decision?: string
    readonly hookSpecificOutput?: { readonly permissionDecision?: string }
  }
  return hookSpecificOutput?.permissionDecision ?? decision ?? 'none'
}

export const patchAdding = (path: string): string =>
  `*** Begin Patch\n*** Add File: ${path}\n+x\n*** End Patch\n`
