import {
  cpSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { monotonicMs } from '../../host/clock.ts'
import { caller, hostFingerprint, observeLayout, systemProgram } from '../../host/system.ts'
import { SandboxError } from '../../model/errors.ts'
import { isPlan, type Plan } from '../../model/plan.ts'
import type { Backend, BackendSandbox, OpenOptions, Probe } from '../backend.ts'
import { type Arch, assemble, encode } from '../bubblewrap/seccomp.ts'
import { containerFiles, refuseUnfit, userFor } from '../container-files.ts'
import { ContainerSandbox, ContainerTransport } from '../container-handle.ts'
import { ContainerPool } from '../container-pool.ts'
import { containerFields } from '../guest-config.ts'
import type { ImageStore } from '../images/store.ts'
import { noteUse } from '../images/uses.ts'
import { AGENT_TARGET, type Bundle, bundleOf, type Root } from './launch.ts'
import { OWN_KERNEL_CLAIMS, ownKernelLayers, refuseUnkept } from './own-kernel.ts'
import { Runsc, type RunscHost } from './runsc.ts'

export type GvisorParts = {
  readonly agent: string
  readonly probePlan: () => Plan
  readonly images: ImageStore
  readonly stateDir: string
  readonly runsc?: string
  /** So many sandboxes are kept ready for each kind that was asked for. */
  readonly ready?: number
  readonly onProgress?: ((text: string) => void) | undefined
  /** Tests change a launch on purpose, to see that the proofs notice. */
  readonly sabotage?: (config: Record<string, unknown>) => Record<string, unknown>
}

/** A root, and the image that it is, if any. */
type UnpackedRoot = Root & { readonly layer?: string }

/** gVisor's `runsc` without an engine around it: a kernel of its own for each sandbox. */
export function gvisor(parts: GvisorParts): Backend & { readonly close: () => Promise<void> } {
  return new Gvisor(parts)
}

class Gvisor implements Backend {
  readonly name = 'gvisor'
  readonly level = 'gvisor'
  readonly byNameOnly = false
  readonly emulated = false
  readonly runsImages = true
  readonly #parts: GvisorParts
  readonly #filter = encode(assemble(process.arch as Arch))

  readonly #pool: ContainerPool

  constructor(parts: GvisorParts) {
    this.#parts = parts
    this.#pool = new ContainerPool(parts.ready ?? 0)
  }

  async reap(): Promise<void> {
    const runsc = this.#runsc
    if (runsc) await Runsc.sweep({ runsc, stateDir: this.#parts.stateDir, rootless: caller().uid !== 0 })
  }

  async close(): Promise<void> {
    await this.#pool.close()
  }

  async probe(): Promise<Probe> {
    const missing = this.#missing()
    if (missing) return { available: false, ...missing }
    const started = monotonicMs()
    try {
      const sandbox = await this.open(this.#parts.probePlan())
      try {
        const { outcome } = await sandbox.exec({ argv: ['true'] })
        if (outcome.kind !== 'exited' || outcome.code !== 0) throw new Error('the probe command failed')
      } finally {
        await sandbox.close()
      }
    } catch (error) {
      const fix = error instanceof SandboxError ? error.hint : undefined
      return { available: false, reason: (error as Error).message, fix: fix ?? 'runsc do true shows more' }
    }
    return { available: true, guarantees: OWN_KERNEL_CLAIMS, startMs: monotonicMs() - started }
  }

  fingerprint(): string {
    return hostFingerprint([this.#runsc ?? 'runsc', this.#parts.agent])
  }

  get #runsc(): string | undefined {
    return this.#parts.runsc ?? systemProgram('runsc')
  }

  #missing(): { reason: string; fix: string } | undefined {
    if (process.platform !== 'linux') return { reason: 'gvisor needs Linux', fix: 'use another backend' }
    if (!(process.arch in { x64: 1, arm64: 1 }))
      return { reason: `no filter for ${process.arch}`, fix: 'use x64 or arm64' }
    if (!this.#runsc) return { reason: 'runsc is not installed', fix: 'apt-get install runsc' }
    if (!existsSync(this.#parts.agent))
      return { reason: 'the guest agent is not built', fix: 'npm run setup' }
    return undefined
  }

  async open(plan: Plan, options: OpenOptions = {}): Promise<BackendSandbox> {
    if (!isPlan(plan)) throw new SandboxError('internal', 'a backend accepts only plans that policy made')
    const missing = this.#missing()
    if (missing) throw new SandboxError('backend-unavailable', missing.reason, { hint: missing.fix })
    if (plan.network.mode === 'fetch' && !options.onTunnel)
      throw new SandboxError('internal', 'a sandbox with network mode fetch needs a proxy')
    refuseUnfit(plan, this.name)
    refuseUnkept(plan)
    const place = await this.#pool.take(plan, options.owner ?? '', {
      make: () => this.#prepare(plan, options.signal),
      prepare: () => this.#ahead(plan),
    })
    place.handTo(options.onTunnel)
    return new ContainerSandbox(plan, place)
  }

  /** Up, fenced and configured; whose it is comes later. */
  async #prepare(plan: Plan, signal?: AbortSignal): Promise<ContainerTransport> {
    const container = await this.#start(plan, await this.#root(plan), signal)
    const orders = {
      fields: containerFields(plan, { supervises: false, counts: true, prefork: true }),
      expected: [],
      filter: this.#filter,
    }
    const place = new ContainerTransport(plan, container, orders, { layersOf: ownKernelLayers })
    await place.ready()
    return place
  }

  async #ahead(plan: Plan): Promise<ContainerTransport> {
    const place = await this.#prepare(plan)
    try {
      await place.warm(warmingOf(plan))
      return place
    } catch (error) {
      await place.close()
      throw error
    }
  }

  async #root(plan: Plan): Promise<UnpackedRoot> {
    if (plan.image === undefined) return hostRoot(plan)
    const image = this.#parts.images.get(plan.image)
    if (!image)
      throw new SandboxError('invalid-input', `there is no image \`${plan.image}\` here`, {
        hint: `make one: ringfence image build ${plan.image}`,
      })
    const dir = await this.#parts.images.unpacked(image, { onProgress: this.#parts.onProgress })
    return { ...imageRoot(dir), layer: image.layer }
  }

  async #start(plan: Plan, root: UnpackedRoot, signal: AbortSignal | undefined): Promise<Runsc> {
    const { stateDir, agent, sabotage } = this.#parts
    const rootless = caller().uid !== 0
    // In the user namespace that runsc makes for us, our files are root's; capabilities it has none.
    const user = rootless ? { uid: 0, gid: 0 } : userFor(plan)
    const files = containerFiles(stateDir, plan, user)
    const id = `ringfence-${basename(files).toLowerCase()}`
    try {
      if (root.layer !== undefined) noteUse(files, root.layer)
      const cgroup = rootless ? undefined : `/${id}`
      const bundle = bundleOf(plan, { agent, files, root, ...user, cgroup })
      writeBundle(files, bundle, sabotage?.(bundle.config) ?? bundle.config)
      const host: RunscHost = { runsc: this.#runsc as string, stateDir, rootless }
      return await Runsc.start(host, { id, bundle: files, plan, signal })
    } catch (error) {
      rmSync(files, { recursive: true, force: true })
      throw error
    }
  }
}

/** SECURITY: with files of the host in reach, nothing of an image runs before somebody asked for it; our agent may. */
const warmingOf = ({ mounts }: Plan): readonly string[] =>
  mounts.length > 0 ? [AGENT_TARGET, 'version'] : ['true']

/** The host's programs and libraries, as behind bubblewrap. */
function hostRoot(plan: Plan): Root {
  const { links, programs, etc, certificates } = observeLayout()
  const network = plan.network.mode === 'fetch' ? certificates : []
  const kindOf = (path: string): 'dir' | 'file' => (lstatSync(path).isDirectory() ? 'dir' : 'file')
  // A mount has its price, but to copy hundreds of links has a higher one.
  const large = etc.filter((path) => kindOf(path) === 'dir')
  const shown = [...programs, ...large, ...network].map((path) => ({
    source: path,
    target: path,
    kind: kindOf(path),
  }))
  return { links, copied: etc.filter((path) => !large.includes(path)), shown }
}

/** An unpacked image, by its first level: what is mounted elsewhere gets no place in it. */
const OWN = ['proc', 'dev', 'tmp', 'sys', '.ringfence']
function imageRoot(dir: string): Root {
  const names = readdirSync(dir).filter((name) => !OWN.includes(name))
  const isLink = (name: string): boolean => lstatSync(join(dir, name)).isSymbolicLink()
  return {
    copied: [],
    links: names.filter(isLink).map((name) => ({ path: `/${name}`, target: readlinkSync(join(dir, name)) })),
    shown: names
      .filter((name) => !isLink(name))
      .map((name) => ({
        source: join(dir, name),
        target: `/${name}`,
        kind: lstatSync(join(dir, name)).isDirectory() ? 'dir' : 'file',
      })),
  }
}

/** Mount points are made here, in a root of the sandbox's own, so that nobody makes them in somebody else's files. */
function writeBundle(dir: string, { points, links, copies }: Bundle, config: Record<string, unknown>): void {
  const root = join(dir, 'root')
  mkdirSync(root, { mode: 0o755 })
  mkdirSync(join(root, 'etc'))
  for (const { path, target } of links) symlinkSync(target, join(root, path))
  for (const { path, kind } of points) makePoint(root, path, kind)
  for (const { source, path } of copies) copyInto(root, path, source)
  if (!existsSync(join(root, 'var', 'tmp'))) {
    mkdirSync(join(root, 'var'), { recursive: true })
    symlinkSync('../tmp', join(root, 'var', 'tmp'))
  }
  writeFileSync(join(dir, 'nothing'), '', { mode: 0 })
  writeFileSync(join(dir, 'config.json'), JSON.stringify(config), { mode: 0o600 })
}

/** What an image brings is mounted; then there is nothing to copy into, and our file is mounted over it. */
function copyInto(root: string, path: string, source: string): void {
  const place = join(root, path)
  mkdirSync(dirname(place), { recursive: true })
  cpSync(source, place, { recursive: true, verbatimSymlinks: true })
}

function makePoint(root: string, path: string, kind: 'dir' | 'file'): void {
  const place = join(root, path)
  if (existsSync(place)) return
  mkdirSync(kind === 'dir' ? place : dirname(place), { recursive: true })
  if (kind === 'file') writeFileSync(place, '')
}
