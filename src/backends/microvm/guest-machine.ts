import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import type { Duplex } from 'node:stream'
import { Session } from '../../host/guest/session.ts'
import { isAlive, processKey } from '../../host/system.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Usage } from '../backend.ts'
import type { ContainerHandle } from '../container-handle.ts'
import { ChannelLease } from './channel-lease.ts'
import type { Machine } from './drivers/driver.ts'
import { removeTree } from './files/disk.ts'
import { fieldsOf, freshness, type Identity, newIdentity } from './identity.ts'
import { InitHandshake } from './init-handshake.ts'

const ANSWER_MS = 15_000
/** The file of the drive for large inputs, in a machine's directory. */
export const INPUTS = 'inputs'

/** A private directory for what one machine has on the host; what dead processes left goes first. */
export function machineDirectory(stateDir: string): string {
  const run = join(stateDir, 'run')
  mkdirSync(run, { recursive: true, mode: 0o700 })
  if (!swept.has(run)) sweepMachines(stateDir)
  swept.add(run)
  return mkdtempSync(join(run, `machine-${processKey(process.pid)}-`))
}

const swept = new Set<string>()

/** Removes what processes that are dead left of their machines; the machines themselves died with them. */
export function sweepMachines(stateDir: string): void {
  const run = join(stateDir, 'run')
  for (const name of existsSync(run) ? readdirSync(run) : []) {
    const owner = /^machine-(\d+-\d+)-/.exec(name)?.[1]
    if (owner !== undefined && !isAlive(owner)) removeTree(join(run, name))
  }
}

/** A machine of ours with its `/init` on the other end of the channel. */
export class GuestMachine implements ContainerHandle {
  readonly channel: Duplex
  /** No process of the guest is one of the host's. */
  readonly pid = undefined
  readonly group = undefined
  readonly oomKills = 0
  readonly #machine: Machine
  readonly #dir: string
  readonly #greeting: InitHandshake
  #session: (() => Promise<Session>) | undefined
  #still: boolean
  #gone: Promise<void> | undefined

  constructor(machine: Machine, dir: string, still: boolean) {
    this.#machine = machine
    this.#dir = dir
    this.#still = still
    this.channel = machine.channel
    this.#greeting = new InitHandshake(machine.channel)
  }

  get hostPid(): number {
    return this.#machine.pid
  }

  /** Where an image for its third drive goes, as long as the guest was not told to look. */
  get inputs(): string {
    return join(this.#dir, INPUTS)
  }

  usage(): Usage | undefined {
    return this.#machine.usage()
  }

  /** Waits for a machine that was just started. */
  async up(withinMs: number): Promise<void> {
    await this.#expect('waiting', withinMs)
  }

  /** The hypervisor's last words say more than that it is gone. */
  async #expect(kind: 'waiting' | 'renewed', withinMs: number): Promise<void> {
    try {
      await this.#greeting.expect(kind, withinMs)
    } catch (error) {
      const said = await this.said()
      throw said ? new SandboxError('launch-failed', `the machine ended: ${said}`) : error
    }
  }

  /** Makes it somebody of its own. SECURITY: the first word after every clone; nothing runs in it before. */
  async identify(sabotage = (fields: readonly string[]) => fields): Promise<Identity> {
    if (this.#still) await this.#wake()
    const identity = newIdentity()
    this.#greeting.send('identity', fieldsOf(sabotage(identity.fields)))
    await this.#expect('renewed', ANSWER_MS)
    return identity
  }

  /** Disk, mounts and small files, and the content of the mounts. */
  async furnish(
    fields: readonly string[],
    tars: readonly (Iterable<Uint8Array> | undefined)[],
  ): Promise<void> {
    this.#greeting.send('expect', fieldsOf(fields))
    for (const [index, tar] of tars.entries()) if (tar) await this.#greeting.fill(index, tar)
  }

  /** A container for commands of ours, which leaves nothing: what it ran is in the guest's caches then. */
  async warm(
    orders: {
      readonly places: readonly string[]
      readonly fields: readonly string[]
      readonly filter: Uint8Array
    },
    lines: readonly string[],
  ): Promise<void> {
    await this.identify()
    const lease = new ChannelLease(this.channel)
    const session = new Session(lease)
    session.send('expect', 0, fieldsOf(orders.places))
    session.send('configure', 0, fieldsOf(orders.fields))
    session.send('filter', 0, orders.filter)
    session.send('go', 0)
    await session.ready
    for (const line of lines) {
      const fields = ['argv', '/bin/sh', 'argv', '-c', 'argv', line]
      await session.start({ fields, onOutput: () => undefined }).ended
    }
    session.send('leave', 0)
    // What the session wrote last must be out before the channel is somebody else's.
    await new Promise((resolve) => lease.write('', resolve))
    const waiting = this.#expect('waiting', ANSWER_MS)
    lease.removeAllListeners('close')
    lease.destroy()
    this.channel.resume()
    await waiting
  }

  /** Whoever holds the session can tell the machine what time it is after a rest. */
  renewBy(session: () => Promise<Session>): void {
    this.#session = session
  }

  async said(): Promise<string> {
    const late = new Promise<string>((resolve) => setTimeout(() => resolve(''), 1000).unref())
    return Promise.race([this.#machine.ended, late])
  }

  async pause(): Promise<void> {
    await this.#machine.pause()
    this.#still = true
  }

  async resume(): Promise<void> {
    await this.#wake()
    const session = await this.#session?.()
    const late = setTimeout(() => session?.close('the machine did not answer in time'), ANSWER_MS)
    try {
      await session?.renew(fieldsOf(freshness()))
    } finally {
      clearTimeout(late)
    }
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
