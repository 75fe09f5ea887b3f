import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { Session } from '../../host/guest/session.ts'
import { isAlive, processKey } from '../../host/system.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Usage } from '../backend.ts'
import type { ContainerHandle } from '../container-handle.ts'
import { answered, type MemoryFile, RESERVE_MB } from '../memory-file.ts'
import { ResumableChannel } from '../resumable-channel.ts'
import { ChannelLease } from './channel-lease.ts'
import type { Machine } from './drivers/driver.ts'
import { assertRoom, removeTree } from './files/disk.ts'
import { fieldsOf, freshness, type Identity, newIdentity } from './identity.ts'
import { InitHandshake } from './init-handshake.ts'

const ANSWER_MS = 15_000
/** The file name of the input drive in a machine's directory. */
export const INPUTS = 'inputs'

/** Creates a private directory for one machine's files on the host; first removes those of exited processes. */
export function machineDirectory(stateDir: string): string {
  const run = join(stateDir, 'run')
  mkdirSync(run, { recursive: true, mode: 0o700 })
  if (!swept.has(run)) sweepMachines(stateDir)
  swept.add(run)
  return mkdtempSync(join(run, `machine-${processKey(process.pid)}-`))
}

const swept = new Set<string>()

/** Removes the machine directories of processes that have exited; their machines ended with them. */
export function sweepMachines(stateDir: string): void {
  const run = join(stateDir, 'run')
  for (const name of existsSync(run) ? readdirSync(run) : []) {
    const owner = /^machine-(\d+-\d+)-/.exec(name)?.[1]
    if (owner !== undefined && !isAlive(owner)) removeTree(join(run, name))
  }
}

/** How the memory of a machine goes to disk and comes back. */
export type Hibernation = {
  /** The file that the hypervisor writes. */
  readonly saved: MemoryFile
  /** The most that the file takes. */
  readonly mostMb: number
  /** Continues the machine from this file; it is paused. */
  readonly restore: (file: string) => Promise<Machine>
}

/** A machine with its `/init` on the other end of the channel. */
export class GuestMachine implements ContainerHandle {
  readonly channel: ResumableChannel
  /** Processes of the guest are not visible on the host. */
  readonly pid = undefined
  readonly group = undefined
  readonly oomKills = 0
  #machine: Machine
  readonly #dir: string
  readonly #hibernation: Hibernation | undefined
  #cpuMs = 0
  readonly #greeting: InitHandshake
  #session: (() => Promise<Session>) | undefined
  #still: boolean
  #gone: Promise<void> | undefined

  constructor(machine: Machine, dir: string, still: boolean, hibernation?: Hibernation) {
    this.#machine = machine
    this.#dir = dir
    this.#still = still
    this.#hibernation = hibernation
    this.channel = new ResumableChannel(machine.channel)
    this.#greeting = new InitHandshake(this.channel)
  }

  get hostPid(): number {
    return this.#machine.pid
  }

  /** The path for an image for the input drive, until the guest is told to read it. */
  get inputs(): string {
    return join(this.#dir, INPUTS)
  }

  usage(): Usage | undefined {
    return this.#hibernation?.saved.isWritten ? { memoryBytes: 0, cpuMs: this.#cpuMs } : this.#machine.usage()
  }

  /** What its memory takes on disk. */
  get savedBytes(): number {
    return this.#hibernation?.saved.bytes ?? 0
  }

  /** Waits for a machine that was just started. */
  async up(withinMs: number): Promise<void> {
    await this.#expect('waiting', withinMs)
  }

  /** The hypervisor's error output says more than a closed channel. */
  async #expect(kind: 'waiting' | 'renewed', withinMs: number): Promise<void> {
    try {
      await this.#greeting.expect(kind, withinMs)
    } catch (error) {
      const errorText = await this.errorText()
      throw errorText ? new SandboxError('launch-failed', `the machine ended: ${errorText}`) : error
    }
  }

  /** Gives the machine its own identity. SECURITY: the first message after every clone; nothing runs in it before. */
  async identify(sabotage = (fields: readonly string[]) => fields): Promise<Identity> {
    if (this.#still) await this.#wake()
    const identity = newIdentity()
    this.#greeting.send('identity', fieldsOf(sabotage(identity.fields)))
    await this.#expect('renewed', ANSWER_MS)
    return identity
  }

  /** Sets up disk, mounts and small files, and the content of the mounts. */
  async furnish(
    fields: readonly string[],
    tars: readonly (Iterable<Uint8Array> | undefined)[],
  ): Promise<void> {
    this.#greeting.send('expect', fieldsOf(fields))
    for (const [index, tar] of tars.entries()) if (tar) await this.#greeting.fill(index, tar)
  }

  /** Runs our warm-up commands in a temporary container, to fill the guest's caches. */
  async warm(
    agentConfig: {
      readonly mounts: readonly string[]
      readonly fields: readonly string[]
      readonly filter: Uint8Array
    },
    lines: readonly string[],
  ): Promise<void> {
    await this.identify()
    const lease = new ChannelLease(this.channel)
    const session = new Session(lease)
    session.send('expect', 0, fieldsOf(agentConfig.mounts))
    session.send('configure', 0, fieldsOf(agentConfig.fields))
    session.send('filter', 0, agentConfig.filter)
    session.send('go', 0)
    await session.ready
    for (const line of lines) {
      const fields = ['argv', '/bin/sh', 'argv', '-c', 'argv', line]
      await session.start({ fields, onOutput: () => undefined }).ended
    }
    session.send('leave', 0)
    // The session's last writes must be flushed before the channel is used by another owner.
    await new Promise((resolve) => lease.write('', resolve))
    const waiting = this.#expect('waiting', ANSWER_MS)
    lease.removeAllListeners('close')
    lease.destroy()
    this.channel.resume()
    await waiting
  }

  /** Sets the session that tells the machine the current time after a pause. */
  renewBy(session: () => Promise<Session>): void {
    this.#session = session
  }

  async errorText(): Promise<string> {
    const late = new Promise<string>((resolve) => setTimeout(() => resolve(''), 1000).unref())
    return Promise.race([this.#machine.ended, late])
  }

  async pause(): Promise<void> {
    await this.#machine.pause()
    this.#still = true
  }

  /**
   * Lets nothing more be sent. The answer shows that everything before has arrived in the guest: what is on its way when the
   * hypervisor ends would be lost.
   */
  async quiet(): Promise<void> {
    const answer = answered(await this.#session?.(), fieldsOf(freshness()))
    this.channel.hold()
    await answer
  }

  /** Writes the memory of a paused, quiet machine to disk and frees it. Returns whether it did; otherwise it stays in memory. */
  async hibernate(): Promise<boolean> {
    if (!this.#hibernation) return false
    const { saved, mostMb } = this.#hibernation
    this.#cpuMs = this.#machine.usage()?.cpuMs ?? 0
    const drained = this.channel.drained()
    try {
      assertRoom(this.#dir, mostMb + RESERVE_MB)
      await saved.write((path) => this.#machine.hibernate(path, mostMb * 1024 * 1024))
    } catch {
      this.channel.stays()
      return false
    }
    await drained
    return true
  }

  async resume(): Promise<void> {
    const { saved, restore } = this.#hibernation ?? {}
    if (saved?.isWritten && restore) {
      this.#machine = await saved.read(restore)
      this.channel.attach(this.#machine.channel)
    }
    await this.#wake()
    this.channel.release()
    await answered(await this.#session?.(), fieldsOf(freshness()))
  }

  async #wake(): Promise<void> {
    await this.#machine.resume()
    this.#still = false
  }

  isAlive(): boolean {
    return !this.channel.destroyed
  }

  destroy(): Promise<void> {
    this.#gone ??= this.#destroy()
    return this.#gone
  }

  async #destroy(): Promise<void> {
    await this.#machine.kill()
    rmSync(this.#dir, { recursive: true, force: true })
  }
}
