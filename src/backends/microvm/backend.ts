import { existsSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { monotonicMs } from '../../host/clock.ts'
import { hostFingerprint, systemProgram } from '../../host/system.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Guarantee } from '../../model/guarantee.ts'
import { isPlan, type Mount, type Plan } from '../../model/plan.ts'
import type { Backend, BackendSandbox, OpenOptions, Probe } from '../backend.ts'
import { type Arch, assemble, encode } from '../bubblewrap/seccomp.ts'
import { refuseUnfit, userFor } from '../container-files.ts'
import { containerFields } from '../guest-config.ts'
import type { Image, ImageStore } from '../images/store.ts'
import { VesselPlace } from '../vessel.ts'
import { CopyIn } from './copy-in.ts'
import type { Refuses } from './copy-out.ts'
import { makeDisk } from './disk.ts'
import type { Driver, MachineSpec } from './driver.ts'
import { GuestMachine, machineDirectory } from './guest-machine.ts'
import { GuestImages } from './image.ts'
import {
  diskMb,
  machineMemoryMb,
  POOL_WARMING,
  placeFields,
  placesOf,
  WARM_FIELDS,
  WARM_PLACES,
  WARMING,
} from './orders.ts'
import { MachinePool } from './pool.ts'
import { MicrovmSandbox, type SharedMount } from './sandbox.ts'
import { MachineTemplates } from './template.ts'

export type MicrovmParts = {
  readonly agent: string
  readonly probePlan: () => Plan
  readonly images: ImageStore
  readonly stateDir: string
  readonly driver: Driver
  /** Whether guests run by a program that reads their instructions; then only by name. */
  readonly emulated: () => boolean
  /** What may not come back from a guest (policy/protect.ts). */
  readonly refuses: Refuses
  /** So many machines are kept ready for each kind that was asked for. */
  readonly ready?: number
  readonly onProgress?: ((text: string) => void) | undefined
}

const CLAIMS: readonly Guarantee[] = [
  ...([
    'fs.read',
    'fs.write',
    'fs.protect',
    'env.clean',
    'net.offline',
    'net.loopback',
    'net.fetch',
  ] as const),
  ...(['secrets.outside', 'proc.hidden', 'ipc.private', 'kernel.filtered', 'kernel.separate'] as const),
  ...(['limit.wall', 'limit.idle', 'limit.memory', 'limit.pids', 'limit.disk', 'limit.output'] as const),
  'cleanup',
]

/**
 * A share of a processor is held in the guest and on the host, but an emulated guest takes time that the host gave to others
 * for its own: what it measures proves nothing, so there it is not claimed.
 */
const claimsOf = (emulated: boolean): readonly Guarantee[] => (emulated ? CLAIMS : [...CLAIMS, 'limit.cpu'])

const BOOT_MS = 60_000

/** Virtual machines: a kernel of its own for each sandbox, cloned from one that was started beforehand. */
export function microvm(parts: MicrovmParts): Backend & { readonly close: () => Promise<void> } {
  return new Microvm(parts)
}

/** Everything that a new machine depends on. */
type Kind = Omit<MachineSpec, 'disk'> & { readonly diskMb: number }

class Microvm implements Backend {
  readonly name = 'microvm'
  readonly level = 'microvm'
  readonly byNameOnly = false
  readonly runsImages = true
  readonly #parts: MicrovmParts
  readonly #images: GuestImages
  readonly #templates: MachineTemplates
  readonly #pool: MachinePool
  readonly #filter = encode(assemble(process.arch as Arch))

  constructor(parts: MicrovmParts) {
    this.#parts = parts
    this.#images = new GuestImages(parts)
    const dir = join(parts.stateDir, 'microvm', 'templates')
    this.#templates = new MachineTemplates({
      dir,
      driver: parts.driver,
      onProgress: parts.onProgress,
      warm: async (machine) => {
        const guest = new GuestMachine(machine, join(dir, 'none'), false)
        await guest.up(BOOT_MS)
        await this.#warm(guest, WARMING)
      },
    })
    this.#pool = new MachinePool(parts.ready ?? 0, (machine) => this.#warm(machine, POOL_WARMING))
  }

  #warm(machine: GuestMachine, lines: readonly string[]): Promise<void> {
    return machine.warm({ places: WARM_PLACES, fields: WARM_FIELDS, filter: this.#filter }, lines)
  }

  get emulated(): boolean {
    return this.#parts.emulated()
  }

  async probe(): Promise<Probe> {
    const missing = await this.#missing()
    if (missing) return { available: false, ...missing }
    try {
      // What is made once for all sandboxes is no part of what one costs.
      const kind = await this.#kindOf(this.#parts.probePlan())
      await this.#template(kind)
      const started = monotonicMs()
      const sandbox = await this.open(this.#parts.probePlan())
      try {
        const { outcome } = await sandbox.exec({ argv: ['true'] })
        if (outcome.kind !== 'exited' || outcome.code !== 0) throw new Error('the probe command failed')
      } finally {
        await sandbox.close()
      }
      return { available: true, guarantees: claimsOf(this.emulated), startMs: monotonicMs() - started }
    } catch (error) {
      const fix = error instanceof SandboxError ? error.hint : undefined
      return {
        available: false,
        reason: (error as Error).message,
        fix: fix ?? 'ringfence image build --kind microvm',
      }
    }
  }

  fingerprint(): string {
    return hostFingerprint([systemProgram('qemu-system-x86_64') ?? 'qemu', this.#parts.agent])
  }

  async #missing(): Promise<{ readonly reason: string; readonly fix: string } | undefined> {
    const { agent, driver } = this.#parts
    if (!existsSync(agent)) return { reason: 'the guest agent is not built', fix: 'npm run setup' }
    const fix = 'ringfence image build --kind microvm'
    if (!this.#images.hasKernel) return { reason: 'there is no kernel for guests yet', fix }
    const probe = await driver.probe()
    return probe.usable ? undefined : { reason: probe.reason, fix: probe.fix }
  }

  async open(plan: Plan, options: OpenOptions = {}): Promise<BackendSandbox> {
    if (!isPlan(plan)) throw new SandboxError('internal', 'a backend accepts only plans that policy made')
    if (plan.network.mode === 'fetch' && !options.onTunnel)
      throw new SandboxError('internal', 'a sandbox with network mode fetch needs a proxy')
    refuseUnfit(plan, this.name)
    refuseUnkept(plan)
    const missing = await this.#missing()
    if (missing) throw new SandboxError('backend-unavailable', missing.reason, { hint: missing.fix })
    const kind = await this.#kindOf(plan)
    const key = `${await this.#templates.keyOf(kind)}|${kind.diskMb}|${kind.cpus}`
    const machine = await this.#pool.take(key, () => this.#start(kind))
    const abort = (): void => void machine.destroy()
    options.signal?.addEventListener('abort', abort, { once: true })
    try {
      if (options.signal?.aborted) throw new SandboxError('wrong-state', 'nobody wants the sandbox any more')
      return await this.#serve(plan, machine, kind, options)
    } catch (error) {
      await machine.destroy()
      throw error
    } finally {
      options.signal?.removeEventListener('abort', abort)
    }
  }

  async #serve(
    plan: Plan,
    machine: GuestMachine,
    kind: Kind,
    { onTunnel }: OpenOptions,
  ): Promise<BackendSandbox> {
    const identity = await machine.identify()
    const mounts = placesOf(plan)
    const copies = mounts.map((mount) =>
      plan.own.includes(mount.target) ? undefined : new CopyIn(plan, mount),
    )
    const fields = placeFields(plan, userFor(plan), identity.hostname, kind.memoryMb)
    await machine.furnish(
      fields,
      copies.map((copy) => copy?.stream()),
    )
    const orders = { fields: containerFields(plan, { guards: true }), expected: [], filter: this.#filter }
    const place = new VesselPlace(plan, machine, orders, { layersOf: this.#layersOf, onTunnel })
    // The greeting left it still, so that nothing gets lost between two listeners.
    machine.channel.resume()
    await place.ready()
    const session = await place.session()
    const status = await session.ready
    if (status.get('Token') !== identity.token) {
      await place.close()
      throw new SandboxError('launch-failed', 'the machine is not the one that was started')
    }
    machine.renewBy(() => place.session())
    const shared = mounts.flatMap((mount, index): SharedMount[] => {
      const copy = copies[index]
      return copy && mount.mode === 'rw' ? [{ mount, manifest: copy.manifest }] : []
    })
    return new MicrovmSandbox(plan, place, machine, {
      shared,
      since: status.get('Filled') ?? '0',
      refuses: this.#parts.refuses,
      most: kind.diskMb * 1024 * 1024,
    })
  }

  async close(): Promise<void> {
    await this.#pool.close()
  }

  async #kindOf(plan: Plan): Promise<Kind> {
    const memoryMb = machineMemoryMb(plan)
    if (memoryMb === undefined)
      throw new SandboxError('resource-limit-exceeded', `no machine here has ${plan.limits.memoryMb} MB`, {
        hint: 'ask for less memory',
      })
    const image = await this.#images.get(await this.#imageOf(plan))
    return {
      image,
      memoryMb,
      diskMb: diskMb(plan),
      cpus: Math.max(1, Math.ceil(plan.limits.cpus ?? 1)) + 0.5,
    }
  }

  async #imageOf({ image }: Plan): Promise<Image> {
    const { images, onProgress } = this.#parts
    if (image === undefined) return images.default({ onProgress })
    const found = images.get(image)
    if (found) return found
    throw new SandboxError('invalid-input', `there is no image \`${image}\` here`, {
      hint: `make one: ringfence image build ${image}`,
    })
  }

  #template(kind: Kind): ReturnType<MachineTemplates['get']> {
    return this.#templates.get(kind, (path) => makeDisk(path, kind.diskMb))
  }

  /**
   * A clone, or where none can be made a machine that starts from nothing: slower, and the same in everything else.
   * A template that does not load is made anew the next time.
   */
  async #start(kind: Kind): Promise<GuestMachine> {
    const { driver, onProgress, stateDir } = this.#parts
    const dir = machineDirectory(stateDir)
    try {
      const disk = join(dir, 'disk')
      const [saved] = await Promise.all([
        this.#template(kind).catch((error: Error) => void onProgress?.(`no template: ${error.message}`)),
        makeDisk(disk, kind.diskMb),
      ])
      const spec: MachineSpec = { ...kind, disk }
      if (saved)
        try {
          return new GuestMachine(await driver.clone(spec, saved), dir, true)
        } catch (error) {
          onProgress?.(`the template cannot be used: ${(error as Error).message}`)
          await this.#templates.forget(kind)
        }
      const machine = new GuestMachine(await driver.boot(spec), dir, false)
      await machine.up(BOOT_MS)
      return machine
    } catch (error) {
      rmSync(dir, { recursive: true, force: true })
      throw error
    }
  }

  readonly #layersOf = (status: ReadonlyMap<string, string>): readonly string[] => [
    'microvm',
    ...(this.emulated ? ['emulated'] : []),
    ...(status.get('Seccomp') === '2' ? ['seccomp'] : []),
    ...(status.get('NoNewPrivs') === '1' ? ['no-new-privs'] : []),
    ...(/^0+$/.test(status.get('CapEff') ?? '') ? ['no-capabilities'] : []),
    ...(Number(status.get('Landlock')) > 0 ? [`landlock(abi ${status.get('Landlock')})`] : []),
    ...(status.get('Guard') === '1' ? ['guard'] : []),
    'cgroup',
  ]
}

/** What no machine can do. SECURITY: refused by name, never left out. */
function refuseUnkept(plan: Plan): void {
  if (plan.unixSockets.length > 0)
    throw new SandboxError('unsupported', 'microvm cannot pass sockets of the host in', {
      hint: 'leave out --unix-socket, or use bubblewrap',
    })
  const nested = plan.mounts.find((mount) => isInside(mount, plan.mounts))
  if (nested)
    throw new SandboxError(
      'unsupported',
      `microvm copies \`${nested.target}\` and what it lies in only once`,
      {
        hint: 'grant the outer directory alone',
      },
    )
}

/** A copy has no second name for a file: two grants of the same place would come apart. */
const isInside = (inner: Mount, mounts: readonly Mount[]): boolean =>
  mounts.some(
    (outer) =>
      outer !== inner &&
      `${inner.real}/`.startsWith(`${outer.real}/`) &&
      outer.mode === 'rw' &&
      inner.mode === 'rw',
  )
