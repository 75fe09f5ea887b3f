import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { gunzipSync } from 'node:zlib'
import { run } from '../../../host/process/run.ts'
import { systemProgram } from '../../../host/system.ts'
import { SandboxError } from '../../../model/errors.ts'
import { unpackLz4 } from './lz4.ts'

/** A guest kernel: uncompressed, which QEMU loads fastest, and the modules that `/init` loads, in order. */
export type GuestKernel = {
  readonly release: string
  readonly vmlinux: Buffer
  readonly modules: readonly { readonly name: string; readonly bytes: Buffer }[]
  /** Loaded only if the host connects by vsock. */
  readonly vsock: readonly string[]
}

const META_PACKAGE = 'linux-image-cloud-amd64'
const NEEDED = ['virtio_mmio', 'virtio_pci', 'virtio_console', 'virtio_blk', 'erofs', 'overlay']
const VSOCK = ['vmw_vsock_virtio_transport']
const MINUTES = 60_000

/** The installed kernel, or Debian's cloud kernel, downloaded and unpacked in a temporary directory. */
export async function guestKernel(onProgress: (text: string) => void): Promise<GuestKernel> {
  const installed = kernelIn('/')
  if (installed) return installed
  const dir = mkdtempSync(join(tmpdir(), 'ringfence-kernel-'))
  try {
    const name = await packageName()
    onProgress(`fetching ${name}`)
    await program('apt-get', ['-qq', '-o', 'APT::Sandbox::User=root', 'download', name], dir)
    const deb = readdirSync(dir).find((file) => file.endsWith('.deb'))
    if (!deb) throw new SandboxError('launch-failed', `apt-get did not download ${name}`)
    onProgress('unpacking the kernel')
    mkdirSync(join(dir, 'root'))
    await program('dpkg-deb', ['-x', join(dir, deb), join(dir, 'root')], dir)
    const found = kernelIn(join(dir, 'root'))
    if (!found) throw new SandboxError('launch-failed', `${name} contains no kernel`)
    return found
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
}

/** The package that the metapackage currently depends on. */
async function packageName(): Promise<string> {
  const text = await program('apt-cache', ['depends', META_PACKAGE], '/')
  const name = /Depends: (linux-image-[\w.+-]+)/.exec(text)?.[1]
  if (!name)
    throw new SandboxError('launch-failed', `apt-cache does not know ${META_PACKAGE}`, {
      hint: 'apt-get update',
    })
  return name
}

function kernelIn(root: string): GuestKernel | undefined {
  const boot = join(root, 'boot')
  const releases = existsSync(boot) ? readdirSync(boot).sort().reverse() : []
  const release = releases.find((name) => /^vmlinuz-.*-cloud-amd64$/.test(name))?.slice('vmlinuz-'.length)
  const modules = release && modulesDir(root, release)
  if (release === undefined || modules === undefined) return undefined
  const all = modulesIn(modules)
  const order = closure(NEEDED, all)
  const more = closure(VSOCK, all).filter((name) => !order.includes(name))
  return {
    release,
    vmlinux: vmlinuxOf(readFileSync(join(boot, `vmlinuz-${release}`))),
    modules: [...order, ...more].map((name) => ({ name, bytes: readFileSync(all.get(name) as string) })),
    vsock: more,
  }
}

const modulesDir = (root: string, release: string): string | undefined =>
  ['lib', 'usr/lib'].map((dir) => join(root, dir, 'modules', release)).find((dir) => existsSync(dir))

const moduleName = (file: string): string => basename(file, '.ko').replaceAll('-', '_')

function modulesIn(dir: string): ReadonlyMap<string, string> {
  const files = readdirSync(join(dir, 'kernel'), { recursive: true, encoding: 'utf8' })
  return new Map(
    files.filter((file) => file.endsWith('.ko')).map((file) => [moduleName(file), join(dir, 'kernel', file)]),
  )
}

/** Each module after its dependencies; modules built into the kernel are not files. */
function closure(wanted: readonly string[], all: ReadonlyMap<string, string>): readonly string[] {
  const order: string[] = []
  const add = (name: string): void => {
    const file = all.get(name)
    if (file === undefined || order.includes(name)) return
    const needs = /(?:^|\0)depends=([^\0]*)\0/.exec(readFileSync(file, 'latin1'))?.[1] ?? ''
    for (const other of needs.split(',').filter(Boolean)) add(other.replaceAll('-', '_'))
    order.push(name)
  }
  for (const name of wanted) add(name)
  return order
}

const PAYLOAD_OFFSET = 0x248
const PAYLOAD_LENGTH = 0x24c
const SECTORS = 0x1f1

/** Extracts the kernel from a bzImage: unpacking it in every guest would cost half a second of each boot. */
function vmlinuxOf(image: Buffer): Buffer {
  const sectors = image[SECTORS] || 4
  const start = (sectors + 1) * 512 + image.readUInt32LE(PAYLOAD_OFFSET)
  const packed = image.subarray(start, start + image.readUInt32LE(PAYLOAD_LENGTH))
  const magic = packed.readUInt32LE(0)
  const kernel = magic === 0x184c2102 ? unpackLz4(packed) : unzipped(packed, magic)
  if (kernel.readUInt32BE(0) !== 0x7f454c46)
    throw new SandboxError('launch-failed', 'the kernel is not an ELF file')
  return kernel
}

function unzipped(packed: Buffer, magic: number): Buffer {
  if ((magic & 0xffff) === 0x8b1f) return gunzipSync(packed)
  throw new SandboxError('unsupported', 'the kernel’s compression format is not supported', {
    hint: `use Debian's: apt-get download ${META_PACKAGE}`,
  })
}

async function program(name: string, args: readonly string[], cwd: string): Promise<string> {
  const file = systemProgram(name)
  if (!file)
    throw new SandboxError('unsupported', `a guest kernel needs \`${name}\``, {
      hint: `install ${META_PACKAGE}, so that it is in /boot`,
    })
  const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' }
  const result = await run({ file, args, env, cwd, control: false }, { wallMs: 10 * MINUTES })
  if (result.exit.code === 0) return Buffer.from(result.stdout).toString('utf8')
  const errorText = Buffer.from(result.stderr).toString('utf8').trim().split('\n').at(-1)
  throw new SandboxError('launch-failed', `${name} failed: ${errorText || result.exit.signal}`)
}
