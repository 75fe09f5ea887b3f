import { createHash } from 'node:crypto'
import {
  chmodSync,
  createReadStream,
  existsSync,
  lstatSync,
  lutimesSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { writeAtomically } from '../../../host/files/atomic-file.ts'
import { run } from '../../../host/process/run.ts'
import { readText, systemProgram } from '../../../host/system.ts'
import { SandboxError } from '../../../model/errors.ts'
import type { PathFact } from '../../../model/plan.ts'
import type { Image, ImageStore } from '../../images/store.ts'
import { type CpioEntry, cpioOf } from './cpio.ts'
import { type GuestKernel, guestKernel } from './kernel.ts'

/** The files that a virtual machine starts from; each is named by its content and never changes. */
export type GuestImage = {
  readonly vmlinux: string
  readonly initrd: string
  readonly root: string
  /** The digest of all three files. */
  readonly digest: string
}

type MachineFiles = { readonly vmlinux: string; readonly initrd: string }
type KernelFiles = Omit<GuestKernel, 'vmlinux' | 'modules'> & {
  readonly vmlinux: string
  readonly modules: readonly { readonly name: string; readonly file: string }[]
}

/** What guest images are made of. */
export type GuestImageParts = {
  readonly stateDir: string
  readonly agent: string
  readonly images: ImageStore
  readonly onProgress?: ((text: string) => void) | undefined
}

/** Kernel, initramfs and root images for virtual machines, built once and found by content. */
export class GuestImages {
  readonly #parts: GuestImageParts
  readonly #dir: string
  readonly #making = new Map<string, Promise<GuestImage>>()
  #known: (MachineFiles & { readonly stamp: string }) | undefined

  constructor(parts: GuestImageParts) {
    this.#parts = parts
    this.#dir = join(parts.stateDir, 'images', 'microvm')
  }

  /** Whether there is a kernel; otherwise it would have to be downloaded. */
  get hasKernel(): boolean {
    return existsSync(join(this.#dir, 'kernel.json'))
  }

  /** The files for an image; parallel calls share one build. */
  get(image: Image): Promise<GuestImage> {
    return this.#once(image.layer, () => this.#rootOf(image))
  }

  /** The files for the layers of an unpacked image of a registry, the topmost first. */
  ofTree(layers: readonly PathFact[]): Promise<GuestImage> {
    const seen = layers.map(({ real, dev, ino }) => [real, dev, ino, statSync(real).mtimeMs])
    const key = createHash('sha256').update(JSON.stringify(seen)).digest('hex')
    return this.#once(key, () => this.#rootOfTree(key, layers))
  }

  async #once(key: string, root: () => Promise<string>): Promise<GuestImage> {
    const making = this.#making.get(key) ?? this.#make(root)
    this.#making.set(key, making)
    try {
      return await making
    } finally {
      this.#making.delete(key)
    }
  }

  async #make(rootOf: () => Promise<string>): Promise<GuestImage> {
    mkdirSync(this.#dir, { recursive: true, mode: 0o700 })
    const { vmlinux, initrd } = await this.#machineFiles()
    const root = await rootOf()
    const hash = createHash('sha256').update(`${vmlinux}\n${initrd}\n${root}`)
    const path = (name: string): string => join(this.#dir, name)
    return {
      vmlinux: path(vmlinux),
      initrd: path(initrd),
      root: path(root),
      digest: `sha256:${hash.digest('hex')}`,
    }
  }

  /** The initramfs contains the agent, so a new agent needs a new one; the kernel stays. */
  async #machineFiles(): Promise<MachineFiles> {
    const { mtimeMs, size, ino } = statSync(this.#parts.agent)
    const stamp = [mtimeMs, size, ino].join()
    if (this.#known?.stamp === stamp) return this.#known
    const kernel = await this.#kernel()
    const initrd = this.#keep('initrd', initramfs(kernel, this.#dir, readFileSync(this.#parts.agent)))
    this.#known = { stamp, vmlinux: kernel.vmlinux, initrd }
    return this.#known
  }

  async #kernel(): Promise<KernelFiles> {
    const record = join(this.#dir, 'kernel.json')
    const known = readText(record)
    if (known !== undefined) {
      const files = JSON.parse(known) as KernelFiles
      const all = [files.vmlinux, ...files.modules.map(({ file }) => file)]
      if (all.every((name) => existsSync(join(this.#dir, name)))) return files
    }
    const kernel = await guestKernel(this.#say)
    const made: KernelFiles = {
      release: kernel.release,
      vsock: kernel.vsock,
      vmlinux: this.#keep('vmlinux', kernel.vmlinux),
      modules: kernel.modules.map(({ name, bytes }) => ({ name, file: this.#keep('module', bytes) })),
    }
    writeAtomically(record, JSON.stringify(made))
    return made
  }

  #keep(kind: string, bytes: Buffer): string {
    const name = `${kind}-${createHash('sha256').update(bytes).digest('hex')}`
    if (existsSync(join(this.#dir, name))) return name
    const temporary = join(this.#dir, `${name}.${process.pid}.tmp`)
    writeFileSync(temporary, bytes, { mode: 0o444 })
    renameSync(temporary, join(this.#dir, name))
    return name
  }

  /** The image's files as a read-only file system, found by the digest of its layer. */
  async #rootOf(image: Image): Promise<string> {
    const record = join(this.#dir, `${image.layer.replace(':', '-')}.json`)
    const known = existsSync(record) ? (JSON.parse(readFileSync(record, 'utf8')) as string) : undefined
    if (known !== undefined && existsSync(join(this.#dir, known))) return known
    const tree = await this.#parts.images.unpacked(image, { onProgress: this.#parts.onProgress })
    this.#say('writing the root image')
    const temporary = join(this.#dir, `root.${process.pid}.tmp`)
    try {
      timeless(tree)
      await erofs(temporary, tree, ['--all-root'])
      chmodSync(temporary, 0o444)
      const name = `root-${await digestOf(temporary)}`
      renameSync(temporary, join(this.#dir, name))
      writeAtomically(record, JSON.stringify(name))
      return name
    } finally {
      rmSync(temporary, { force: true })
    }
  }

  /** Named by its input: the sandbox sees the owners of the image, and nothing else has to be the same each time. */
  async #rootOfTree(key: string, layers: readonly PathFact[]): Promise<string> {
    const name = `tree-${key}`
    const path = join(this.#dir, name)
    if (existsSync(path)) {
      utimesSync(path, new Date(), new Date())
      return name
    }
    this.#say('writing the root image')
    this.#forgetTrees()
    const work = mkdtempSync(join(this.#dir, 'layers-'))
    try {
      const merged = join(work, 'merged')
      // Hard links: only the last layer's own files are new.
      for (const { real } of [...layers].reverse()) await copyTree(real, merged)
      await erofs(join(work, 'root'), merged, [])
      chmodSync(join(work, 'root'), 0o444)
      renameSync(join(work, 'root'), path)
      return name
    } finally {
      rmSync(work, { recursive: true, force: true })
    }
  }

  /** A running machine has its image open, so the file may go. */
  #forgetTrees(): void {
    const names = readdirSync(this.#dir).filter((name) => name.startsWith('tree-'))
    const age = (name: string): number => statSync(join(this.#dir, name)).mtimeMs
    for (const name of names.sort((a, b) => age(b) - age(a)).slice(KEPT_TREES - 1))
      rmSync(join(this.#dir, name), { force: true })
  }

  readonly #say = (text: string): void => this.#parts.onProgress?.(text)
}

/** `/init` is the agent; beside it are the modules and the order to load them in. */
function initramfs({ modules, vsock }: KernelFiles, dir: string, agent: Buffer): Buffer {
  const list = (names: readonly string[]): Buffer => Buffer.from(names.map((name) => `${name}\n`).join(''))
  const first = modules.map(({ name }) => name).filter((name) => !vsock.includes(name))
  const entries: CpioEntry[] = [
    { path: '/dev', kind: 'dir' },
    { path: '/dev/console', kind: 'device', major: 5, minor: 1 },
    { path: '/modules', kind: 'dir' },
    ...modules.map(({ name, file: from }) => file(`/modules/${name}`, 0o400, readFileSync(join(dir, from)))),
    file('/modules/order', 0o400, list(first)),
    file('/modules/vsock', 0o400, list(vsock)),
    file('/init', 0o500, agent),
  ]
  return cpioOf(entries)
}

const file = (path: string, mode: number, bytes: Buffer): CpioEntry => ({ path, kind: 'file', mode, bytes })

/** Directories and links have the time of their unpacking; it is reset for a reproducible image. */
function timeless(dir: string): void {
  for (const entry of readdirSync(dir, { withFileTypes: true })) {
    const path = join(dir, entry.name)
    if (entry.isDirectory()) timeless(path)
    else if (entry.isSymbolicLink()) lutimesSync(path, 0, 0)
  }
  if (lstatSync(dir).mtimeMs !== 0) lutimesSync(dir, 0, 0)
}

/** Any fixed UUID. */
const UUID = '72696e67-6665-4e63-8000-000000000000'
/** Later than any file: then files keep their times, and the image's own time is always the same. */
const EPOCH = '4000000000'

/** How many images of registries are kept for the next machine. */
const KEPT_TREES = 8

/** SECURITY: removes what is in the way first, so that nothing is written through a link of the image. */
async function copyTree(from: string, to: string): Promise<void> {
  const args = ['-a', '-l', '-T', '--remove-destination', '--', from, to]
  const launch = { file: systemProgram('cp') ?? 'cp', args, env: { PATH: '/usr/bin:/bin' }, cwd: '/' }
  const { exit, stderr } = await run({ ...launch, control: false }, { wallMs: 600_000 })
  if (exit.code === 0) return
  const errorText = Buffer.from(stderr).toString('utf8').trim().split('\n')[0] ?? ''
  throw new SandboxError('launch-failed', `the image cannot be copied: ${errorText}`)
}

async function erofs(out: string, tree: string, options: readonly string[]): Promise<void> {
  const program = systemProgram('mkfs.erofs')
  if (!program)
    throw new SandboxError('unsupported', 'root images need mkfs.erofs', {
      hint: 'apt-get install erofs-utils',
    })
  const args = ['--quiet', '-x-1', ...options, '-U', UUID, '--preserve-mtime', out, tree]
  const env = { PATH: '/usr/bin:/bin', SOURCE_DATE_EPOCH: EPOCH }
  const result = await run({ file: program, args, env, cwd: '/', control: false }, { wallMs: 600_000 })
  if (result.exit.code === 0) return
  const errorText = Buffer.from(result.stderr).toString('utf8').trim().split('\n').at(-1)
  throw new SandboxError('launch-failed', `mkfs.erofs failed: ${errorText}`)
}

async function digestOf(path: string): Promise<string> {
  const hash = createHash('sha256')
  for await (const piece of createReadStream(path)) hash.update(piece as Buffer)
  return hash.digest('hex')
}
