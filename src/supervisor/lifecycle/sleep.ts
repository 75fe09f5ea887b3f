import { SandboxError } from '../../model/errors.ts'
import type { Spec } from '../../model/spec.ts'
import type { SandboxChange, SandboxRow } from '../../store/sandboxes.ts'
import type { Principal } from '../access/keys.ts'
import type { OpenSandbox } from '../open-sandbox.ts'
import type { EndReason } from './lifecycle.ts'
import { LiveSandbox } from './live-sandbox.ts'

/** Where the files of a suspended sandbox are. */
export type SuspendedFiles = {
  readonly has: (id: string) => boolean
  readonly remove: (id: string) => Promise<void>
}

type SleepParts = {
  readonly save: (entry: LiveSandbox, change: SandboxChange) => Promise<void>
  readonly reopen: (principal: Principal, entry: LiveSandbox) => Promise<void>
  readonly stop: (entry: LiveSandbox, reason: EndReason) => Promise<void>
  readonly files: SuspendedFiles | undefined
  /** How long the files of a paused sandbox are kept. */
  readonly keepMs: () => number
}

const specOf = ({ spec }: Pick<SandboxRow, 'spec'>): Spec => JSON.parse(spec) as Spec

/** Whether private directories hold everything that must survive the processes of a sandbox. */
const keepsFiles = ({ private: own, root, review, mounts }: Spec): boolean =>
  (Boolean(own?.length) || root === 'writable') && !review && !mounts?.length

/** PLATFORM: without a disk of its own, a virtual machine has copies of the directories, which end with it. */
const hasCopies = ({ backend, plan }: OpenSandbox): boolean => backend === 'microvm' && !plan.root

/**
 * The spec with the hosts that the sandbox reaches now; an empty list was closed on purpose. SECURITY: a disk stays with its backend,
 * also if the operator prefers another one meanwhile: the host never mounts what a virtual machine wrote.
 */
const asItIs = (spec: Spec, live: OpenSandbox): Spec => ({
  ...spec,
  ...(live.plan.root ? { backend: live.backend } : {}),
  ...(live.plan.network.mode === 'fetch'
    ? { network: { ...spec.network, allowHosts: live.allowHosts } }
    : {}),
})

/**
 * Pausing and waking. With memory, the processes are frozen. Without, they end, and the sandbox is opened again with its
 * files; that also survives a restart of the server.
 */
export class SleepService {
  readonly #parts: SleepParts

  constructor(parts: SleepParts) {
    this.#parts = parts
  }

  /** INVARIANT: called serially for each sandbox, as all methods here. */
  async pause(entry: LiveSandbox, keepMemory: boolean): Promise<void> {
    const live = entry.ready()
    if (!keepMemory) return this.#suspend(entry, live)
    if (!live.pause) throw cannot(live, 'pause')
    await live.pause()
    entry.move('paused')
    entry.hold()
    // If the server crashes, the files of the sandbox are left, and what it may reach must not become more.
    const spec = JSON.stringify(asItIs(specOf(entry.row), live))
    await this.#parts.save(entry, { state: 'paused', expiresAt: null, spec })
  }

  /** Ends the processes and keeps the files. */
  async #suspend(entry: LiveSandbox, live: OpenSandbox): Promise<void> {
    const spec = specOf(entry.row)
    if (!this.#parts.files || !keepsFiles(spec) || hasCopies(live))
      throw cannot(live, 'keep only the files of this sandbox')
    entry.move('paused')
    entry.hold()
    entry.sandbox = undefined
    for (const session of entry.execs.values()) session.cancel()
    await live.suspend()
    const expiresAt = Date.now() + this.#parts.keepMs()
    await this.#parts.save(entry, { state: 'paused', expiresAt, spec: JSON.stringify(asItIs(spec, live)) })
  }

  /** For a shutdown: keeps the files of a paused sandbox where that is possible. Returns whether it was. */
  async keepOverRestart(entry: LiveSandbox): Promise<boolean> {
    const live = entry.sandbox
    if (entry.state !== 'paused') return false
    if (!live) return true
    if (!this.#parts.files || !keepsFiles(specOf(entry.row)) || hasCopies(live)) return false
    entry.sandbox = undefined
    await live.suspend()
    await this.#parts.save(entry, { expiresAt: Date.now() + this.#parts.keepMs() })
    return true
  }

  async resume(principal: Principal, entry: LiveSandbox): Promise<void> {
    if (entry.state !== 'paused')
      throw new SandboxError('wrong-state', `sandbox ${entry.id} is ${entry.state}, not paused`)
    if (!entry.sandbox) await this.#parts.reopen(principal, entry)
    else if (!entry.sandbox.resume) throw cannot(entry.sandbox, 'resume')
    else await entry.sandbox.resume()
    entry.move('ready')
    entry.release()
    const left = entry.ttl.leftMs
    const expiresAt = left === undefined ? null : Math.round(Date.now() + left)
    await this.#parts.save(entry, { state: 'ready', expiresAt, restore: null })
  }

  /** What a spec asks for at the timeout: a pause, or nothing but the end. */
  async atTimeout(entry: LiveSandbox): Promise<void> {
    const { action, keepMemory = true } = specOf(entry.row).atTimeout ?? {}
    if (action !== 'pause') return this.#parts.stop(entry, 'timeout')
    try {
      await entry.serially(async () => {
        // The deadline has passed; when the sandbox wakes, its full lifetime starts again.
        entry.ttl.set(entry.timeoutMs)
        await this.pause(entry, keepMemory)
      })
    } catch {
      await this.#parts.stop(entry, 'timeout')
    }
  }

  /** Whether a paused sandbox may be woken by a request. */
  wakes(entry: LiveSandbox): boolean {
    return entry.state === 'paused' && specOf(entry.row).atTimeout?.wakes === true
  }

  /** Whether a record of an earlier run is a sandbox whose files are still here. */
  isSuspended(row: SandboxRow): boolean {
    const spec = specOf(row)
    // Its files are in a snapshot until it wakes.
    if (row.state === 'paused' && row.restore !== null) return true
    const hasFiles = row.backend !== 'microvm' || spec.root !== undefined
    return row.state === 'paused' && hasFiles && keepsFiles(spec) && (this.#parts.files?.has(row.id) ?? false)
  }

  /** A paused sandbox of an earlier run. */
  adopt(
    row: SandboxRow,
    onDeadline: (entry: LiveSandbox, reason: EndReason) => void,
    ttlMs: number,
  ): LiveSandbox {
    const entry: LiveSandbox = new LiveSandbox(row, (reason) => onDeadline(entry, reason))
    entry.timeoutMs = row.ttlMs ?? ttlMs
    entry.idleMs = row.idleMs ?? undefined
    for (const state of ['provisioning', 'ready', 'paused'] as const) entry.move(state)
    entry.ttl.set(ttlMs)
    entry.hold()
    return entry
  }
}

const cannot = (live: Pick<OpenSandbox, 'backend'>, what: string): SandboxError =>
  new SandboxError('unsupported', `the backend \`${live.backend}\` cannot ${what}`, {
    hint: 'choose a backend that can; see `ringfence doctor`',
  })
