import { rmSync } from 'node:fs'
import { join } from 'node:path'
import type { Duplex } from 'node:stream'
import { receiveInto } from '../../../host/net/receive-file.ts'
import type { Cgroup } from '../../../host/process/cgroup.ts'
import type { StreamProcess } from '../../../host/process/channel-process.ts'
import { treeUsage } from '../../../host/system.ts'
import { SandboxError } from '../../../model/errors.ts'
import type { Usage } from '../../backend.ts'
import type { Machine } from './driver.ts'
import { DESCRIPTORS, EXIT } from './launch.ts'
import { Monitor } from './qmp.ts'

/** Bytes per second; by default QEMU saves as slowly as over a network. */
const UNLIMITED = 2 ** 40

/** The state of the devices of a machine whose memory is in a file. */
const MOST_STATE = 64 * 1024 * 1024

/** One QEMU process. */
export class QemuMachine implements Machine {
  readonly channel: Duplex
  readonly ended: Promise<string>
  readonly #hosted: StreamProcess
  readonly #monitor: Monitor
  readonly #cgroup: Cgroup | undefined
  readonly #exit: string
  #gone: Promise<void> | undefined

  private constructor(hosted: StreamProcess, cgroup: Cgroup | undefined, exit: string) {
    this.#hosted = hosted
    this.#cgroup = cgroup
    this.#exit = exit
    const [channel, monitor] = hosted.streams as [Duplex, Duplex]
    this.channel = channel
    channel.on('error', () => {})
    this.#monitor = new Monitor(monitor)
    this.ended = hosted.exited.then(
      ({ said }) => said.trim().split('\n').at(-1) ?? '',
      (error: Error) => error.message,
    )
  }

  static async greet(hosted: StreamProcess, cgroup: Cgroup | undefined, exit: string): Promise<QemuMachine> {
    const machine = new QemuMachine(hosted, cgroup, exit)
    try {
      await machine.#call('qmp_capabilities')
      return machine
    } catch (error) {
      await machine.kill()
      throw error
    }
  }

  get pid(): number {
    return this.#hosted.pid
  }

  usage(): Usage | undefined {
    return treeUsage(this.#hosted.pid)
  }

  /** QEMU's error output says more than a missing response. */
  async #call(name: string, args?: Record<string, unknown>): Promise<unknown> {
    try {
      return await this.#monitor.call(name, args)
    } catch (error) {
      const late = new Promise<string>((resolve) => setTimeout(() => resolve(''), 500).unref())
      const errorText = await Promise.race([this.ended, late])
      throw errorText ? new SandboxError('launch-failed', `qemu: ${errorText}`) : error
    }
  }

  async pause(): Promise<void> {
    await this.#call('stop')
  }

  async resume(): Promise<void> {
    await this.#call('cont')
  }

  /** Loads the state from the last descriptor. */
  async load(): Promise<void> {
    await this.#ignoreShared()
    await this.#call('migrate-incoming', { uri: `fd:${DESCRIPTORS.state}` })
    await this.#monitor.migrated()
  }

  /** Memory that is already in its own file is not saved again. */
  async #ignoreShared(): Promise<void> {
    const capabilities = [{ capability: 'x-ignore-shared', state: true }]
    await this.#call('migrate-set-capabilities', { capabilities })
  }

  async save(state: string): Promise<void> {
    await this.pause()
    await this.#write(state, MOST_STATE)
    await this.kill()
  }

  /** The channel stays open for its reader: it ends when everything that the guest sent was read. */
  async hibernate(file: string, mostBytes: number): Promise<void> {
    await this.#call('migrate-set-parameters', { 'max-bandwidth': UNLIMITED })
    await this.#write(file, mostBytes)
    this.#gone ??= this.#kill(true)
    await this.#gone
  }

  /** Writes the state through the socket; the machine still exists then, whether that worked or not. */
  async #write(file: string, mostBytes: number): Promise<void> {
    await this.#ignoreShared()
    const received = await receiveInto(join(this.#exit, 's'), file, mostBytes)
    try {
      await this.#call('migrate', { uri: `unix:${EXIT}/s` })
      await this.#monitor.migrated()
      await received.written
    } finally {
      received.close()
    }
  }

  kill(): Promise<void> {
    this.#gone ??= this.#kill()
    return this.#gone
  }

  async #kill(keepsChannel = false): Promise<void> {
    this.#hosted.kill()
    if (!keepsChannel) this.channel.destroy()
    await this.#hosted.exited.catch(() => {})
    await this.#cgroup?.remove()
    rmSync(this.#exit, { recursive: true, force: true })
  }
}
