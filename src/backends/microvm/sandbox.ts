import { statSync } from 'node:fs'
import { copyDisk } from '../../host/root/disk-image.ts'
import type { Command } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Plan } from '../../model/plan.ts'
import type { RunningCommand, StartIo, Usage } from '../backend.ts'
import { ContainerSandbox } from '../container-handle.ts'
import { CopyBack, type CopyRules } from '../copy-back.ts'
import type { Prepared } from './prepared.ts'

const LAST_MS = 120_000

/**
 * A sandbox in a machine. Mounted directories are copies: changes are copied back when a command has ended, and once more
 * when the sandbox closes.
 */
export class MicrovmSandbox extends ContainerSandbox {
  readonly #plan: Plan
  readonly #prepared: Prepared
  readonly #back: CopyBack
  #closing: Promise<void> | undefined

  constructor(plan: Plan, prepared: Prepared, rules: CopyRules) {
    super(plan, prepared.transport, prepared.machine)
    this.#plan = plan
    this.#prepared = prepared
    this.#back = new CopyBack({
      plan,
      files: this.files,
      shared: prepared.shared,
      since: prepared.since,
      ...rules,
    })
  }

  override usage(): Usage | undefined {
    const used = this.#prepared.machine.usage()
    const { root } = this.#plan
    const { savedBytes } = this.#prepared.machine
    const diskBytes = (root ? allocated(root.disk.real) : 0) + savedBytes
    return used && (root || savedBytes > 0) ? { ...used, diskBytes } : used
  }

  /** The agent's answer shows that all commands stand still and that the disk has everything. */
  async copyDisk(to: string): Promise<void> {
    const { root } = this.#plan
    if (!root) throw new SandboxError('unsupported', 'this sandbox has no disk of its own')
    await this.still(async () => {
      await this.files.sync('/')
      await copyDisk(root.disk.real, to)
    })
  }

  /**
   * The memory goes to disk. A machine that never runs again, such as after a crash of the server, leaves a disk with everything
   * on it.
   */
  override async pause(): Promise<void> {
    const { machine } = this.#prepared
    if (this.#plan.root) await this.still(() => this.files.sync('/'))
    await machine.quiet()
    try {
      await super.pause()
      await machine.hibernate()
    } catch (error) {
      machine.channel.release()
      throw error
    }
  }

  override async start(command: Command, io: StartIo = {}): Promise<RunningCommand> {
    const running = await super.start(command, io)
    return this.#back.after(running)
  }

  override close(): Promise<void> {
    this.#closing ??= this.#close()
    return this.#closing
  }

  async #close(): Promise<void> {
    try {
      await Promise.race([this.#lastTake(), tooLate()])
    } catch {
      // The machine is gone, or its archive was rejected: what was copied back before stays.
    } finally {
      await super.close()
    }
  }

  /** Freezes what still runs, so that the copy is consistent. The disk of a root may be used again. */
  async #lastTake(): Promise<void> {
    if (this.#plan.root && !this.isPaused) await this.still(() => this.files.sync('/'))
    if (this.#prepared.shared.length === 0) return
    if (this.isPaused) await this.resume()
    const session = await this.#prepared.transport.session()
    session.freeze(true)
    await this.#back.take()
  }
}

const allocated = (path: string): number => (statSync(path, { throwIfNoEntry: false })?.blocks ?? 0) * 512

/** A guest that does not send its files in time must not block the close. */
const tooLate = (): Promise<never> =>
  new Promise((_, reject) => {
    setTimeout(() => reject(new Error('the machine did not answer')), LAST_MS).unref()
  })
