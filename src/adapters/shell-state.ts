import { type Call, done, type Result } from './operations/operation.ts'
import { finishedResult } from './results.ts'
import type { AgentSession } from './session.ts'

/**
 * A shell with persistent state. Each line is a separate command, checked and recorded exactly as the model wrote it; bash
 * restores the state of the previous line (directory, variables, functions) before it and saves it afterwards.
 * SECURITY: a line typed into an open shell would bypass the policy check.
 */
export class ShellState {
  readonly #session: AgentSession
  readonly #dir: string
  #cwd: string | undefined
  #ready = false

  constructor(session: AgentSession, name: string) {
    this.#session = session
    this.#dir = `/tmp/.rf-agent/shell-${name.replace(/[^\w-]/g, '_')}`
  }

  async run(line: string, options: { readonly timeoutMs?: number }, call: Call): Promise<Result> {
    const sandbox = await this.#session.sandbox()
    if (!this.#ready) await sandbox.files.write(`${this.#dir}/begin`, Buffer.from(script(this.#dir)))
    this.#ready = true
    const cwd = this.#cwd ?? sandbox.workspace
    const env = { BASH_ENV: `${this.#dir}/begin` }
    const finished = await this.#session.run(line, { cwd, env, ...options }, call)
    this.#cwd = await this.#lastDirectory(sandbox.workspace)
    return finishedResult(finished)
  }

  /** Clears the shell's state; files are kept. */
  async restart(): Promise<Result> {
    const sandbox = await this.#session.sandbox()
    await sandbox.files.remove(this.#dir).catch(() => {})
    this.#ready = false
    this.#cwd = undefined
    return done('the shell was restarted', { restarted: true })
  }

  async #lastDirectory(otherwise: string): Promise<string> {
    const sandbox = await this.#session.sandbox()
    try {
      const text = Buffer.from(await sandbox.files.read(`${this.#dir}/cwd`)).toString('utf8')
      const path = text.replace(/\n$/, '')
      return (await sandbox.files.stat(path)).kind === 'dir' ? path : otherwise
    } catch {
      return otherwise
    }
  }
}

/** Read-only variables are not saved: bash sets them itself and rejects assignments. */
const script = (dir: string): string => `unset BASH_ENV
if [ -f ${dir}/state ]; then . ${dir}/state >/dev/null 2>&1; fi
trap '{ declare -p | grep -v "^declare -[a-zA-Z]*r"; declare -f; shopt -p; } >${dir}/state 2>/dev/null; pwd >${dir}/cwd' EXIT
`
