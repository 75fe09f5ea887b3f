import { randomInt } from 'node:crypto'
import { chownSync, closeSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs'
import { cpus, tmpdir } from 'node:os'
import { join } from 'node:path'
import { Cgroup, cgroupHost } from '../../../host/process/cgroup.ts'
import { startStreamProcess } from '../../../host/process/channel-process.ts'
import { groupName } from '../../../host/process/orphans.ts'
import { run } from '../../../host/process/run.ts'
import { caller, observeLayout, systemProgram } from '../../../host/system.ts'
import { libraryClosure } from '../image/libraries.ts'
import type { Driver, Machine, MachineSnapshot, MachineSpec } from './driver.ts'
import { probeKvm } from './kvm-probe.ts'
import { type Accelerator, type Jail, jailArguments, type MachineLaunch, qemuArguments } from './launch.ts'
import { QemuMachine } from './qemu-machine.ts'

/** What the QEMU driver is made of. */
export type QemuParts = {
  readonly agent: string
  /** The preload library that makes QEMU before version 9 open templates read-only; without it there are no clones. */
  readonly preload: string
  /** `auto` uses KVM if a test guest really runs on the CPU. */
  readonly accelerator: 'auto' | Accelerator
  /** Called when a test guest ran with KVM. */
  readonly onKvm?: (() => void) | undefined
}

const ENV = { PATH: '/usr/bin:/bin' }
const FIRMWARE = '/usr/share/qemu'
/** Memory of QEMU itself beside the guest's: translated code, devices. */
const OVERHEAD_MB = 384
const THREADS = 128

/** QEMU's `microvm` machine type, in its own jail. */
export class Qemu implements Driver {
  readonly name = 'qemu'
  readonly #parts: QemuParts
  #version: Promise<string> | undefined
  #accelerator: Promise<Accelerator | undefined> | undefined
  #shown: readonly string[] | undefined

  constructor(parts: QemuParts) {
    this.#parts = parts
  }

  async probe(): ReturnType<Driver['probe']> {
    const no = (reason: string, fix: string) => ({ usable: false, reason, fix }) as const
    if (process.platform !== 'linux' || process.arch !== 'x64')
      return no('the qemu driver needs Linux on x64', 'use another backend')
    if (!program()) return no('qemu is not installed', 'apt-get install qemu-system-x86')
    if (!systemProgram('bwrap')) return no('the jail needs bubblewrap', 'apt-get install bubblewrap')
    if (!existsSync(join(FIRMWARE, 'qboot.rom')))
      return no('qboot.rom is missing', 'apt-get install qemu-system-data')
    const accelerator = await this.#accelerators()
    if (!accelerator)
      return no('/dev/kvm did not run a test guest within a second', 'set the accelerator to tcg')
    return { usable: true, accelerator }
  }

  /** The configured accelerator; `auto` tries KVM first. */
  #accelerators(): Promise<Accelerator | undefined> {
    this.#accelerator ??= this.#choose()
    return this.#accelerator
  }

  async #choose(): Promise<Accelerator | undefined> {
    const { accelerator } = this.#parts
    if (accelerator === 'tcg') return 'tcg'
    if (await probeKvm(program() as string)) {
      this.#parts.onKvm?.()
      return 'kvm'
    }
    return accelerator === 'auto' ? 'tcg' : undefined
  }

  async fingerprint(): Promise<string> {
    const launch = await this.#launchFor({ memoryMb: 0 }, 'own', false)
    const model =
      /^model name\s*: (.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'))?.[1] ?? cpus()[0]?.model
    return [await this.#versionOf(), model, ...qemuArguments(launch)].join('\n')
  }

  #versionOf(): Promise<string> {
    this.#version ??= run(
      { file: program() as string, args: ['--version'], env: ENV, cwd: '/', control: false },
      { wallMs: 10_000 },
    ).then(({ stdout }) => Buffer.from(stdout).toString('utf8').split('\n')[0] ?? '')
    return this.#version
  }

  async #launchFor(
    { memoryMb }: Pick<MachineSpec, 'memoryMb'>,
    memory: MachineLaunch['memory'],
    incoming: boolean,
  ): Promise<MachineLaunch> {
    const accelerator = (await this.#accelerators()) ?? 'tcg'
    const version = Number(/version (\d+)/.exec(await this.#versionOf())?.[1] ?? 0)
    const abilities = { opensReadOnly: version >= 9, relocatesCode: version >= 8 }
    return { accelerator, memoryMb, tscKhz: tscKhz(), memory, ...abilities, incoming }
  }

  async boot(spec: MachineSpec): Promise<Machine> {
    return this.#start(spec, await this.#launchFor(spec, 'own', false))
  }

  async bootTemplate(spec: MachineSpec, memory: string): Promise<Machine> {
    return this.#start(spec, await this.#launchFor(spec, 'written', false), { memory })
  }

  async clone(spec: MachineSpec, saved: MachineSnapshot): Promise<Machine> {
    const launch = await this.#launchFor(spec, 'shared-template', true)
    const machine = await this.#start(spec, launch, saved)
    try {
      await machine.load()
      return machine
    } catch (error) {
      await machine.kill()
      throw error
    }
  }

  async restore(spec: MachineSpec, file: string): Promise<Machine> {
    const launch = await this.#launchFor(spec, 'own', true)
    // The descriptor of a memory file is not used: everything is in the state.
    const machine = await this.#start(spec, launch, { memory: '/dev/null', state: file })
    try {
      await machine.load()
      return machine
    } catch (error) {
      await machine.kill()
      throw error
    }
  }

  async #start(
    spec: MachineSpec,
    launch: MachineLaunch,
    files: { readonly memory?: string; readonly state?: string } = {},
  ): Promise<QemuMachine> {
    const user = jailUser()
    const cgroup = groupFor(spec)
    const exit = exitFor(user)
    const isTemplate = launch.memory === 'written'
    const opened: number[] = []
    const open = (path: string, flags: string): number => {
      const fd = openSync(path, flags)
      opened.push(fd)
      return fd
    }
    try {
      if (user)
        for (const path of [spec.disk, isTemplate && files.memory])
          if (path) chownSync(path, user.uid, user.gid)
      const { vmlinux, initrd, root } = spec.image
      const descriptors: ('stream' | number)[] = ['stream', 'stream']
      for (const path of [vmlinux, initrd, root]) descriptors.push(open(path, 'r'))
      descriptors.push(open(spec.disk, 'r+'), open(spec.inputs, 'r'))
      if (files.memory) descriptors.push(open(files.memory, isTemplate ? 'r+' : 'r'))
      if (files.state) descriptors.push(open(files.state, 'r'))
      if (isGuarded(launch)) descriptors.push(open(this.#parts.preload, 'r'))
      const jail = this.#jail(launch, { user, cgroups: cgroup?.dirs ?? [], exit })
      const args = jailArguments(jail, qemuArguments(launch))
      const hosted = startStreamProcess(
        { file: this.#parts.agent, args, env: ENV, control: false },
        descriptors,
      )
      return await QemuMachine.greet(hosted, cgroup, exit)
    } catch (error) {
      rmSync(exit, { recursive: true, force: true })
      await cgroup?.remove()
      throw error
    } finally {
      for (const fd of opened) closeSync(fd)
    }
  }

  #jail(launch: MachineLaunch, own: Pick<Jail, 'user' | 'cgroups' | 'exit'>): Jail {
    const qemu = program() as string
    this.#shown ??= [...libraryClosure([qemu, ...tcgModule()]), FIRMWARE]
    return {
      agent: this.#parts.agent,
      bwrap: systemProgram('bwrap') as string,
      qemu,
      shown: this.#shown,
      links: observeLayout().links.filter(({ path }) => path.startsWith('/lib')),
      preload: isGuarded(launch),
      accelerator: launch.accelerator,
      ...own,
    }
  }
}

/** SECURITY: a QEMU that would open the template for writing is started with the preload library, or not at all. */
const isGuarded = ({ memory, opensReadOnly }: MachineLaunch): boolean =>
  memory === 'shared-template' && !opensReadOnly

const program = (): string | undefined => systemProgram('qemu-system-x86_64')

/** PLATFORM: some distributions build the emulator as a loadable module. */
const tcgModule = (): readonly string[] =>
  ['/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so', '/usr/lib64/qemu/accel-tcg-x86_64.so'].filter(
    (path) => existsSync(path),
  )

/** A uid that no user has. */
const jailUser = (): Jail['user'] => {
  if (caller().uid !== 0) return undefined
  const id = 0x5000_0000 + randomInt(0x1000_0000)
  return { uid: id, gid: id }
}

function groupFor({ memoryMb, cpus: share }: MachineSpec): Cgroup | undefined {
  const limits = { memoryMb: memoryMb + OVERHEAD_MB, pids: THREADS, cpus: share }
  return Cgroup.create(cgroupHost(), groupName(), limits, 0)
}

/** Short, because the length of a socket path is limited. */
function exitFor(user: Jail['user']): string {
  const dir = mkdtempSync(join(tmpdir(), 'rf-vm-'))
  if (user) chownSync(dir, user.uid, user.gid)
  return dir
}

/** From the bogomips that the kernel measured at boot: the only value that every host has. */
function tscKhz(): number {
  const loops = /^bogomips\s*: ([\d.]+)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'))?.[1]
  return Math.round(Number(loops ?? 4000) * 500)
}
