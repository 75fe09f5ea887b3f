import { existsSync, mkdirSync, readdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { monotonicMs } from '../../host/clock.ts'
import type { Session } from '../../host/guest/session.ts'
import { Cgroup, cgroupHost } from '../../host/process/cgroup.ts'
import { type ChannelProcess, startChannelProcess } from '../../host/process/channel-process.ts'
import { groupName, removeOrphanGroups } from '../../host/process/orphans.ts'
import { run } from '../../host/process/run.ts'
import { childrenOf, isAlive, readText } from '../../host/system.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Plan } from '../../model/plan.ts'
import type { ContainerHandle } from '../container-handle.ts'
import { answered, MemoryFile, RESERVE_MB } from '../memory-file.ts'
import { assertRoom } from '../microvm/files/disk.ts'
import { ResumableChannel } from '../resumable-channel.ts'
import { limitMemory, linkTarget, memoryOf } from './memory-watch.ts'
import { assertServed, KERNEL_MB } from './own-kernel.ts'

/** The `runsc` program and how it runs. */
export type RunscHost = {
  readonly runsc: string
  /** The guest agent, which starts `runsc` in its cgroup. */
  readonly agent: string
  readonly stateDir: string
  readonly rootless: boolean
}

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
const CHECKPOINT_MS = 120_000
const RESTORE_MS = 120_000
const POLL_MS = 20
const MB = 1024 * 1024
const ENV = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' }

/** One `runsc run`: its standard streams are the agent's. While it is paused, its memory is on disk and no process is left. */
export class Runsc implements ContainerHandle {
  readonly channel: ResumableChannel
  /** gVisor's processes are not visible on the host. */
  readonly pid = undefined
  readonly #host: RunscHost
  readonly #sandbox: RunscSandbox
  readonly #memory: MemoryFile
  #companion: ChannelProcess
  readonly #group: Cgroup | undefined
  /** gVisor's kernel on the host. */
  #boot: number | undefined
  /** Its file server. */
  #gofer: number | undefined
  #overMemory = 0
  #stopWatching: (() => void) | undefined
  #session: (() => Promise<Session>) | undefined
  #paused = false
  #changing: Promise<void> | undefined
  #gone: Promise<void> | undefined

  private constructor(host: RunscHost, sandbox: RunscSandbox, group: Cgroup | undefined) {
    this.#host = host
    this.#sandbox = sandbox
    this.#group = group
    this.#memory = new MemoryFile(join(sandbox.bundle, 'memory'))
    this.#companion = this.#launch('run')
    this.channel = new ResumableChannel(this.#companion.channel)
    this.channel.on('error', () => {})
    sandbox.signal?.addEventListener('abort', () => this.channel.destroy(), { once: true })
  }

  #launch(verb: 'run' | 'restore', ...options: readonly string[]): ChannelProcess {
    const { bundle, id } = this.#sandbox
    const { runsc, agent } = this.#host
    const args = [...flags(this.#host), verb, '--bundle', bundle, ...options, id]
    const companion = startChannelProcess({
      ...(this.#group
        ? { file: agent, args: ['run-as', '', '', ...this.#group.dirs, '--', runsc, ...args] }
        : { file: runsc, args }),
      env: ENV,
      cwd: bundle,
      control: false,
    })
    // A process that fails before anybody uses its channel.
    companion.channel.on('error', () => {})
    return companion
  }

  static async start(host: RunscHost, sandbox: RunscSandbox): Promise<Runsc> {
    mkdirSync(rootOf(host), { recursive: true, mode: 0o700 })
    sweepOnce(host)
    const group = host.rootless ? undefined : groupFor(sandbox.plan)
    let runsc: Runsc
    try {
      runsc = new Runsc(host, sandbox, group)
    } catch (error) {
      await group?.remove()
      throw error
    }
    try {
      await runsc.#firstWord()
      runsc.#look(runsc.#companion)
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
    if (!host.rootless) removeOrphanGroups(cgroupHost())
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

  #look(companion: ChannelProcess): void {
    const near = childrenOf(companion.pid)
    // Rootless, there is one more process in between: the runsc that created a user namespace.
    const family = [...near, ...near.flatMap(childrenOf)]
    const named = (word: string): number | undefined =>
      family.find((pid) => (readText(`/proc/${pid}/cmdline`) ?? '').split('\0').includes(word))
    const { plan } = this.#sandbox
    this.#gofer = named('gofer')
    assertServed(this.#gofer, plan)
    const boot = named('boot')
    this.#boot = boot
    if (this.#group && (boot === undefined || !this.#group.contains(boot)))
      throw new SandboxError('launch-failed', 'the kernel of gvisor is not in its cgroup')
    this.#assertLimits()
    this.#limitMemory()
  }

  /** A cgroup of root limits gVisor's kernel with everything in it; an ordinary user has none. */
  #limitMemory(): void {
    const { memoryMb } = this.#sandbox.plan.limits
    const boot = this.#boot
    if (memoryMb === undefined) return
    if (this.#group?.unmet({ memoryMb: memoryMb + KERNEL_MB }).length === 0) return
    if (boot === undefined) throw new SandboxError('launch-failed', 'the kernel of gvisor was not found')
    this.#stopWatching?.()
    this.#stopWatching = limitMemory(boot, (memoryMb + KERNEL_MB) * MB, () => {
      this.#overMemory = 1
      this.channel.destroy()
    })
  }

  /** SECURITY: a limit counts only if the kernel returns the same value. The agent counts memory and processes itself. */
  #assertLimits(): void {
    const { cpus } = this.#sandbox.plan.limits
    if (cpus !== undefined && (this.#group?.unmet({ cpus }) ?? ['cpus']).length > 0)
      throw new SandboxError('launch-failed', 'no cgroup enforces the CPU limit')
  }

  get oomKills(): number {
    return Math.max(this.#overMemory, this.#group?.counts().oomKills ?? 0)
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

  /** Sets the session by which the agent is asked whether everything has arrived. */
  answerBy(session: () => Promise<Session>): void {
    this.#session = session
  }

  /**
   * Writes the memory to disk and ends gVisor's kernel; if that cannot be, everything stays in memory and is frozen. The agent has
   * frozen the commands before it answers. Bytes that are on their way when gVisor ends would be lost, so nothing more is sent.
   */
  pause(): Promise<void> {
    return this.#exclusive(async () => {
      await this.#pause()
      this.#paused = true
    })
  }

  resume(): Promise<void> {
    return this.#exclusive(() => this.#resume())
  }

  /** INVARIANT: a sandbox is not destroyed while it is written to disk or restored, because a process would be left. */
  #exclusive(work: () => Promise<void>): Promise<void> {
    const done = this.#gone
      ? Promise.reject(new SandboxError('wrong-state', 'the sandbox is closed'))
      : work()
    this.#changing = done.catch(() => {})
    return done
  }

  async #pause(): Promise<void> {
    const answer = answered(await this.#session?.(), new Uint8Array())
    this.channel.hold()
    try {
      await answer
      if (await this.#canHibernate()) await this.#hibernate()
      else await this.#call('pause')
    } catch (error) {
      this.channel.release()
      throw error
    }
  }

  async #resume(): Promise<void> {
    if (this.#memory.isWritten) await this.#fromDisk()
    else await this.#call('resume')
    this.#paused = false
    this.channel.release()
    try {
      await answered(await this.#session?.(), new Uint8Array())
    } catch (cause) {
      throw new SandboxError('launch-failed', `the sandbox ended when it woke: ${await this.#lastWords()}`, {
        cause,
      })
    }
  }

  /** How the process of the sandbox ended; it says more than a closed channel. */
  async #lastWords(): Promise<string> {
    const late = new Promise<string>((resolve) => setTimeout(() => resolve('runsc still runs'), 2000).unref())
    const ended = this.#companion.exited.then(
      ({ code, signal, said }) =>
        firstLine(said) || `runsc exited with ${signal ?? code} and printed no error`,
      (error: Error) => error.message,
    )
    return Promise.race([ended, late])
  }

  /**
   * PLATFORM: builds before 2024 restore a sandbox that reads its channel no more. No build saves a file of the host that was
   * removed while it is open or a current directory: the attempt would end the sandbox. A sandbox of an ordinary user is
   * saved, but not restored.
   */
  async #canHibernate(): Promise<boolean> {
    if (this.#host.rootless) return false
    try {
      if ([this.#boot, this.#gofer].some(holdsRemoved)) return false
      const memory = this.#boot === undefined ? 0 : memoryOf(this.#boot)
      assertRoom(this.#sandbox.bundle, Math.ceil(memory / MB) + RESERVE_MB)
      return canCheckpoint(await output(this.#host.runsc, ['--version']))
    } catch {
      return false
    }
  }

  async #hibernate(): Promise<void> {
    const drained = this.channel.drained()
    try {
      await this.#memory.write(async (path) => void (await this.#call('checkpoint', '--image-path', path)))
    } catch (error) {
      this.channel.stays()
      throw error
    }
    await drained
    await this.#companion.exited.catch(() => {})
    // Frees the name for the restored sandbox.
    await this.#call('delete', '--force').catch(() => {})
  }

  /** SECURITY: the commands of a restored sandbox are frozen until the agent is told, so a failed attempt ran nothing of them. */
  async #fromDisk(): Promise<void> {
    this.#companion = await this.#memory.read((path) => this.#restored(path))
    this.channel.attach(this.#companion.channel)
  }

  async #restored(path: string): Promise<ChannelProcess> {
    const companion = this.#launch('restore', '--image-path', path)
    try {
      await this.#untilRunning(companion)
      this.#look(companion)
      return companion
    } catch (error) {
      await this.#call('delete', '--force').catch(() => {})
      companion.kill()
      await companion.exited.catch(() => {})
      throw error
    }
  }

  async #untilRunning(companion: ChannelProcess): Promise<void> {
    let failed: string | undefined
    companion.exited.then(
      ({ said }) => {
        failed = said
      },
      (error: Error) => {
        failed = error.message
      },
    )
    const until = monotonicMs() + RESTORE_MS
    while (failed === undefined && monotonicMs() < until) {
      if (await this.#isRunning()) return
      await new Promise((resolve) => setTimeout(resolve, POLL_MS))
    }
    throw new SandboxError('launch-failed', `runsc restore failed: ${firstLine(failed ?? 'no answer')}`)
  }

  async #isRunning(): Promise<boolean> {
    const state = await this.#call('state').catch(() => '')
    return /"status":\s*"running"/.test(state)
  }

  destroy(): Promise<void> {
    this.#gone ??= this.#destroy()
    return this.#gone
  }

  /** Closing its input ends the agent and the sandbox; otherwise it is killed. */
  async #destroy(): Promise<void> {
    this.#stopWatching?.()
    await this.#changing
    if (this.#paused && !this.#memory.isWritten) await this.#resume().catch(() => {})
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
    await this.#group?.remove()
    rmSync(this.#sandbox.bundle, { recursive: true, force: true })
  }

  #call(verb: string, ...options: readonly string[]): Promise<string> {
    const wallMs = verb === 'checkpoint' ? CHECKPOINT_MS : CALL_MS
    return output(this.#host.runsc, [...flags(this.#host), verb, ...options, this.#sandbox.id], verb, wallMs)
  }
}

/** What `runsc` prints. */
async function output(file: string, args: readonly string[], verb = '', wallMs = CALL_MS): Promise<string> {
  const result = await run({ file, args, env: ENV, cwd: '/', control: false }, { wallMs })
  if (result.exit.code === 0) return Buffer.from(result.stdout).toString('utf8')
  const errorText = firstLine(Buffer.from(result.stderr).toString('utf8'))
  throw new SandboxError('launch-failed', `runsc ${verb} failed: ${errorText}`)
}

/** The first build that was seen to continue a saved sandbox. */
const CHECKPOINTS_SINCE = 20_240_729

/** Whether a build of runsc, by what `runsc --version` says, continues a saved sandbox. Builds without a date are not trusted to. */
export const canCheckpoint = (version: string): boolean =>
  Number(/^runsc version \D*?(?:0\.0~)?(\d{8})/.exec(version)?.[1] ?? 0) >= CHECKPOINTS_SINCE

const firstLine = (text: string): string => text.trim().split('\n')[0] ?? ''

/** Whether a process has a removed file open; files that exist only in memory count as removed too. */
const holdsRemoved = (pid: number | undefined): boolean =>
  readdirSync(`/proc/${pid}/fd`).some((name) => {
    const target = linkTarget(`/proc/${pid}/fd/${name}`)
    return target.endsWith(' (deleted)') && !target.startsWith('/memfd:')
  })

const rootOf = ({ stateDir }: RunscHost): string => join(stateDir, 'run', 'runsc')

const swept = new Set<string>()

/** `runsc` ends with the process that started it, and leaves its state and an empty cgroup then. */
function sweepOnce(host: RunscHost): void {
  if (swept.has(host.stateDir)) return
  swept.add(host.stateDir)
  void Runsc.sweep(host).catch(() => {})
}

/**
 * Limits gVisor's kernel with everything in it; the agent counts memory and processes itself. `runsc` would create a directory
 * for every controller and move other processes into them, which stops every fork on the host: a quarter of its start.
 */
const groupFor = ({ limits: { memoryMb, cpus } }: Plan): Cgroup | undefined =>
  Cgroup.create(
    cgroupHost(),
    groupName(),
    {
      ...(memoryMb === undefined ? {} : { memoryMb: memoryMb + KERNEL_MB }),
      ...(cpus === undefined ? {} : { cpus }),
    },
    0,
  )

const flags = (host: RunscHost): readonly string[] => [
  ...['--root', rootOf(host), '--network=none', '--ignore-cgroups'],
  ...(host.rootless ? ['--rootless'] : []),
]
