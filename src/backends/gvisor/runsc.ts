import { existsSync, mkdirSync, readdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import type { Duplex } from 'node:stream'
import { type Cgroup, groupOfProcess } from '../../host/process/cgroup.ts'
import { type ChannelProcess, startChannelProcess } from '../../host/process/channel-process.ts'
import { run } from '../../host/process/run.ts'
import { childrenOf, isAlive, readText } from '../../host/system.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Plan } from '../../model/plan.ts'
import type { ContainerHandle } from '../container-handle.ts'
import { assertServed } from './own-kernel.ts'

/** The `runsc` program and how it runs. */
export type RunscHost = { readonly runsc: string; readonly stateDir: string; readonly rootless: boolean }

/** One sandbox of `runsc`. */
export type RunscSandbox = {
  readonly id: string
  readonly bundle: string
  readonly plan: Plan
  readonly signal?: AbortSignal | undefined
}

/** `ringfence-container-<pid>-<start>-…`, in the name of its state directory. */
const OWNED_NAME = /^(ringfence-container-(\d+-\d+)-[0-9a-z]+)/
const CALL_MS = 20_000
const ENV = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' }

/** One `runsc run`: its standard streams are the agent's. */
export class Runsc implements ContainerHandle {
  readonly channel: Duplex
  /** gVisor's processes are not visible on the host. */
  readonly pid = undefined
  readonly oomKills = 0
  readonly #host: RunscHost
  readonly #sandbox: RunscSandbox
  readonly #companion: ChannelProcess
  #group: Cgroup | undefined
  #paused = false
  #gone: Promise<void> | undefined

  private constructor(host: RunscHost, sandbox: RunscSandbox) {
    this.#host = host
    this.#sandbox = sandbox
    this.#companion = startChannelProcess({
      file: host.runsc,
      args: [...flags(host), 'run', '--bundle', sandbox.bundle, sandbox.id],
      env: ENV,
      cwd: sandbox.bundle,
      control: false,
    })
    this.channel = this.#companion.channel
    this.channel.on('error', () => {})
    sandbox.signal?.addEventListener('abort', () => this.channel.destroy(), { once: true })
  }

  static async start(host: RunscHost, sandbox: RunscSandbox): Promise<Runsc> {
    mkdirSync(rootOf(host), { recursive: true, mode: 0o700 })
    const runsc = new Runsc(host, sandbox)
    try {
      await runsc.#firstWord()
      runsc.#look()
      return runsc
    } catch (error) {
      await runsc.destroy()
      throw error
    }
  }

  /** Removes the sandboxes of processes that have exited: the name of a sandbox contains its creator. */
  static async sweep(host: RunscHost): Promise<void> {
    const root = rootOf(host)
    if (!existsSync(root)) return
    const left = new Set(readdirSync(root).map((name) => OWNED_NAME.exec(name)))
    for (const found of left)
      if (found && !isAlive(found[2])) {
        const args = [...flags(host), 'delete', '--force', found[1] as string]
        await run({ file: host.runsc, args, env: ENV, cwd: '/', control: false }, { wallMs: CALL_MS })
      }
  }

  /** Waits for the agent's first byte: then the mounts exist, and no guest code runs yet. */
  async #firstWord(): Promise<void> {
    const spoke = new Promise<boolean>((resolve) => {
      this.channel.once('readable', () => resolve(true))
      this.channel.once('close', () => resolve(false))
      this.channel.once('error', () => resolve(false))
      setTimeout(() => resolve(false), CALL_MS).unref()
    })
    const ended = this.#companion.exited.then(
      () => false,
      () => false,
    )
    if (await Promise.race([spoke, ended])) return
    const errorText = await this.errorText()
    throw new SandboxError(
      'launch-failed',
      `the sandbox could not be set up: ${errorText || 'runsc printed no error'}`,
    )
  }

  #look(): void {
    const near = childrenOf(this.#companion.pid)
    // Rootless, there is one more process in between: the runsc that created a user namespace.
    const family = [...near, ...near.flatMap(childrenOf)]
    const named = (word: string): number | undefined =>
      family.find((pid) => (readText(`/proc/${pid}/cmdline`) ?? '').split('\0').includes(word))
    const { plan } = this.#sandbox
    assertServed(named('gofer'), plan)
    const boot = named('boot')
    if (!this.#host.rootless && boot !== undefined) this.#group = groupOfProcess(boot, plan.limits)
    this.#assertLimits()
  }

  /** SECURITY: a limit counts only if the kernel returns the same value. The agent counts memory and processes itself. */
  #assertLimits(): void {
    const { cpus } = this.#sandbox.plan.limits
    if (cpus !== undefined && (this.#group?.unmet({ cpus }) ?? ['cpus']).length > 0)
      throw new SandboxError('launch-failed', 'runsc does not enforce the CPU limit')
  }

  get group(): Cgroup | undefined {
    // The processes in it are gVisor's, not the sandbox's: their number says nothing, so it is not limited.
    return undefined
  }

  async errorText(): Promise<string> {
    const patience = new Promise<{ said: string }>((resolve) =>
      setTimeout(() => resolve({ said: '' }), 2000).unref(),
    )
    const { said } = await Promise.race([this.#companion.exited.catch(() => ({ said: '' })), patience])
    return said.trim().split('\n')[0] ?? ''
  }

  async pause(): Promise<void> {
    await this.#call('pause')
    this.#paused = true
  }

  async resume(): Promise<void> {
    await this.#call('resume')
    this.#paused = false
  }

  destroy(): Promise<void> {
    this.#gone ??= this.#destroy()
    return this.#gone
  }

  /** Closing its input ends the agent and the sandbox; otherwise it is killed. */
  async #destroy(): Promise<void> {
    if (this.#paused) await this.resume().catch(() => {})
    this.channel.destroy()
    const ended = this.#companion.exited.then(
      () => true,
      () => true,
    )
    const late = new Promise<false>((resolve) => setTimeout(() => resolve(false), 3000).unref())
    if (!(await Promise.race([ended, late]))) await this.#call('delete', '--force').catch(() => {})
    this.#companion.kill()
    await this.#companion.exited.catch(() => {})
    await this.#call('delete', '--force').catch(() => {})
    rmSync(this.#sandbox.bundle, { recursive: true, force: true })
  }

  async #call(verb: string, ...options: readonly string[]): Promise<void> {
    const { runsc } = this.#host
    const args = [...flags(this.#host), verb, ...options, this.#sandbox.id]
    const result = await run({ file: runsc, args, env: ENV, cwd: '/', control: false }, { wallMs: CALL_MS })
    if (result.exit.code === 0) return
    const errorText = Buffer.from(result.stderr).toString('utf8').trim().split('\n')[0]
    throw new SandboxError('launch-failed', `runsc ${verb} failed: ${errorText}`)
  }
}

const rootOf = ({ stateDir }: RunscHost): string => join(stateDir, 'run', 'runsc')

const flags = (host: RunscHost): readonly string[] => [
  '--root',
  rootOf(host),
  '--network=none',
  ...(host.rootless ? ['--rootless', '--ignore-cgroups'] : []),
]
