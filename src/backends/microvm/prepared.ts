import type { Duplex } from 'node:stream'
import { READY_FILLED, READY_TOKEN } from '../../host/guest/protocol.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Mount, Plan } from '../../model/plan.ts'
import { userFor } from '../container-files.ts'
import { ContainerTransport } from '../container-handle.ts'
import { CopyIn, type Manifest } from '../copy-in.ts'
import { containerFields } from '../guest-config.ts'
import type { GuestTransport } from '../guest-sandbox.ts'
import { isLarge, makeInputs } from './files/inputs.ts'
import type { GuestMachine } from './guest-machine.ts'
import { containerSettingFields, guestMountsOf } from './machine-config.ts'

/** A directory of the host that the guest has a copy of and may change. */
export type SharedMount = { readonly mount: Mount; readonly manifest: Manifest }

/** For tests alone: damage to what a machine is told and given. The proofs are worth something if they notice it. */
export type MachineSabotage = {
  readonly identity?: (fields: readonly string[]) => readonly string[]
  readonly places?: (fields: readonly string[]) => readonly string[]
  readonly config?: (fields: readonly string[]) => readonly string[]
  readonly filter?: Uint8Array
  /** The plan that decides what is copied in. */
  readonly copied?: (plan: Plan) => Plan
}

const unharmed = (fields: readonly string[]): readonly string[] => fields

export type Settings = {
  readonly memoryMb: number
  readonly filter: Uint8Array
  readonly layersOf: GuestTransport['layersOf']
  readonly sabotage?: MachineSabotage | undefined
}

/** One command of ours, so that the emulator has read what every command passes. */
const WARMING = ['argv', '/bin/sh', 'argv', '-c', 'argv', 'true']

/** A machine with a container in it that is ready for commands. */
export class Prepared {
  readonly machine: GuestMachine
  readonly place: ContainerTransport
  readonly shared: readonly SharedMount[]
  /** When the copies were complete, by the guest's clock. */
  readonly since: string
  readonly #tunnels: { take?: ((stream: Duplex) => void) | undefined }

  private constructor(fields: Pick<Prepared, 'machine' | 'place' | 'shared' | 'since'>, tunnels: object) {
    this.machine = fields.machine
    this.place = fields.place
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
    await makeInputs(machine.inputs, large)
    const { memoryMb } = settings
    const told = { user: userFor(plan), hostname: identity.hostname, memoryMb, images: new Set(large.keys()) }
    await machine.furnish(
      (sabotage.places ?? unharmed)(containerSettingFields(plan, told)),
      copies.map((copy, index) => (large.has(index) ? undefined : copy?.stream())),
    )
    const tunnels: { take?: (stream: Duplex) => void } = {}
    const onTunnel = plan.network.mode === 'fetch' ? passTo(tunnels) : undefined
    const fields = (sabotage.config ?? unharmed)(containerFields(plan, { supervises: true }))
    const orders = { fields, expected: [], filter: sabotage.filter ?? settings.filter }
    const place = new ContainerTransport(plan, machine, orders, { layersOf: settings.layersOf, onTunnel })
    // The greeting left it still, so that nothing gets lost between two listeners.
    machine.channel.resume()
    await place.ready()
    const status = await (await place.session()).ready
    if (status.get(READY_TOKEN) !== identity.token) {
      await place.close()
      throw new SandboxError('launch-failed', 'the machine is not the one that was started')
    }
    machine.renewBy(() => place.session())
    const shared = mounts.flatMap((mount, index): SharedMount[] => {
      const copy = copies[index]
      return copy && mount.mode === 'rw' ? [{ mount, manifest: copy.manifest }] : []
    })
    return new Prepared({ machine, place, shared, since: status.get(READY_FILLED) ?? '0' }, tunnels)
  }

  /** Who gets the connections to the proxy from now on. */
  handTo(onTunnel: ((stream: Duplex) => void) | undefined): void {
    this.#tunnels.take = onTunnel
  }

  isAlive(): boolean {
    return !this.machine.channel.destroyed
  }

  /** Warmed, and then still: it costs nothing but memory. */
  async sleep(): Promise<void> {
    try {
      const session = await this.place.session()
      await session.start({ fields: WARMING, onOutput: () => undefined }).ended
      await this.machine.pause()
    } catch (error) {
      await this.destroy()
      throw error
    }
  }

  /** SECURITY: with new randomness; what it had was made before anybody asked for it. */
  async wake(): Promise<void> {
    await this.machine.resume()
  }

  async destroy(): Promise<void> {
    await this.place.close()
  }
}

/** Nobody has it yet: then nobody may reach out of it either. */
const passTo =
  (tunnels: { readonly take?: (stream: Duplex) => void }) =>
  (stream: Duplex): void => {
    if (tunnels.take) tunnels.take(stream)
    else stream.destroy()
  }
