import { existsSync } from 'node:fs'
import { monotonicMs } from '../../host/clock.ts'
import { READY_GUARD, READY_IDS, READY_LANDLOCK } from '../../host/guest/protocol.ts'
import { hostFingerprint, systemProgram } from '../../host/system.ts'
import { WarmPool } from '../../host/warm-pool.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Guarantee } from '../../model/guarantee.ts'
import { isPlan, type Plan } from '../../model/plan.ts'
import type { Isolation } from '../../model/spec.ts'
import type { Backend, OpenOptions, Probe } from '../backend.ts'
import { type Arch, assemble, encode } from '../bubblewrap/seccomp.ts'
import { refuseUnfit } from '../container-files.ts'
import type { Image, ImageStore } from '../images/store.ts'
import { isIsolated } from '../isolated-command.ts'
import { BETWEEN, isolatesCommands } from '../isolation-probe.ts'
import type { Driver } from './drivers/driver.ts'
import type { ProtectedNameOf } from './files/copy-out.ts'
import { sweepMachines } from './guest-machine.ts'
import { GuestImages } from './image/image.ts'
import { diskMb, machineMemoryMb } from './machine-config.ts'
import { type MachineKind, MachineProvisioner } from './machine-provisioner.ts'
import { isAlone, kindOfPlan, refuseUnkept } from './plans.ts'
import { type MachineSabotage, Prepared } from './prepared.ts'
import { MicrovmSandbox } from './sandbox.ts'

/** What the microVM backend is made of. */
export type MicrovmParts = {
  readonly agent: string
  /** A small plan that the probe runs, also with commands that are isolated from each other. */
  readonly probePlan: (isolation?: Isolation) => Plan
  readonly images: ImageStore
  readonly stateDir: string
  readonly driver: Driver
  /** Whether guests are emulated; then the backend is used only by name. */
  readonly emulated: () => boolean
  /** Which paths may not be copied back from a guest (policy/paths/protect.ts). */
  readonly refuses: ProtectedNameOf
  /** How many machines are kept ready for each kind. */
  readonly ready?: number
  readonly onProgress?: ((text: string) => void) | undefined
  /** `false`: every machine boots, as if there were no template. For benchmarks. */
  readonly clones?: boolean
  readonly sabotage?: MachineSabotage
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
 * A CPU limit is enforced in the guest and on the host, but an emulated guest counts time that the host gave to other
 * processes as its own: its measurements prove nothing, so there the guarantee is not claimed.
 */
const claimsOf = (emulated: boolean): readonly Guarantee[] => (emulated ? CLAIMS : [...CLAIMS, 'limit.cpu'])

/** Virtual machines: each sandbox has its own kernel, cloned from a machine that was started in advance. */
export function microvm(parts: MicrovmParts): Backend & { readonly close: () => Promise<void> } {
  return new Microvm(parts)
}

class Microvm implements Backend {
  readonly name = 'microvm'
  readonly level = 'microvm'
  readonly byNameOnly = false
  readonly runsImages = true
  readonly writableRoots = true
  readonly #parts: MicrovmParts
  readonly #images: GuestImages
  readonly #machines: MachineProvisioner
  readonly #ready: WarmPool<Prepared>
  readonly #filter = encode(assemble(process.arch as Arch))

  constructor(parts: MicrovmParts) {
    const { ready = 0, clones = true, onProgress = () => {}, stateDir, driver } = parts
    this.#parts = parts
    this.#images = new GuestImages(parts)
    this.#machines = new MachineProvisioner({
      stateDir,
      driver,
      filter: this.#filter,
      ready,
      clones,
      onProgress,
    })
    this.#ready = new WarmPool({
      size: ready,
      isUsable: (prepared) => prepared.isAlive(),
      discard: (prepared) => prepared.destroy(),
    })
  }

  get emulated(): boolean {
    return this.#parts.emulated()
  }

  async probe(): Promise<Probe> {
    const missing = await this.#missing()
    if (missing) return { available: false, ...missing }
    try {
      const plan = this.#parts.probePlan()
      // The template is created once for all sandboxes, so it does not count towards the probe's time.
      await this.#machines.template(await this.#kindOf(plan))
      const started = monotonicMs()
      const sandbox = await this.open(plan)
      try {
        const { outcome } = await sandbox.exec({ argv: ['true'] })
        if (outcome.kind !== 'exited' || outcome.code !== 0) throw new Error('the probe command failed')
      } finally {
        await sandbox.close()
      }
      const startMs = monotonicMs() - started
      const between = (await this.#isolates()) ? BETWEEN : []
      return { available: true, guarantees: [...claimsOf(this.emulated), ...between], startMs }
    } catch (error) {
      const fix = (error instanceof SandboxError ? error.hint : undefined) ?? BUILD
      return { available: false, reason: (error as Error).message, fix }
    }
  }

  /** Whether a command gets namespaces that are not those of its sandbox; a kernel that forbids it keeps everything else. */
  async #isolates(): Promise<boolean> {
    const plan = this.#parts.probePlan('command')
    return isIsolated(plan) && isolatesCommands(() => this.open(plan))
  }

  fingerprint(): string {
    return hostFingerprint([systemProgram('qemu-system-x86_64') ?? 'qemu', this.#parts.agent])
  }

  async #missing(): Promise<{ readonly reason: string; readonly fix: string } | undefined> {
    const { agent, driver } = this.#parts
    if (!existsSync(agent)) return { reason: 'the guest agent is not built', fix: 'npm run setup' }
    const probe = await driver.probe()
    if (!probe.usable) return { reason: probe.reason, fix: probe.fix }
    return this.#images.hasKernel ? undefined : { reason: 'no guest kernel has been built yet', fix: BUILD }
  }

  async open(plan: Plan, options: OpenOptions = {}): Promise<MicrovmSandbox> {
    if (!isPlan(plan)) throw new SandboxError('internal', 'a backend accepts only plans that policy made')
    if (plan.network.mode === 'fetch' && !options.onTunnel)
      throw new SandboxError('internal', 'a sandbox with network mode fetch needs a proxy')
    refuseUnfit(plan, this.name)
    refuseUnkept(plan)
    const missing = await this.#missing()
    if (missing) throw new SandboxError('backend-unavailable', missing.reason, { hint: missing.fix })
    const kind = await this.#kindOf(plan)
    const prepared = await this.#waitingFor(plan, kind, options.owner ?? '')
    const stands = prepared ?? (await this.#prepare(plan, kind, options.signal))
    stands.handTo(options.onTunnel)
    const sharing = { refuses: this.#parts.refuses, most: kind.diskMb * 1024 * 1024 }
    return new MicrovmSandbox(plan, stands, sharing)
  }

  /** SECURITY: a pooled machine was created for the same owner and the same plan; it never contains files of the host. */
  async #waitingFor(plan: Plan, kind: MachineKind, owner: string): Promise<Prepared | undefined> {
    if (plan.root || !isAlone(plan)) return undefined
    const key = `${owner}|${kind.image.digest}|${kindOfPlan(plan)}`
    const found = await this.#ready.take(key, async () => {
      const prepared = await Prepared.make(plan, await this.#machines.start(kind), this.#settings(kind))
      await prepared.sleep()
      return prepared
    })
    if (!found) return undefined
    try {
      await found.wake()
      return found
    } catch {
      await found.destroy()
      return undefined
    }
  }

  async #prepare(plan: Plan, kind: MachineKind, signal: AbortSignal | undefined): Promise<Prepared> {
    const machine = await this.#machines.get(kind)
    const abort = (): void => void machine.destroy()
    signal?.addEventListener('abort', abort, { once: true })
    try {
      if (signal?.aborted) throw new SandboxError('wrong-state', 'the request was cancelled')
      return await Prepared.make(plan, machine, this.#settings(kind))
    } catch (error) {
      await machine.destroy()
      throw error
    } finally {
      signal?.removeEventListener('abort', abort)
    }
  }

  #settings({ memoryMb }: MachineKind): Parameters<typeof Prepared.make>[2] {
    const { sabotage } = this.#parts
    return { memoryMb, filter: this.#filter, layersOf: this.#layersOf, sabotage }
  }

  async reap(): Promise<void> {
    sweepMachines(this.#parts.stateDir)
  }

  async close(): Promise<void> {
    await Promise.all([this.#ready.close(), this.#machines.close()])
  }

  async #kindOf(plan: Plan): Promise<MachineKind> {
    const memoryMb = machineMemoryMb(plan)
    if (memoryMb === undefined)
      throw new SandboxError(
        'resource-limit-exceeded',
        `a virtual machine cannot have ${plan.limits.memoryMb} MB of memory on this host`,
        {
          hint: 'ask for less memory',
        },
      )
    const tree = plan.root?.image
    const image = await (tree ? this.#images.ofTree(tree) : this.#images.get(await this.#imageOf(plan)))
    return {
      image,
      memoryMb,
      diskMb: plan.mounts.length > 0 && !plan.root ? diskMb(plan) : 0,
      ...(plan.root ? { disk: plan.root.disk.real } : {}),
      cpus: Math.max(1, Math.ceil(plan.limits.cpus ?? 1)) + 0.5,
    }
  }

  async #imageOf({ image }: Plan): Promise<Image> {
    const { images, onProgress } = this.#parts
    if (image === undefined) return images.default({ onProgress })
    const found = images.get(image)
    if (found) return found
    throw new SandboxError('invalid-input', `no such image \`${image}\``, {
      hint: `build one: ringfence image build ${image}`,
    })
  }

  readonly #layersOf = (status: ReadonlyMap<string, string>): readonly string[] => [
    'microvm',
    ...(this.emulated ? ['emulated'] : []),
    ...(status.get('Seccomp') === '2' ? ['seccomp'] : []),
    ...(status.get('NoNewPrivs') === '1' ? ['no-new-privs'] : []),
    ...(/^0+$/.test(status.get('CapEff') ?? '') ? ['no-capabilities'] : []),
    ...(status.has(READY_IDS) ? [`root-user(id ${status.get(READY_IDS)} in the machine)`] : []),
    ...(Number(status.get(READY_LANDLOCK)) > 0 ? [`landlock(abi ${status.get(READY_LANDLOCK)})`] : []),
    ...(status.get(READY_GUARD) === '1' ? ['guard'] : []),
    'cgroup',
  ]
}

const BUILD = 'ringfence image build --kind microvm'
