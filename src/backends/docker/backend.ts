import { existsSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { monotonicMs } from '../../host/clock.ts'
import { ContainerEngine } from '../../host/net/container-engine.ts'
import { mapRootUser } from '../../host/process/user-map.ts'
import { hardLimit, hostFingerprint } from '../../host/system.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Guarantee } from '../../model/guarantee.ts'
import { isPlan, type Plan } from '../../model/plan.ts'
import type { Isolation } from '../../model/spec.ts'
import type { Backend, BackendSandbox, OpenOptions, Probe } from '../backend.ts'
import { type Arch, assemble, encode } from '../bubblewrap/seccomp.ts'
import { containerFiles, refuseUnfit, type User, userFor } from '../container-files.ts'
import { ContainerSandbox, ContainerTransport } from '../container-handle.ts'
import { ContainerPool } from '../container-pool.ts'
import { containerFields, expectedMounts } from '../guest-config.ts'
import { OWN_KERNEL_CLAIMS, ownKernelLayers, refuseUnkept } from '../gvisor/own-kernel.ts'
import type { ImageStore } from '../images/store.ts'
import { isIsolated } from '../isolated-command.ts'
import { BETWEEN, isolatesCommands } from '../isolation-probe.ts'
import { Container } from './container.ts'
import {
  assembleRoot,
  EXPECTED_ROOT,
  HANDOVER_TARGET,
  handoverDirectory,
  prepareHandover,
  RootContainerSandbox,
} from './container-root.ts'
import { EngineImages } from './engine-images.ts'
import { AGENT_TARGET, type ContainerContext, containerBody, coverFields } from './launch.ts'
import { layersOf } from './layers.ts'
import { engineProfile } from './seccomp-json.ts'

/** What the Docker backend is made of. */
export type DockerParts = {
  readonly agent: string
  /** A small plan that the probe runs, also with commands that are isolated from each other. */
  readonly probePlan: (isolation?: Isolation) => Plan
  readonly images: ImageStore
  readonly stateDir: string
  /** Sockets to try, in order. */
  readonly sockets: readonly string[]
  /** Identifies this installation on the engine, to find its leftovers. */
  readonly owner: string
  readonly epoch: string
  /** How many containers are kept ready for each kind of sandbox. */
  readonly ready?: number
  readonly onProgress?: ((text: string) => void) | undefined
  /** Lets tests break a launch on purpose, to verify that the attack tests notice. */
  readonly sabotage?: (body: Record<string, unknown>) => Record<string, unknown>
  readonly deadlineMs?: number
  /** The engine's runtime. `runsc` gives each container its own kernel, and has other guarantees. */
  readonly runtime?: 'runc' | 'runsc' | undefined
}

const CLAIMS: readonly Guarantee[] = [
  'fs.read',
  'fs.write',
  'fs.protect',
  'env.clean',
  'net.offline',
  'net.loopback',
  'net.fetch',
  'secrets.outside',
  'proc.hidden',
  'ipc.private',
  'kernel.filtered',
  'limit.wall',
  'limit.idle',
  'limit.memory',
  'limit.cpu',
  'limit.pids',
  'limit.disk',
  'limit.output',
  'cleanup',
]

/** Without any capability; it leaves for the user namespace of its writable root. */
const HOST_ROOT: User = { uid: 0, gid: 0 }

/** Containers of Docker, or of Podman with the same API, with our agent as their first process. */
export function docker(parts: DockerParts): Backend & { readonly close: () => Promise<void> } {
  return new Docker(parts)
}

class Docker implements Backend {
  readonly name = 'docker'
  readonly level = 'container'
  readonly byNameOnly = false
  readonly emulated = false
  readonly runsImages = true
  readonly mountsVolumes = true
  /** gVisor's kernel does not see what is mounted from outside. */
  readonly writableRoots: boolean
  readonly #parts: DockerParts
  readonly #filter = encode(assemble(process.arch as Arch))
  readonly #pool: ContainerPool
  #images: EngineImages | undefined

  constructor(parts: DockerParts) {
    this.#parts = parts
    this.writableRoots = !this.#ownKernel
    this.#pool = new ContainerPool(parts.ready ?? 0)
  }

  async probe(): Promise<Probe> {
    const missing = this.#missing()
    if (missing) return { available: false, ...missing }
    try {
      const images = this.#engineImages()
      // An image of directories loads instantly, and the agent needs no program to list one.
      const empty = await images.empty()
      const started = monotonicMs()
      const plan = this.#parts.probePlan()
      const sandbox = new ContainerSandbox(plan, await this.#prepare(plan, images.engine, empty))
      try {
        await sandbox.files.stat('/tmp')
      } finally {
        await sandbox.close()
      }
      const startMs = monotonicMs() - started
      const between = (await this.#canIsolate(images, empty)) ? BETWEEN : []
      const guarantees = [...(this.#ownKernel ? OWN_KERNEL_CLAIMS : CLAIMS), ...between]
      return { available: true, guarantees, startMs }
    } catch (error) {
      const fix = error instanceof SandboxError ? error.hint : undefined
      return {
        available: false,
        reason: (error as Error).message,
        fix: fix ?? 'check the engine: docker info',
      }
    }
  }

  /** Whether a command gets namespaces that are not those of its sandbox; a host that forbids it keeps everything else. */
  async #canIsolate({ engine }: EngineImages, image: string): Promise<boolean> {
    const plan = this.#parts.probePlan('command')
    if (!this.#isolates(plan)) return false
    const open = async () => new ContainerSandbox(plan, await this.#prepare(plan, engine, image))
    return isolatesCommands(open, [AGENT_TARGET, 'namespaces'])
  }

  fingerprint(): string {
    return hostFingerprint([this.#socket ?? '-', this.#parts.agent])
  }

  get #ownKernel(): boolean {
    return this.#parts.runtime === 'runsc'
  }

  get #socket(): string | undefined {
    return this.#parts.sockets.find((path) => existsSync(path))
  }

  #missing(): { reason: string; fix: string } | undefined {
    if (!(process.arch in { x64: 1, arm64: 1 }))
      return { reason: `no seccomp filter for ${process.arch}`, fix: 'use x64 or arm64' }
    if (!this.#socket)
      return {
        reason: 'no container engine is running here',
        fix: 'apt-get install docker.io && systemctl start docker',
      }
    if (!existsSync(this.#parts.agent))
      return { reason: 'the guest agent is not built', fix: 'npm run setup' }
    return undefined
  }

  #engineImages(): EngineImages {
    const socket = this.#socket as string
    if (this.#images?.engine.socket !== socket) {
      const { deadlineMs, images, onProgress } = this.#parts
      const engine = new ContainerEngine({ socket, ...(deadlineMs === undefined ? {} : { deadlineMs }) })
      this.#images = new EngineImages(engine, images, onProgress)
      void Container.sweep(engine, this.#parts.owner, this.#parts.epoch).catch(() => {})
    }
    return this.#images
  }

  async open(plan: Plan, options: OpenOptions = {}): Promise<BackendSandbox> {
    if (!isPlan(plan)) throw new SandboxError('internal', 'a backend accepts only plans that policy made')
    const missing = this.#missing()
    if (missing) throw new SandboxError('backend-unavailable', missing.reason, { hint: missing.fix })
    if (plan.network.mode === 'fetch' && !options.onTunnel)
      throw new SandboxError('internal', 'a sandbox with network mode fetch needs a proxy')
    refuseUnfit(plan, this.name)
    if (this.#ownKernel) refuseUnkept(plan)
    const images = this.#engineImages()
    const image = await (plan.root ? images.empty() : images.idOf(plan))
    const start = (signal?: AbortSignal): Promise<ContainerTransport> =>
      this.#prepare(plan, images.engine, image, signal)
    const transport = await this.#pool.take(plan, `${options.owner ?? ''}|${image}`, {
      make: () => start(options.signal),
      prepare: () => start(),
    })
    transport.handTo(options.onTunnel)
    return plan.root
      ? new RootContainerSandbox(plan, plan.root, transport)
      : new ContainerSandbox(plan, transport)
  }

  async reap(): Promise<void> {
    const { owner, epoch } = this.#parts
    if (this.#socket) await Container.sweep(this.#engineImages().engine, owner, epoch)
  }

  async close(): Promise<void> {
    await this.#pool.close()
  }

  /** Starts, confines and configures a container that is not assigned to a sandbox yet. */
  async #prepare(
    plan: Plan,
    engine: ContainerEngine,
    image: string,
    signal?: AbortSignal,
  ): Promise<ContainerTransport> {
    const container = await this.#start(plan, engine, image, signal)
    const own = this.#ownKernel
    const agentConfig = {
      fields: [
        ...containerFields(plan, {
          supervises: !own,
          sharesFiles: true,
          counts: own,
          countsSockets: !own,
          prefork: own,
          isolates: !own,
        }),
        ...(this.#isolates(plan) ? coverFields : []),
      ],
      expected: own ? [] : plan.root ? EXPECTED_ROOT : expectedMounts(plan),
      filter: this.#filter,
    }
    const transport = new ContainerTransport(plan, container, agentConfig, {
      layersOf: own ? ownKernelLayers : layersOf,
    })
    const mapped = this.#mapUsers(plan, container).catch((error: Error) => {
      void transport.close()
      throw error
    })
    await Promise.all([mapped, transport.ready()])
    return transport
  }

  /** The agent isolates commands in a user namespace, and cannot map the host's root user there itself. */
  async #mapUsers(plan: Plan, { pid, users }: Container): Promise<void> {
    if (!this.#isolates(plan) || plan.root || userFor(plan).uid !== 0) return
    if (pid === undefined || users === undefined)
      throw new SandboxError('unsupported', 'the container is not on this host')
    await mapRootUser(pid, users)
  }

  async #start(
    plan: Plan,
    engine: ContainerEngine,
    image: string,
    signal: AbortSignal | undefined,
  ): Promise<Container> {
    const { stateDir, sabotage } = this.#parts
    const user = plan.root ? HOST_ROOT : userFor(plan)
    const files = containerFiles(stateDir, plan, user)
    try {
      if (plan.root) prepareHandover(files)
      const body = containerBody(plan, await this.#context(plan, image, files, user))
      const container = await Container.start(engine, sabotage?.(body) ?? body, plan, {
        files,
        signal,
        ownKernel: this.#ownKernel,
      })
      await this.#giveRoot(plan, container, files)
      return container
    } catch (error) {
      rmSync(files, { recursive: true, force: true })
      throw error
    }
  }

  async #giveRoot(plan: Plan, container: Container, files: string): Promise<void> {
    const { pid } = container
    if (!plan.root) return
    try {
      if (pid === undefined) throw new SandboxError('unsupported', 'the container is not on this host')
      await assembleRoot(plan, plan.root, { agent: this.#parts.agent, files, pid })
    } catch (error) {
      await container.destroy()
      throw error
    }
  }

  /** With gVisor as the engine's runtime nothing was measured; the backend `gvisor` isolates commands. */
  #isolates(plan: Plan): boolean {
    return !this.#ownKernel && isIsolated(plan)
  }

  async #context(plan: Plan, image: string, files: string, user: User): Promise<ContainerContext> {
    const { agent, owner, epoch } = this.#parts
    const hasRoot = plan.root !== undefined
    const isolates = this.#isolates(plan)
    const profile = engineProfile(process.arch as Arch, [
      ...(hasRoot ? (['enters-root'] as const) : []),
      ...(isolates ? (['isolates'] as const) : []),
    ])
    const podman = await this.#engineImages().isPodman()
    if (podman) writeFileSync(join(files, 'seccomp.json'), profile, { mode: 0o444 })
    return {
      image,
      agent,
      files,
      ...user,
      handover: hasRoot ? { source: handoverDirectory(files), target: HANDOVER_TARGET } : undefined,
      coversProc: isolates,
      runtime: this.#parts.runtime,
      podman,
      descriptors: Math.min(hardLimit('open files', 4096), 65_536),
      processes: Math.min(hardLimit('processes', 16_384), 16_384),
      seccomp: podman ? join(files, 'seccomp.json') : profile,
      labels: { 'ringfence.owner': owner, 'ringfence.epoch': epoch },
    }
  }
}
