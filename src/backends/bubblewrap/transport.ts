import type { Session } from '../../host/guest/session.ts'
import type { Cgroup } from '../../host/process/cgroup.ts'
import type { ChannelProcess } from '../../host/process/channel-process.ts'
import { syncDisk } from '../../host/root/disk-image.ts'
import { diskUsageOf, hostPidOf, rootOf, treeUsage } from '../../host/system.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Plan } from '../../model/plan.ts'
import type { Limits } from '../../model/spec.ts'
import type { Usage } from '../backend.ts'
import { type Confinement, confinedTo, type KernelCounts } from '../guest-command.ts'
import type { GuestTransport } from '../guest-sandbox.ts'
import { ISOLATING_PROCESSES } from '../isolated-command.ts'
import { layersOf } from './layers.ts'
import { launchFailure } from './result.ts'

/** A running bubblewrap process. */
export type Opened = {
  readonly group: Cgroup | undefined
  readonly companion: ChannelProcess
  readonly session: Session
}

/** A persistent sandbox, started at first use. */
export class BubblewrapTransport implements GuestTransport {
  readonly ended: Promise<string>
  readonly #open: () => Opened
  readonly #pids: number | undefined
  readonly #hasDisk: boolean
  #opened: Opened | undefined
  #over = false
  #execs = 0
  #isEnded: (reason: string) => void = () => {}

  constructor({ limits, root, isolation }: Pick<Plan, 'limits' | 'root' | 'isolation'>, open: () => Opened) {
    const ours = isolation === 'command' ? ISOLATING_PROCESSES : 0
    this.#pids = limits.pids === undefined ? undefined : limits.pids + ours
    this.#hasDisk = root !== undefined
    this.#open = open
    this.ended = new Promise((resolve) => {
      this.#isEnded = resolve
    })
  }

  get isOpen(): boolean {
    return this.#opened !== undefined
  }

  async session(): Promise<Session> {
    if (this.#over) throw new SandboxError('wrong-state', 'the sandbox is closed')
    if (!this.#opened) {
      this.#opened = this.#open()
      const { session, companion } = this.#opened
      void session.ended.then((reason) => this.#isEnded(reason))
      companion.exited.catch((error: Error) => session.close(error.message))
    }
    const { session } = this.#opened
    try {
      await session.ready
    } catch (error) {
      throw await this.#failure(error as Error)
    }
    return session
  }

  /** Why the sandbox could not be set up, from the agent or from bubblewrap. */
  async #failure(error: Error): Promise<SandboxError> {
    const { companion } = this.#opened as Opened
    const { said } = await companion.exited
    const text =
      error.message === 'the sandbox ended' ? said.trim().split('\n')[0] || error.message : error.message
    return launchFailure(text)
  }

  layersOf(status: ReadonlyMap<string, string>): readonly string[] {
    return layersOf(status, this.#opened?.group !== undefined)
  }

  /** Each command has a reaper process of ours, which must not count towards the limit of the commands. */
  onCommands(running: number): void {
    if (this.#pids !== undefined && !this.#over) this.#opened?.group?.allowPids(this.#pids + running)
  }

  counts(): KernelCounts {
    return this.#opened?.group?.counts() ?? { oomKills: 0, pidsRefused: 0 }
  }

  hostPid(): number | undefined {
    return this.#opened?.companion.pid
  }

  usage(): Usage | undefined {
    if (!this.#opened) return undefined
    const { pid } = this.#opened.companion
    return { ...treeUsage(pid), ...(this.#hasDisk ? { diskBytes: diskUsageOf(rootOf(pid)) } : {}) }
  }

  /** Writes everything that the sandbox changed to its disk. */
  async syncDisk(): Promise<void> {
    const root = this.#opened && rootOf(this.#opened.companion.pid)
    if (root === undefined) throw new SandboxError('wrong-state', 'the sandbox is gone')
    await syncDisk(root)
  }

  async confine(pid: number, limits: Limits): Promise<Confinement> {
    const { group, companion } = this.#opened as Opened
    const name = `ringfence-exec-${++this.#execs}`
    const hostPid = (inner: number): number | undefined => hostPidOf(companion.pid, inner)
    const own = hostPid(pid) === undefined ? undefined : group?.nested(name, limits)
    return confinedTo(own, pid, hostPid)
  }

  async close(): Promise<void> {
    this.#over = true
    this.#isEnded('closed')
    if (!this.#opened) return
    const { session, companion, group } = this.#opened
    session.close()
    companion.kill()
    await companion.exited.catch(() => {})
    await group?.remove()
  }
}
