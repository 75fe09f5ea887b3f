import type { Command } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { isWithin } from '../../model/files/path.ts'
import type { Mount, Plan } from '../../model/plan.ts'
import type { BackendSandbox, Detachable, RunningCommand, StartIo } from '../backend.ts'
import type { ContainerTransport } from '../container-handle.ts'
import { CopyBack, type CopyRules, type SharedMount } from '../copy-back.ts'
import { CopyIn } from '../copy-in.ts'
import { GuestSandbox } from '../guest-sandbox.ts'
import { bounded } from '../remote/mounts.ts'
import { sentMounts } from './launch.ts'
import type { SandboxPod } from './pod.ts'

/** Files between this host and a Pod. The directories in a Pod are copies; changes come back when a command has ended. */

/** SECURITY: what a Pod cannot fulfil is rejected, never weakened. */
export function refuseUnsent(plan: Plan): void {
  const { mounts } = plan
  if (plan.unixSockets.length > 0)
    throw new SandboxError('unsupported', 'kubernetes cannot reach a socket of this host', {
      hint: 'leave out --unix-socket, or use bubblewrap',
    })
  const file = mounts.find(({ kind, mode }) => kind !== 'dir' && mode === 'rw')
  if (file)
    throw new SandboxError('unsupported', `kubernetes cannot copy a single file back: \`${file.target}\``, {
      hint: 'mount its directory, or mount the file read-only',
    })
  const inner = mounts.find((one) => mounts.some((outer) => outer !== one && overlaps(one, outer)))
  if (inner)
    throw new SandboxError(
      'unsupported',
      `kubernetes cannot mount \`${inner.target}\` inside another mount`,
      {
        hint: 'mount only the outer directory',
      },
    )
}

const overlaps = (one: Mount, outer: Mount): boolean =>
  isWithin(one.target, outer.target) || isWithin(one.real, outer.real)

/** The files of one mount on their way into a Pod. */
export type Sent = { readonly mount: Mount; readonly copy: CopyIn; readonly archive: Iterable<Uint8Array> }

/** What a Pod is sent of this host, in the order of its mounts. */
export const sentTo = (plan: Plan): readonly Sent[] =>
  sentMounts(plan).map((mount) => {
    const copy = new CopyIn(plan, mount)
    return { mount, copy, archive: bounded(mount, copy.stream()) }
  })

/** Whether changes go back to directories of this server, which no other one has. */
export const isCopiedBack = (plan: Plan): boolean => sentMounts(plan).some(({ mode }) => mode === 'rw')

const MARKER = '/tmp/.ringfence-copied'
const LAST_MS = 120_000

/** A sandbox in a Pod. */
export class PodSandbox extends GuestSandbox implements Detachable {
  readonly outlives: boolean
  readonly ownLimits: NonNullable<BackendSandbox['ownLimits']>
  readonly #pod: SandboxPod
  #back: CopyBack | undefined
  #closing: Promise<void> | undefined

  private constructor(
    plan: Plan,
    {
      transport,
      pod,
      limits,
    }: { transport: ContainerTransport; pod: SandboxPod; limits: PodSandbox['ownLimits'] },
  ) {
    super(plan, transport)
    this.#pod = pod
    this.ownLimits = limits
    this.outlives = pod.outlives && !isCopiedBack(plan)
  }

  /** Sends the plan's small files and notes the time; no command has run yet. On failure nothing is left. */
  static async open(
    plan: Plan,
    inside: {
      readonly transport: ContainerTransport
      readonly pod: SandboxPod
      readonly limits: PodSandbox['ownLimits']
    },
    sent: readonly Sent[],
    rules: CopyRules,
  ): Promise<PodSandbox> {
    const sandbox = new PodSandbox(plan, inside)
    try {
      for (const { target, text } of plan.files) await sandbox.files.write(target, [Buffer.from(text)])
      await sandbox.#noteTime(plan, sent, rules)
      return sandbox
    } catch (error) {
      await sandbox.close()
      throw error
    }
  }

  override async start(command: Command, io: StartIo = {}): Promise<RunningCommand> {
    const running = await super.start(command, io)
    return this.#back?.after(running) ?? running
  }

  override close(): Promise<void> {
    this.#closing ??= this.#close()
    return this.#closing
  }

  detach(): Promise<void> {
    this.#pod.leave()
    this.#closing ??= super.close()
    return this.#closing
  }

  async #noteTime(plan: Plan, sent: readonly Sent[], rules: CopyRules): Promise<void> {
    const shared: readonly SharedMount[] = sent
      .filter(({ mount }) => mount.mode === 'rw')
      .map(({ mount, copy }) => ({ mount, manifest: copy.manifest }))
    if (shared.length === 0) return
    // On the Pod's own clock.
    await this.files.write(MARKER, [])
    const { modifiedMs } = await this.files.stat(MARKER)
    await this.files.remove(MARKER)
    const since = String(BigInt(Math.floor(modifiedMs)) * 1_000_000n)
    this.#back = new CopyBack({ plan, files: this.files, shared, since, ...rules })
  }

  async #close(): Promise<void> {
    try {
      if (this.#back && !this.isPaused) await Promise.race([this.#lastTake(this.#back), tooLate()])
    } catch {
      // The Pod is gone, or its archive was rejected: what was copied back before stays.
    } finally {
      await super.close()
    }
  }

  /** Freezes what still runs, so that the copy is consistent. */
  async #lastTake(back: CopyBack): Promise<void> {
    await this.still(() => back.take())
  }
}

/** A guest that does not send its files in time must not block the close. */
const tooLate = (): Promise<never> =>
  new Promise((_, reject) => {
    setTimeout(() => reject(new Error('the Pod did not answer')), LAST_MS).unref()
  })
