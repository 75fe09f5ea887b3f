import { monotonicMs } from '../../host/clock.ts'
import { SandboxError } from '../../model/errors.ts'
import { type Principal, requesterOf } from '../access/keys.ts'
import type { LiveSandbox } from '../lifecycle/live-sandbox.ts'
import type { Sandbox } from '../sandbox.ts'
import type { Open } from './open-volumes.ts'
import type { NewVolume, VolumeRow, Volumes } from './volumes.ts'

/** Where the volume is in the sandbox that serves its files. */
export const ROOT = '/volume'
const IDLE_MS = 15_000
const MOST = 32
const MOST_PER_TENANT = 4

type Helper = {
  readonly tenant: string
  readonly opened: Promise<Sandbox>
  users: number
  usedAt: number
  timer?: NodeJS.Timeout
}

type Opening = {
  readonly id: string
  readonly mode: 'ro' | 'rw'
  /** The volume is on its way to another node, or from one. */
  readonly isMoving?: boolean
}

type Parts = {
  readonly volumes: Volumes
  readonly open: Open
  readonly newId: (prefix: string) => string
}

/** A path in a volume as the sandbox that serves it sees it. */
export function insidePath(path: string): string {
  if (path.includes('\0')) throw new SandboxError('invalid-input', 'a path holds a NUL character')
  const parts = path.split('/').filter((part) => part !== '' && part !== '.')
  if (parts.includes('..'))
    throw new SandboxError('path-traversal', `\`${path.slice(0, 256)}\` contains \`..\``, {
      hint: 'name the path from the root of the volume',
    })
  return [ROOT, ...parts].join('/')
}

/** The path from the root of the volume. */
export const outsidePath = (inside: string): string => inside.slice(ROOT.length) || '/'

/**
 * Files of volumes without a sandbox of the caller. SECURITY: the host never walks a tree that a guest wrote; a small sandbox
 * with nothing but the volume does each operation, and is kept for a few seconds.
 */
export class VolumeFiles {
  readonly #parts: Parts
  readonly #helpers = new Map<string, Helper>()
  readonly #owners = new Map<string, string>()

  constructor(parts: Parts) {
    this.#parts = parts
  }

  /** The tenant of a sandbox that serves files, for the audit log. */
  tenantOf(sandboxId: string): string | undefined {
    return this.#owners.get(sandboxId)
  }

  async use<T>(principal: Principal, row: VolumeRow, work: (sandbox: Sandbox) => Promise<T>): Promise<T> {
    const { helper, done } = this.#take(principal, row)
    try {
      return await work(await helper.opened)
    } finally {
      done()
    }
  }

  /** The bytes of a file. The sandbox is in use until the last byte was read, or the reader has left. */
  async *read(
    principal: Principal,
    row: VolumeRow,
    path: string,
    range?: { readonly offset?: number; readonly length?: number },
  ): AsyncGenerator<Uint8Array, void> {
    const { helper, done } = this.#take(principal, row)
    try {
      yield* (await helper.opened).files.readStream(insidePath(path), range)
    } finally {
      done()
    }
  }

  /** Writes a file as far as it fits into the volume; one that does not fit is not left behind in part. */
  async write(
    row: VolumeRow,
    { files }: Sandbox,
    path: string,
    data: AsyncIterable<Uint8Array>,
  ): Promise<void> {
    const isNew = await files.stat(path).then(
      () => false,
      () => true,
    )
    try {
      await files.write(path, await this.#parts.volumes.within(row, data))
    } catch (error) {
      if (isNew) await files.remove(path).catch(() => {})
      throw error
    }
  }

  #take(principal: Principal, row: VolumeRow): { readonly helper: Helper; readonly done: () => void } {
    const helper = this.#helpers.get(row.id) ?? this.#start(principal, row)
    clearTimeout(helper.timer)
    helper.users++
    const done = (): void => {
      helper.users--
      helper.usedAt = monotonicMs()
      if (helper.users > 0) return
      helper.timer = setTimeout(() => void this.release(row), IDLE_MS)
      helper.timer.unref()
    }
    return { helper, done }
  }

  #start(principal: Principal, row: VolumeRow): Helper {
    const { tenant } = row
    this.#makeRoom(tenant)
    const id = this.#parts.newId('sb')
    this.#owners.set(id, tenant)
    const mode = row.readOnly ? 'ro' : 'rw'
    const opened = this.#open(principal, row, { id, mode })
    const helper: Helper = { tenant, opened, users: 0, usedAt: monotonicMs() }
    this.#helpers.set(row.id, helper)
    const forget = (): void => {
      if (this.#helpers.get(row.id) === helper) this.#helpers.delete(row.id)
      this.#owners.delete(id)
    }
    opened.then((sandbox) => sandbox.ended.then(forget), forget)
    return helper
  }

  /** Opened also when the volume is full, so that files can be removed from it. */
  async #open(
    principal: Principal,
    asked: VolumeRow,
    { id, mode, isMoving = false }: Opening,
  ): Promise<Sandbox> {
    const { volumes, open } = this.#parts
    const row = isMoving ? asked : await volumes.here(asked)
    const mount = { name: row.id, target: ROOT, mode }
    const spec = {
      volumes: [mount],
      network: { mode: 'offline' } as const,
      ...(mode === 'rw' ? { limits: { diskMb: row.sizeMb } } : {}),
    }
    const closed = isMoving ? () => {} : volumes.opened(row, mode)
    try {
      const path = isMoving ? volumes.pathOf(row) : await volumes.mount(row, id, mount)
      const sandbox = await open(spec, {
        id,
        owner: row.tenant,
        requester: requesterOf(principal),
        volumes: [path],
      })
      void sandbox.ended.then(closed)
      return sandbox
    } catch (error) {
      closed()
      throw error
    }
  }

  /**
   * Works in a sandbox of its own with the directory of a volume that changes its node, wherever the record says that it is. The
   * caller keeps everything else from it.
   */
  async inMove<T>(row: VolumeRow, mode: 'ro' | 'rw', work: (sandbox: Sandbox) => Promise<T>): Promise<T> {
    const id = this.#parts.newId('sb')
    this.#owners.set(id, row.tenant)
    try {
      const principal = { keyId: 'cluster', tenant: row.tenant, scopes: [] }
      const sandbox = await this.#open(principal, row, { id, mode, isMoving: true })
      try {
        return await work(sandbox)
      } finally {
        await sandbox.close()
      }
    } finally {
      this.#owners.delete(id)
    }
  }

  /** Copies a volume with everything in it; sandboxes that write to it stand still meanwhile. */
  async copy(principal: Principal, from: VolumeRow, asked: Omit<NewVolume, 'sizeMb'>): Promise<VolumeRow> {
    const { volumes, newId } = this.#parts
    const to = await volumes.create(principal, { ...asked, sizeMb: from.sizeMb })
    const id = newId('sb')
    this.#owners.set(id, to.tenant)
    try {
      const target = await this.#open(principal, to, { id, mode: 'rw' })
      try {
        await still(volumes.usersOf(from, 'writers'), () =>
          this.use(principal, from, (source) =>
            target.files.unpack(ROOT, source.files.pack(ROOT, { whole: true })),
          ),
        )
      } finally {
        await target.close()
      }
      return to
    } catch (error) {
      await volumes.remove(principal, to.id)
      throw error
    } finally {
      this.#owners.delete(id)
    }
  }

  /** Removes a volume that no sandbox of a caller has mounted. */
  async remove(principal: Principal, idOrName: string): Promise<VolumeRow> {
    const row = await this.#parts.volumes.get(principal.tenant, idOrName)
    await this.release(row)
    return this.#parts.volumes.remove(principal, row.id)
  }

  #makeRoom(tenant: string): void {
    const all = [...this.#helpers]
    const own = all.filter(([, helper]) => helper.tenant === tenant)
    const crowd = own.length >= MOST_PER_TENANT ? own : all.length >= MOST ? all : []
    if (crowd.length === 0) return
    const [idle] = crowd.filter(([, { users }]) => users === 0).sort(([, a], [, b]) => a.usedAt - b.usedAt)
    if (!idle)
      throw new SandboxError('too-many-requests', 'too many volumes are read or written at once', {
        hint: 'try again when a transfer has ended',
        retryAfterSecs: 1,
      })
    void this.release({ id: idle[0] })
  }

  /** Ends the sandbox that serves a volume's files. */
  async release({ id }: Pick<VolumeRow, 'id'>): Promise<void> {
    const helper = this.#helpers.get(id)
    if (!helper) return
    this.#helpers.delete(id)
    clearTimeout(helper.timer)
    await helper.opened.then((sandbox) => sandbox.close()).catch(() => {})
  }

  async close(): Promise<void> {
    await Promise.all([...this.#helpers.keys()].map((id) => this.release({ id })))
  }
}

/** Runs the work while no command of these sandboxes runs; a paused sandbox stands still already. */
function still<T>([first, ...rest]: readonly LiveSandbox[], work: () => Promise<T>): Promise<T> {
  if (!first) return work()
  const { sandbox, state } = first
  return !sandbox || state === 'paused' ? still(rest, work) : sandbox.still(() => still(rest, work))
}
