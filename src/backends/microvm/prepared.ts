import { READY_FILLED, READY_TOKEN, USER_UID } from '../../host/guest/protocol.ts'
import type { TunnelTaker } from '../../host/guest/session.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Plan } from '../../model/plan.ts'
import { userFor } from '../container-files.ts'
import { ContainerTransport } from '../container-handle.ts'
import type { SharedMount } from '../copy-back.ts'
import { CopyIn } from '../copy-in.ts'
import { containerFields } from '../guest-config.ts'
import type { GuestTransport } from '../guest-sandbox.ts'
import { isLarge, makeInputs } from './files/inputs.ts'
import type { GuestMachine } from './guest-machine.ts'
import { containerSettingFields, guestMountsOf } from './machine-config.ts'

/** For tests only: damages what a machine is told and given, to verify that the attack tests notice. */
export type MachineSabotage = {
  readonly identity?: (fields: readonly string[]) => readonly string[]
  readonly containerFields?: (fields: readonly string[]) => readonly string[]
  readonly config?: (fields: readonly string[]) => readonly string[]
  readonly filter?: Uint8Array
  /** The plan that decides what is copied in. */
  readonly copied?: (plan: Plan) => Plan
}

const unharmed = (fields: readonly string[]): readonly string[] => fields

/** How a machine is prepared. */
export type Settings = {
  readonly memoryMb: number
  readonly filter: Uint8Array
  readonly layersOf: GuestTransport['layersOf']
  readonly sabotage?: MachineSabotage | undefined
}

/** A command that warms up the emulator, and how oftenit runs: after the second time hardly anything new is translated. */
const WARMING = ['argv', '/bin/sh', 'argv', '-c', 'argv', 'echo']
const WARM_UPS = 2

/** A machine with a container that is ready for commands. */
export class Prepared {
  readonly machine: GuestMachine
  readonly transport: ContainerTransport
  readonly shared: readonly SharedMount[]
  /** When the copies were complete, on the guest's clock. */
  readonly since: string
  readonly #tunnels: { take?: TunnelTaker | undefined }

  private constructor(fields: Pick<Prepared, 'machine' | 'transport' | 'shared' | 'since'>, tunnels: object) {
    this.machine = fields.machine
    this.transport = fields.transport
    this.shared = fields.shared
    this.since = fields.since
    this.#tunnels = tunnels
  }

  static async make(plan: Plan, machine: GuestMachine, settings: Settings): Promise<Prepared> {
    const { sabotage = {} } = settings
    const identity = await machine.identify(sabotage.identity)
    const judged = sabotage.copied?.(plan) ?? plan
    const mounts = guestMountsOf(plan)
    const copies = mounts.map((mount) =>
      plan.own.includes(mount.target) ? undefined : new CopyIn(judged, mount),
    )
    const large = new Map(
      mounts.flatMap((mount, index): [number, CopyIn][] => {
        const copy = copies[index]
        return copy && isLarge(mount) ? [[index, copy]] : []
      }),
    )
    await makeInputs(machine.inputs, large, plan.root && plan.root.ids.stored + USER_UID)
    const { memoryMb } = settings
    const machineSettings = {
      user: userFor(plan),
      hostname: identity.hostname,
      memoryMb,
      images: new Set(large.keys()),
    }
    await machine.furnish(
      (sabotage.containerFields ?? unharmed)(containerSettingFields(plan, machineSettings)),
      copies.map((copy, index) => (large.has(index) ? undefined : copy?.stream())),
    )
    const tunnels: { take?: TunnelTaker } = {}
    const onTunnel = plan.network.mode === 'fetch' ? passTo(tunnels) : undefined
    const fields = (sabotage.config ?? unharmed)(
      containerFields(plan, { supervises: true, countsSockets: true, isolates: true }),
    )
    const agentConfig = { fields, expected: [], filter: sabotage.filter ?? settings.filter }
    const transport = new ContainerTransport(plan, machine, agentConfig, {
      layersOf: settings.layersOf,
      onTunnel,
    })
    // The handshake left the channel paused, so that nothing is lost between two listeners.
    machine.channel.resume()
    await transport.ready()
    const status = await (await transport.session()).ready
    if (status.get(READY_TOKEN) !== identity.token) {
      await transport.close()
      throw new SandboxError('launch-failed', 'the machine is not the one that was started')
    }
    machine.renewBy(() => transport.session())
    const shared = mounts.flatMap((mount, index): SharedMount[] => {
      const copy = copies[index]
      return copy && mount.mode === 'rw' ? [{ mount, manifest: copy.manifest }] : []
    })
    return new Prepared({ machine, transport, shared, since: status.get(READY_FILLED) ?? '0' }, tunnels)
  }

  /** Sets the receiver of the sandbox's proxy connections. */
  handTo(onTunnel: TunnelTaker | undefined): void {
    this.#tunnels.take = onTunnel
  }

  isAlive(): boolean {
    return !this.machine.channel.destroyed
  }

  /** Warms the machine up and pauses it; then it costs only memory. */
  async sleep(): Promise<void> {
    try {
      const session = await this.transport.session()
      for (let run = 0; run < WARM_UPS; run++)
        await session.start({ fields: WARMING, onOutput: () => undefined }).ended
      await this.machine.pause()
    } catch (error) {
      await this.destroy()
      throw error
    }
  }

  /** SECURITY: resumes with new randomness; the old one was created before the sandbox was requested. */
  async wake(): Promise<void> {
    await this.machine.resume()
  }

  async destroy(): Promise<void> {
    await this.transport.close()
  }
}

/** Rejects connections as long as the machine is not assigned to a sandbox. */
const passTo =
  (tunnels: { readonly take?: TunnelTaker }): TunnelTaker =>
  (stream, secrets) => {
    if (tunnels.take) tunnels.take(stream, secrets)
    else stream.destroy()
  }
