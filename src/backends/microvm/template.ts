import { createHash } from 'node:crypto'
import {
  chmodSync,
  closeSync,
  existsSync,
  ftruncateSync,
  lchownSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { caller, isAlive, processKey } from '../../host/system.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Driver, Machine, MachineSnapshot, MachineSpec } from './drivers/driver.ts'
import { assertRoom } from './files/disk.ts'

type Record = { readonly memoryBytes: number; readonly state: string }

/** What machine templates are made of. */
export type TemplateParts = {
  readonly dir: string
  readonly driver: Driver
  /** Waits until the machine is up, and runs the warm-up commands. */
  readonly warm: (machine: Machine) => Promise<void>
  readonly onProgress?: ((text: string) => void) | undefined
}

/** The memory that a machine has touched after the warm-up. */
const TEMPLATE_MB = 256
/** How many templates are kept when another one is created; the least recently used are removed. */
const KEPT = 8

/**
 * Machines that were started once and saved; each clone continues from there.
 * INVARIANT: the name of a template contains everything that it depends on, so a template that is found fits.
 */
export class MachineTemplates {
  readonly #parts: TemplateParts
  readonly #making = new Map<string, Promise<MachineSnapshot>>()

  constructor(parts: TemplateParts) {
    this.#parts = parts
  }

  async keyOf({ image, memoryMb }: Pick<MachineSpec, 'image' | 'memoryMb'>): Promise<string> {
    const parts = [await this.#parts.driver.fingerprint(), image.digest, String(memoryMb)]
    return createHash('sha256').update(parts.join('\0')).digest('hex').slice(0, 32)
  }

  /** The template for such machines, created now unless a complete one exists. */
  async get(
    spec: Omit<MachineSpec, 'disk' | 'inputs'>,
    makeDisk: (path: string) => void,
  ): Promise<MachineSnapshot> {
    const key = await this.keyOf(spec)
    const found = this.#whole(key)
    if (found) return found
    const making = this.#making.get(key) ?? this.#make(key, spec, makeDisk)
    this.#making.set(key, making)
    try {
      return await making
    } finally {
      this.#making.delete(key)
    }
  }

  /** Removes a template that could not be loaded. */
  async forget(spec: Pick<MachineSpec, 'image' | 'memoryMb'>): Promise<void> {
    rmSync(join(this.#parts.dir, await this.keyOf(spec)), { recursive: true, force: true })
  }

  /** SECURITY: a truncated or replaced template is not loaded; its state is small enough to be verified each time. */
  #whole(key: string): MachineSnapshot | undefined {
    const dir = join(this.#parts.dir, key)
    try {
      const { memoryBytes, state } = JSON.parse(readFileSync(join(dir, 'template.json'), 'utf8')) as Record
      const saved = { memory: join(dir, 'memory'), state: join(dir, 'state') }
      if (statSync(saved.memory).size === memoryBytes && digestOf(saved.state) === state) return saved
    } catch {
      // Created again below.
    }
    rmSync(dir, { recursive: true, force: true })
    return undefined
  }

  async #make(
    key: string,
    spec: Omit<MachineSpec, 'disk' | 'inputs'>,
    makeDisk: (path: string) => void,
  ): Promise<MachineSnapshot> {
    const { dir, driver, warm, onProgress } = this.#parts
    mkdirSync(dir, { recursive: true, mode: 0o700 })
    this.#sweep()
    assertRoom(dir, Math.min(TEMPLATE_MB, spec.memoryMb))
    onProgress?.('starting a machine to clone from')
    const work = mkdtempSync(join(dir, `making-${processKey(process.pid)}-`))
    try {
      const [disk, inputs] = [join(work, 'disk'), join(work, 'inputs')]
      const made = { memory: join(work, 'memory'), state: join(work, 'state') }
      for (const path of [disk, inputs]) makeDisk(path)
      makeMemory(made.memory, spec.memoryMb)
      const machine = await driver.bootTemplate({ ...spec, disk, inputs }, made.memory)
      try {
        await warm(machine)
        await machine.save(made.state)
      } finally {
        await machine.kill()
      }
      for (const path of [disk, inputs]) rmSync(path, { force: true })
      return this.#keep(work, key)
    } catch (error) {
      rmSync(work, { recursive: true, force: true })
      throw error
    }
  }

  #keep(work: string, key: string): MachineSnapshot {
    const { uid, gid } = caller()
    for (const name of ['memory', 'state']) {
      lchownSync(join(work, name), uid, gid)
      // SECURITY: many machines start from it, so none may write to it.
      chmodSync(join(work, name), 0o444)
    }
    const record = { memoryBytes: statSync(join(work, 'memory')).size, state: digestOf(join(work, 'state')) }
    writeFileSync(join(work, 'template.json'), JSON.stringify(record))
    const dir = join(this.#parts.dir, key)
    try {
      renameSync(work, dir)
    } catch {
      // Another process was faster with the same template.
      rmSync(work, { recursive: true, force: true })
    }
    const found = this.#whole(key)
    if (!found) throw new SandboxError('launch-failed', 'the template was removed while it was created')
    return found
  }

  /** Removes what exited processes left incomplete, and outdated templates. */
  #sweep(): void {
    const { dir } = this.#parts
    const names = readdirSync(dir)
    for (const name of names) {
      const owner = /^making-(\d+-\d+)-/.exec(name)?.[1]
      if (owner !== undefined && !isAlive(owner)) rmSync(join(dir, name), { recursive: true, force: true })
    }
    const ageOf = (name: string): number =>
      existsSync(join(dir, name, 'state')) ? statSync(join(dir, name, 'state')).atimeMs : 0
    const old = names.filter((name) => /^[0-9a-f]{32}$/.test(name)).sort((a, b) => ageOf(b) - ageOf(a))
    for (const name of old.slice(KEPT)) rmSync(join(dir, name), { recursive: true, force: true })
  }
}

function makeMemory(path: string, memoryMb: number): void {
  const fd = openSync(path, 'wx', 0o600)
  ftruncateSync(fd, memoryMb * 1024 * 1024)
  closeSync(fd)
}

const digestOf = (path: string): string => createHash('sha256').update(readFileSync(path)).digest('hex')
