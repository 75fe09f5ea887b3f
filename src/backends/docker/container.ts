import { rmSync } from 'node:fs'
import type { AttachedStream, ContainerEngine } from '../../host/net/container-engine.ts'
import { type Cgroup, groupOfProcess } from '../../host/process/cgroup.ts'
import { isOver } from '../../host/process/orphans.ts'
import { userNamespaceOf } from '../../host/process/user-map.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Plan } from '../../model/plan.ts'
import type { Limits } from '../../model/spec.ts'
import type { ContainerHandle } from '../container-handle.ts'
import { AGENT_PROCESSES } from '../guest-config.ts'
import { assertServed, goferOf, KERNEL_MB } from '../gvisor/own-kernel.ts'

const ID = /^[0-9a-f]{64}$/
const REMOVE_MS = 60_000

type StartOptions = {
  readonly files: string
  /** Whether the runtime is gVisor's. */
  readonly ownKernel: boolean
  readonly signal?: AbortSignal | undefined
}

type Seen = { readonly pid: number; readonly running: boolean }

/** One container, from its creation until it is removed. */
export class Container implements ContainerHandle {
  readonly id: string
  readonly channel: AttachedStream
  readonly pid: number | undefined
  readonly group: Cgroup | undefined
  /** The user namespace that it started in, if visible. */
  readonly users: string | undefined
  readonly #engine: ContainerEngine
  readonly #files: string
  readonly #watch = new AbortController()
  oomKills = 0
  #paused = false
  #gone: Promise<void> | undefined

  private constructor(
    engine: ContainerEngine,
    id: string,
    channel: AttachedStream,
    seen: Pick<Container, 'pid' | 'group' | 'users'>,
    files: string,
  ) {
    this.#engine = engine
    this.id = id
    this.channel = channel
    this.pid = seen.pid
    this.group = seen.group
    this.users = seen.users
    this.#files = files
    engine.events(id, (action) => this.#heard(action), this.#watch.signal)
    channel.on('error', () => {})
  }

  /** Creates and starts a container and verifies its limits. Leaves nothing behind on failure. */
  static async start(
    engine: ContainerEngine,
    body: Record<string, unknown>,
    plan: Plan,
    { files, ownKernel, signal }: StartOptions,
  ): Promise<Container> {
    const id = await create(engine, body, signal)
    try {
      const channel = await engine.attach(id)
      channel.on('error', () => {})
      await engine.call({ method: 'POST', path: `/containers/${id}/start`, signal })
      const seen = await inspect(engine, id)
      const group = groupOfProcess(seen.pid, plan.limits)
      assertLimits(group, plan.limits, ownKernel)
      if (ownKernel) assertServed(goferOf(id), plan)
      // The host does not see gVisor's processes, so pids and the cgroup say nothing about the sandbox's processes.
      const visible = ownKernel
        ? { pid: undefined, group: undefined, users: undefined }
        : { pid: seen.pid, group, users: userNamespaceOf(seen.pid) }
      return new Container(engine, id, channel, visible, files)
    } catch (error) {
      await remove(engine, id).catch(() => {})
      throw error
    }
  }

  /** Removes containers of earlier runs of this installation, and containers that were created but never started. */
  static async sweep(engine: ContainerEngine, owner: string, epoch: string): Promise<void> {
    const filters = encodeURIComponent(JSON.stringify({ label: [`ringfence.owner=${owner}`] }))
    const { body } = await engine.call({ method: 'GET', path: `/containers/json?all=1&filters=${filters}` })
    for (const { Id, Labels } of (Array.isArray(body) ? body : []) as Listed[]) {
      const other = Labels?.['ringfence.epoch']
      if (typeof Id === 'string' && ID.test(Id) && other !== epoch && isOver(other)) await remove(engine, Id)
    }
  }

  #heard(action: string): void {
    if (action === 'oom') this.oomKills++
  }

  async errorText(): Promise<string> {
    return this.channel.said.trim().split('\n')[0] ?? ''
  }

  async pause(): Promise<void> {
    await this.#engine.call({ method: 'POST', path: `/containers/${this.id}/pause` })
    this.#paused = true
  }

  async resume(): Promise<void> {
    await this.#engine.call({ method: 'POST', path: `/containers/${this.id}/unpause` })
    this.#paused = false
  }

  destroy(): Promise<void> {
    this.#gone ??= this.#destroy()
    return this.#gone
  }

  async #destroy(): Promise<void> {
    this.#watch.abort()
    // A frozen process does not receive signals.
    if (this.#paused) await this.resume().catch(() => {})
    this.channel.destroy()
    try {
      await remove(this.#engine, this.id)
    } finally {
      rmSync(this.#files, { recursive: true, force: true })
    }
  }
}

/**
 * SECURITY: a limit counts only if the kernel returns the same value. If the kernel's files are not visible, the engine
 * runs elsewhere and its limits cannot be verified. With gVisor's kernel the agent counts the processes.
 */
function assertLimits(group: Cgroup | undefined, limits: Limits, ownKernel: boolean): void {
  const { memoryMb, cpus, pids } = limits
  const asked = {
    ...(memoryMb === undefined ? {} : { memoryMb: memoryMb + (ownKernel ? KERNEL_MB : 0) }),
    ...(cpus === undefined ? {} : { cpus }),
    ...(pids === undefined || ownKernel ? {} : { pids: pids + AGENT_PROCESSES }),
  }
  if (Object.keys(asked).length === 0) return
  const unmet = group?.unmet(asked) ?? Object.keys(asked)
  if (unmet.length > 0)
    throw new SandboxError(
      'launch-failed',
      `the container engine does not enforce the limits: ${unmet.join(', ')}`,
      {
        hint: 'the engine must run on this host with the memory, pids and cpu cgroup controllers enabled',
      },
    )
}

type Listed = { readonly Id?: unknown; readonly Labels?: Readonly<Record<string, string>> }

async function create(
  engine: ContainerEngine,
  body: Record<string, unknown>,
  signal: AbortSignal | undefined,
): Promise<string> {
  const answer = await engine.call({ method: 'POST', path: '/containers/create', body, signal })
  const { Id } = (answer.body ?? {}) as { Id?: unknown }
  if (typeof Id === 'string' && ID.test(Id)) return Id
  throw new SandboxError('backend-unavailable', 'the container engine returned no container id')
}

async function inspect(engine: ContainerEngine, id: string): Promise<Seen> {
  const { body } = await engine.call({ method: 'GET', path: `/containers/${id}/json` })
  const { State } = (body ?? {}) as { State?: { Pid?: unknown; Running?: unknown } }
  const pid = typeof State?.Pid === 'number' ? State.Pid : 0
  return { pid, running: State?.Running === true }
}

const REMOVE_TRIES = 20

/**
 * Removes a container; one that is already gone, or being removed, counts as removed. PLATFORM: Podman reports a failure
 * if a container exits while it is being killed.
 */
async function remove(engine: ContainerEngine, id: string): Promise<void> {
  const path = `/containers/${id}?force=1&v=1`
  for (let tries = 1; ; tries++) {
    const { status } = await engine.call({ method: 'DELETE', path, deadlineMs: REMOVE_MS }, [404, 409, 500])
    if (status === 409) {
      const wait = `/containers/${id}/wait?condition=removed`
      await engine.call({ method: 'POST', path: wait, deadlineMs: REMOVE_MS }, [404])
      return
    }
    if (status !== 500) return
    if (tries === REMOVE_TRIES)
      throw new SandboxError('launch-failed', `the container engine did not remove ${id.slice(0, 12)}`)
    await new Promise((resolve) => setTimeout(resolve, 10 * tries))
  }
}
