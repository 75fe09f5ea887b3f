import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { WarmPool } from '../../host/warm-pool.ts'
import { MemoryFile } from '../memory-file.ts'
import type { Driver, MachineSnapshot, MachineSpec } from './drivers/driver.ts'
import { explained, formatDisk, makeBareDisk } from './files/disk.ts'
import { GuestMachine, type Hibernation, INPUTS, machineDirectory } from './guest-machine.ts'
import { POOL_WARM_UP_COMMANDS, WARM_UP_COMMANDS, WARM_UP_FIELDS, WARM_UP_MOUNTS } from './machine-config.ts'
import { MachineTemplates } from './template.ts'

/** Everything that a new machine depends on. A disk with size 0 has no file system. */
export type MachineKind = Omit<MachineSpec, 'disk' | 'inputs'> & {
  readonly diskMb: number
  /** The disk of a writable root, which outlives the machine; absent: one that ends with it. */
  readonly disk?: string | undefined
}

/** What machines are provisioned with. */
export type MachineProvisionerParts = {
  readonly stateDir: string
  readonly driver: Driver
  readonly filter: Uint8Array
  readonly ready: number
  readonly clones: boolean
  readonly onProgress: (text: string) => void
}

const BOOT_MS = 60_000

/** Provides machines: from the pool, by cloning a template, or by booting. */
export class MachineProvisioner {
  readonly #parts: MachineProvisionerParts
  readonly #templates: MachineTemplates
  readonly #pool: WarmPool<GuestMachine>

  constructor(parts: MachineProvisionerParts) {
    this.#parts = parts
    this.#pool = new WarmPool({
      size: parts.ready,
      isUsable: (machine) => machine.isAlive(),
      discard: (machine) => machine.destroy(),
    })
    const dir = join(parts.stateDir, 'microvm', 'templates')
    this.#templates = new MachineTemplates({
      dir,
      driver: parts.driver,
      onProgress: parts.onProgress,
      warm: async (machine) => {
        const guest = new GuestMachine(machine, join(dir, 'none'), false)
        await guest.up(BOOT_MS)
        await this.#warm(guest, WARM_UP_COMMANDS)
      },
    })
  }

  template(kind: MachineKind): Promise<MachineSnapshot> {
    return this.#templates.get(kind, makeBareDisk)
  }

  /** An unused machine; it may be paused. */
  async get(kind: MachineKind): Promise<GuestMachine> {
    if (this.#parts.ready === 0 || kind.disk !== undefined) return this.start(kind)
    const key = `${await this.#templates.keyOf(kind)}|${kind.diskMb}|${kind.cpus}`
    return (await this.#pool.take(key, () => this.#asleep(kind))) ?? this.start(kind)
  }

  /** Restores a clone, gives it an identity, warms it up and pauses it. */
  async #asleep(kind: MachineKind): Promise<GuestMachine> {
    const machine = await this.start(kind)
    try {
      await this.#warm(machine, POOL_WARM_UP_COMMANDS)
      await machine.pause()
      return machine
    } catch (error) {
      await machine.destroy()
      throw error
    }
  }

  #warm(machine: GuestMachine, lines: readonly string[]): Promise<void> {
    return machine.warm({ mounts: WARM_UP_MOUNTS, fields: WARM_UP_FIELDS, filter: this.#parts.filter }, lines)
  }

  /**
   * Starts a clone, or boots a machine if there is no template: slower, but otherwise the same.
   * A template that does not load is created again the next time.
   */
  async start(kind: MachineKind): Promise<GuestMachine> {
    const dir = this.#directory()
    const spec = { ...kind, disk: kind.disk ?? join(dir, 'disk'), inputs: join(dir, INPUTS) }
    try {
      for (const path of [spec.disk, spec.inputs]) if (path !== kind.disk) makeBareDisk(path)
      // The guest reads its disk only when told to, so both can be prepared in parallel.
      const formatting = kind.diskMb > 0 ? formatDisk(spec.disk, kind.diskMb) : undefined
      const [started, formatted] = await Promise.allSettled([this.#started(spec, dir), formatting])
      if (started.status === 'rejected') throw started.reason
      if (formatted.status === 'fulfilled') return started.value
      await started.value.destroy()
      throw formatted.reason
    } catch (error) {
      rmSync(dir, { recursive: true, force: true })
      throw explained(error, dir)
    }
  }

  #directory(): string {
    const { stateDir } = this.#parts
    try {
      return machineDirectory(stateDir)
    } catch (error) {
      throw explained(error, stateDir)
    }
  }

  async #started(spec: MachineSpec, dir: string): Promise<GuestMachine> {
    const { driver, onProgress, clones } = this.#parts
    const noTemplate = (error: Error): undefined => void onProgress(`no template: ${error.message}`)
    const saved = clones ? await this.#templates.get(spec, makeBareDisk).catch(noTemplate) : undefined
    return (saved && (await this.#clone(spec, saved, dir))) ?? (await this.#boot(spec, dir, driver))
  }

  #hibernation(spec: MachineSpec, dir: string): Hibernation {
    // Pages have a few bytes of their own, and there are the devices.
    const mostMb = Math.ceil(spec.memoryMb * 1.05) + 64
    const saved = new MemoryFile(join(dir, 'memory'))
    return { saved, mostMb, restore: (file) => this.#parts.driver.restore(spec, file) }
  }

  async #clone(spec: MachineSpec, saved: MachineSnapshot, dir: string): Promise<GuestMachine | undefined> {
    try {
      return new GuestMachine(
        await this.#parts.driver.clone(spec, saved),
        dir,
        true,
        this.#hibernation(spec, dir),
      )
    } catch (error) {
      this.#parts.onProgress(`the template cannot be used: ${(error as Error).message}`)
      await this.#templates.forget(spec)
      return undefined
    }
  }

  async #boot(spec: MachineSpec, dir: string, driver: Driver): Promise<GuestMachine> {
    const machine = new GuestMachine(await driver.boot(spec), dir, false, this.#hibernation(spec, dir))
    try {
      await machine.up(BOOT_MS)
      return machine
    } catch (error) {
      await machine.destroy()
      throw error
    }
  }

  close(): Promise<void> {
    return this.#pool.close()
  }
}
