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
import type { Isolation } from '../../model/spec.ts'
import type { Backend, OpenOptions, Probe } from '../backend.ts'
import { type Arch, assemble, encode } from '../bubblewrap/seccomp.ts'
import { containerFiles, refuseUnfit, userFor } from '../container-files.ts'
import { ContainerSandbox, ContainerTransport } from '../container-handle.ts'
import { ContainerPool } from '../container-pool.ts'
import { containerFields } from '../guest-config.ts'
import type { ImageStore } from '../images/store.ts'
import { noteUse } from '../images/uses.ts'
import { isIsolated } from '../isolated-command.ts'
import { BETWEEN, isolatesCommands } from '../isolation-probe.ts'
import { AGENT_TARGET, type Bundle, bundleOf, type Root } from './launch.ts'
import { OWN_KERNEL_CLAIMS, ownKernelLayers, refuseUnkept } from './own-kernel.ts'
import { Runsc, type RunscHost } from './runsc.ts'

/** What the gVisor backend is made of. */
export type GvisorParts = {
  readonly agent: string
  /** A small plan that the probe runs, also with commands that are isolated from each other. */
  readonly probePlan: (isolation?: Isolation) => Plan
  readonly images: ImageStore
  readonly stateDir: string
  readonly runsc?: string
  /** How many sandboxes are kept ready for each kind. */
  readonly ready?: number
  readonly onProgress?: ((text: string) => void) | undefined
  /** Lets tests break a launch on purpose, to verify that the attack tests notice. */
  readonly sabotage?: (config: Record<string, unknown>) => Record<string, unknown>
}

/** A root, and the digest of the image that it comes from, if any. */
type UnpackedRoot = Root & { readonly layer?: string }

/** gVisor's `runsc` without an engine: each sandbox has its own kernel. */
export function gvisor(parts: GvisorParts): Backend & { readonly close: () => Promise<void> } {
  return new Gvisor(parts)
}

class Gvisor implements Backend {
  readonly name = 'gvisor'
  readonly level = 'gvisor'
  readonly byNameOnly = false
  readonly emulated = false
  readonly runsImages = true
  readonly mountsVolumes = true
  readonly #parts: GvisorParts
  readonly #filter = encode(assemble(process.arch as Arch))

  readonly #pool: ContainerPool

  constructor(parts: GvisorParts) {
    this.#parts = parts
    this.#pool = new ContainerPool(parts.ready ?? 0)
  }

  async reap(): Promise<void> {
    const runsc = this.#runsc
    const { stateDir, agent } = this.#parts
    if (runsc) await Runsc.sweep({ runsc, agent, stateDir, rootless: caller().uid !== 0 })
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
    const startMs = monotonicMs() - started
    const between = (await this.#canIsolate()) ? BETWEEN : []
    return { available: true, guarantees: [...OWN_KERNEL_CLAIMS, ...between], startMs }
  }

  /** Whether a command gets namespaces that are not those of its sandbox; older builds of gVisor cannot mount inside. */
  async #canIsolate(): Promise<boolean> {
    const plan = this.#parts.probePlan('command')
    return isIsolated(plan) && isolatesCommands(() => this.open(plan))
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
      return { reason: `no seccomp filter for ${process.arch}`, fix: 'use x64 or arm64' }
    if (!this.#runsc) return { reason: 'runsc is not installed', fix: 'apt-get install runsc' }
    if (!existsSync(this.#parts.agent))
      return { reason: 'the guest agent is not built', fix: 'npm run setup' }
    return undefined
  }

  async open(plan: Plan, options: OpenOptions = {}): Promise<ContainerSandbox> {
    if (!isPlan(plan)) throw new SandboxError('internal', 'a backend accepts only plans that policy made')
    const missing = this.#missing()
    if (missing) throw new SandboxError('backend-unavailable', missing.reason, { hint: missing.fix })
    if (plan.network.mode === 'fetch' && !options.onTunnel)
      throw new SandboxError('internal', 'a sandbox with network mode fetch needs a proxy')
    refuseUnfit(plan, this.name)
    refuseUnkept(plan)
    const transport = await this.#pool.take(plan, options.owner ?? '', {
      make: () => this.#prepare(plan, options.signal),
      prepare: () => this.#ahead(plan),
    })
    transport.handTo(options.onTunnel)
    return new ContainerSandbox(plan, transport)
  }

  /** Starts, confines and configures a container that is not assigned to a sandbox yet. */
  async #prepare(plan: Plan, signal?: AbortSignal): Promise<ContainerTransport> {
    const container = await this.#start(plan, await this.#root(plan), signal)
    const agentConfig = {
      fields: containerFields(plan, { supervises: false, counts: true, prefork: true, isolates: true }),
      expected: [],
      filter: this.#filter,
    }
    const transport = new ContainerTransport(plan, container, agentConfig, { layersOf: ownKernelLayers })
    container.answerBy(() => transport.session())
    await transport.ready()
    return transport
  }

  async #ahead(plan: Plan): Promise<ContainerTransport> {
    const transport = await this.#prepare(plan)
    try {
      await transport.warm(warmingOf(plan))
      return transport
    } catch (error) {
      await transport.close()
      throw error
    }
  }

  async #root(plan: Plan): Promise<UnpackedRoot> {
    if (plan.image === undefined) return hostRoot(plan)
    const image = this.#parts.images.get(plan.image)
    if (!image)
      throw new SandboxError('invalid-input', `no such image \`${plan.image}\``, {
        hint: `build one: ringfence image build ${plan.image}`,
      })
    const dir = await this.#parts.images.unpacked(image, { onProgress: this.#parts.onProgress })
    return { ...imageRoot(dir), layer: image.layer }
  }

  async #start(plan: Plan, root: UnpackedRoot, signal: AbortSignal | undefined): Promise<Runsc> {
    const { stateDir, agent, sabotage } = this.#parts
    const rootless = caller().uid !== 0
    // In the user namespace that runsc creates, our files belong to root, which has no capabilities.
    const user = rootless ? { uid: 0, gid: 0 } : userFor(plan)
    const files = containerFiles(stateDir, plan, user)
    const id = `ringfence-${basename(files).toLowerCase()}`
    try {
      if (root.layer !== undefined) noteUse(files, root.layer)
      const bundle = bundleOf(plan, { agent, files, root, ...user })
      writeBundle(files, bundle, sabotage?.(bundle.config) ?? bundle.config)
      const host: RunscHost = { runsc: this.#runsc as string, agent, stateDir, rootless }
      return await Runsc.start(host, { id, bundle: files, plan, signal })
    } catch (error) {
      rmSync(files, { recursive: true, force: true })
      throw error
    }
  }
}

/** SECURITY: if host files are mounted, nothing of an image runs before a caller asked for it; our agent may. */
const warmingOf = ({ mounts }: Plan): readonly string[] =>
  mounts.length > 0 ? [AGENT_TARGET, 'version'] : ['true']

/** The host's programs and libraries, as with bubblewrap. */
function hostRoot(plan: Plan): Root {
  const { links, programs, etc, certificates } = observeLayout()
  const network = plan.network.mode === 'fetch' ? certificates : []
  const kindOf = (path: string): 'dir' | 'file' => (lstatSync(path).isDirectory() ? 'dir' : 'file')
  // A mount has a cost, but copying hundreds of symbolic links costs more.
  const large = etc.filter((path) => kindOf(path) === 'dir')
  const shown = [...programs, ...large, ...network].map((path) => ({
    source: path,
    target: path,
    kind: kindOf(path),
  }))
  return { links, copied: etc.filter((path) => !large.includes(path)), shown }
}

/** The top-level directories of an image that are replaced by mounts. */
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

/** Creates mount points in the sandbox's own root, so that runsc does not create them in other files. */
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

/** Image directories are mounted, so nothing can be copied into them; our file is mounted over instead. */
function copyInto(root: string, path: string, source: string): void {
  const transport = join(root, path)
  mkdirSync(dirname(transport), { recursive: true })
  cpSync(source, transport, { recursive: true, verbatimSymlinks: true })
}

function makePoint(root: string, path: string, kind: 'dir' | 'file'): void {
  const transport = join(root, path)
  if (existsSync(transport)) return
  mkdirSync(kind === 'dir' ? transport : dirname(transport), { recursive: true })
  if (kind === 'file') writeFileSync(transport, '')
}
