import { statSync } from 'node:fs'
import { copyDisk } from '../../host/root/disk-image.ts'
import type { Command, ExecResult, Violation } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Plan } from '../../model/plan.ts'
import type { RunningCommand, StartIo, Usage } from '../backend.ts'
import { ContainerSandbox } from '../container-handle.ts'
import { TarReader } from '../tar/reader.ts'
import { CopyOut, type ProtectedNameOf, type SkippedPath } from './files/copy-out.ts'
import type { Prepared, SharedMount } from './prepared.ts'

/** How files are copied back from a machine. */
export type CopyBack = {
  readonly refuses: ProtectedNameOf
  /** The limit of all bytes that are copied back. */
  readonly most: number
}

const MAX_ENTRIES = 1_000_000
const MAX_NOTED = 64
const LAST_MS = 120_000

/**
 * A sandbox in a machine. Mounted directories are copies: changes are copied back when a command has ended, and once more
 * when the sandbox closes.
 */
export class MicrovmSandbox extends ContainerSandbox {
  readonly #plan: Plan
  readonly #prepared: Prepared
  readonly #back: CopyBack
  readonly #since = new Map<string, string>()
  #taking: Promise<unknown> = Promise.resolve()
  #closing: Promise<void> | undefined

  constructor(plan: Plan, prepared: Prepared, back: CopyBack) {
    super(plan, prepared.transport, prepared.machine)
    this.#plan = plan
    this.#prepared = prepared
    this.#back = back
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
    if (this.#prepared.shared.length === 0) return running
    const result = running.result.then((ended) => this.#settle(ended))
    result.catch(() => {})
    return {
      pid: running.pid,
      result,
      write: (data) => running.write(data),
      endInput: () => running.endInput(),
      signal: (signal) => running.signal(signal),
      resize: (size) => running.resize(size),
    }
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
    await this.#takeBack()
  }

  async #settle(ended: ExecResult): Promise<ExecResult> {
    const left = await this.#takeBack().catch((error: Error): SkippedPath[] => [
      { path: error.message, why: 'refused' },
    ])
    return left.length === 0
      ? ended
      : { ...ended, violations: [...ended.violations, ...left.slice(0, MAX_NOTED).map(violationOf)] }
  }

  /** One at a time: parallel copies would take each other's changes for changes of the host. */
  #takeBack(): Promise<readonly SkippedPath[]> {
    const taken = this.#taking.then(() => this.#takeAll())
    this.#taking = taken.catch(() => {})
    return taken
  }

  async #takeAll(): Promise<readonly SkippedPath[]> {
    const left: SkippedPath[] = []
    for (const one of this.#prepared.shared) left.push(...(await this.#take(one)))
    return left
  }

  async #take({ mount, manifest }: SharedMount): Promise<readonly SkippedPath[]> {
    const { refuses, most } = this.#back
    const source = this.files.changes(mount.target, this.#since.get(mount.target) ?? this.#prepared.since)
    const reader = new TarReader(source, { entries: MAX_ENTRIES, bytes: most })
    const out = new CopyOut(mount, manifest, this.#plan.protection, refuses)
    const taken = await out.take(reader).catch((error: unknown) => {
      void reader.close().catch(() => {})
      throw error
    })
    if (taken.since !== undefined) this.#since.set(mount.target, taken.since)
    return taken.left
  }
}

const allocated = (path: string): number => (statSync(path, { throwIfNoEntry: false })?.blocks ?? 0) * 512

/** A guest that does not send its files in time must not block the close. */
const tooLate = (): Promise<never> =>
  new Promise((_, reject) => {
    setTimeout(() => reject(new Error('the machine did not answer')), LAST_MS).unref()
  })

const violationOf = ({ path, why }: SkippedPath): Violation => ({
  guarantee: why === 'protected' ? 'fs.protect' : 'fs.write',
  details:
    why === 'protected'
      ? `${path} is protected and was not copied back`
      : why === 'changed'
        ? `${path} was changed on the host meanwhile and was not copied back`
        : `${path} could not be copied back`,
})
