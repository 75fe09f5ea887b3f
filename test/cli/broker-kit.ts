import { spawn, spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { packageRoot } from '../conformance/world.ts'

/** A separate copy of the package with a running broker, so that a test can distinguish broker and Node. */

export type Ran = { readonly code: number | null; readonly stdout: string; readonly stderr: string }
export type Env = Readonly<Record<string, string>>
type Options = {
  readonly env?: Env
  readonly input?: string
  readonly before?: readonly string[]
  readonly cwd?: string
}

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

/** Waits until it is true; throws after ten seconds. */
export async function until(what: string, isTrue: () => boolean): Promise<void> {
  for (let tries = 0; tries < 400; tries++) {
    if (isTrue()) return
    await sleep(25)
  }
  throw new Error(`never happened: ${what}`)
}

/** What Node prints instead of doing its work. */
export const LEFT_TO_NODE = 'left to Node'

export class BrokerKit {
  readonly base = mkdtempSync(join(tmpdir(), 'rf-broker-'))
  readonly workspace = join(this.base, 'work')
  readonly state = join(this.base, 'state')
  readonly socket = join(this.state, 'broker', 'socket')
  readonly script = join(this.base, 'package', 'dist', 'cli', 'ringfence.cjs')
  readonly front = join(this.base, 'package', 'dist', 'guest', 'ringfence-front')
  readonly env: Env

  constructor(env: Env = {}) {
    for (const part of [
      'package.json',
      'dist/cli',
      'dist/guest/ringfence-agent',
      'dist/guest/ringfence-front',
    ])
      cpSync(join(packageRoot(), part), join(this.base, 'package', part), { recursive: true })
    mkdirSync(this.workspace)
    mkdirSync(this.state, { mode: 0o700 })
    this.env = {
      PATH: '/usr/local/bin:/usr/bin:/bin',
      HOME: this.base,
      RINGFENCE_HOME: this.state,
      LANG: 'C.UTF-8',
      ...env,
    }
  }

  /** Starts a broker and waits for its socket. */
  async start(): Promise<void> {
    this.run(['check', 'command', 'true'])
    await until('the broker listens', () => existsSync(this.socket))
  }

  run(
    args: readonly string[],
    { env = {}, input = '', before = [], cwd = this.workspace }: Options = {},
  ): Ran {
    const [file, ...rest] = [...before, this.front, ...args] as [string, ...string[]]
    const done = spawnSync(file, rest, {
      cwd,
      env: { ...this.env, ...env },
      input,
      encoding: 'utf8',
      timeout: 60_000,
      maxBuffer: 1e8,
    })
    return { code: done.status, stdout: done.stdout, stderr: done.stderr }
  }

  /** The same in the background. */
  spawn(args: readonly string[], env: Env = {}) {
    return spawn(this.front, args, { cwd: this.workspace, env: { ...this.env, ...env }, stdio: 'pipe' })
  }

  /** Disables Node while the work runs: every success is the broker's. */
  withoutNode<T>(work: () => T): T {
    const giveBack = this.#takeNode()
    try {
      return work()
    } finally {
      giveBack()
    }
  }

  async withoutNodeAsync<T>(work: () => Promise<T>): Promise<T> {
    const giveBack = this.#takeNode()
    try {
      return await work()
    } finally {
      giveBack()
    }
  }

  #takeNode(): () => void {
    const script = readFileSync(this.script)
    writeFileSync(this.script, `process.stderr.write('${LEFT_TO_NODE}'); process.exit(99)`)
    return () => writeFileSync(this.script, script)
  }

  /** Whether the broker serves this call. */
  isServed(options: Options = {}): boolean {
    const { code, stderr } = this.withoutNode(() => this.run(['check', 'command', 'true'], options))
    if (code !== 0 && !stderr.includes(LEFT_TO_NODE)) throw new Error(`${code}: ${stderr}`)
    return code === 0
  }

  get pid(): number {
    return Number(readFileSync(join(this.state, 'broker', 'lock'), 'utf8'))
  }

  get isAlive(): boolean {
    try {
      return process.kill(this.pid, 0)
    } catch {
      return false
    }
  }

  /** Ends the broker, which ends its listener. */
  remove(): void {
    if (existsSync(join(this.state, 'broker', 'lock')) && this.isAlive) process.kill(this.pid, 'SIGKILL')
    // A broker may be starting in it.
    rmSync(this.base, { recursive: true, force: true, maxRetries: 5 })
  }
}
