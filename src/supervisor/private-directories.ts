import { randomBytes } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, renameSync, symlinkSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { join, relative } from 'node:path'
import { diskUsage } from '../host/files/disk-usage.ts'
import { run } from '../host/process/run.ts'
import type { WritableRoots } from '../host/root/writable-roots.ts'
import { systemProgram } from '../host/system.ts'
import { SandboxError } from '../model/errors.ts'
import type { Spec } from '../model/spec.ts'
import type { Gate, OpenSandboxOptions } from './gate.ts'
import type { Sandbox } from './sandbox.ts'

/** The private directories of sandboxes: created before a sandbox opens, removed after it is closed. */
export class PrivateDirectories {
  readonly #dir: string

  constructor(dir: string) {
    this.#dir = dir
    mkdirSync(dir, { recursive: true, mode: 0o700 })
  }

  /** Creates this many directories. The first is the home; the others are empty. */
  make(id: string, count: number): readonly string[] {
    mkdirSync(join(this.#dir, id), { mode: 0o700 })
    const paths = this.#paths(id, count)
    for (const [index, path] of paths.entries()) {
      mkdirSync(path, { mode: 0o755 })
      if (index === 0) addPythonName(path)
    }
    return paths
  }

  /** Whether the directories of a sandbox exist. */
  has(id: string): boolean {
    return /^sb_[0-9a-f]+$/.test(id) && existsSync(join(this.#dir, id))
  }

  /** The directories of a sandbox that was suspended. */
  kept(id: string, count: number): readonly string[] {
    return this.#paths(id, count)
  }

  #paths(id: string, count: number): readonly string[] {
    return Array.from({ length: count }, (_, index) => join(this.#dir, id, String(index)))
  }

  /** The directory that holds everything of a sandbox. */
  of(id: string): string {
    return join(this.#dir, id)
  }

  /** Bytes on disk of a sandbox's directories. */
  usedBytes(id: string): Promise<number | undefined> {
    return diskUsage(join(this.#dir, id))
  }

  /** INVARIANT: called only when nothing runs in the sandbox any more; the sandbox wrote the tree that is walked here. */
  async remove(id: string): Promise<void> {
    await removeTree(join(this.#dir, id))
  }

  /** Removes what an earlier run left. Moves it aside first, so that a new sandbox never waits for the removal. */
  sweep(except: readonly string[] = []): Promise<void> {
    const left = readdirSync(this.#dir).filter((name) => !except.includes(name))
    const aside = left.map((name) => {
      const path = join(this.#dir, `.old-${randomBytes(6).toString('hex')}`)
      renameSync(join(this.#dir, name), path)
      return path
    })
    return Promise.all(aside.map(removeTree)).then(() => {})
  }
}

/** PLATFORM: Debian has `python3` and no `python`, which most programs for other sandboxes call. It is last in `PATH`. */
function addPythonName(home: string): void {
  const dir = join(home, '.local', 'bin')
  mkdirSync(dir, { recursive: true, mode: 0o755 })
  symlinkSync('/usr/bin/python3', join(dir, 'python'))
}

/** Removes a tree that a sandbox wrote; symbolic links in it are not followed. */
export async function removeTree(path: string): Promise<void> {
  try {
    await rm(path, { recursive: true, force: true })
  } catch {
    // SECURITY: a guest may remove its own permissions from a directory, and nest directories beyond the longest path:
    // only a walk by descriptors removes these.
    await walked('chmod', ['-R', 'u+rwx', '--', path])
    await walked('rm', ['-rf', '--', path])
    if (existsSync(path)) throw new SandboxError('internal', 'a directory of a sandbox cannot be removed')
  }
}

const WALK_MS = 600_000

const walked = (program: string, args: readonly string[]) =>
  run(
    { file: systemProgram(program) ?? program, args, env: {}, cwd: '/', control: false },
    { wallMs: WALK_MS },
  )

type Opening = Pick<
  OpenSandboxOptions,
  'id' | 'signal' | 'owner' | 'requester' | 'volumes' | 'generation' | 'takesOver'
> & {
  /** The sandbox was suspended: its directories exist, and stay if it cannot be opened. */
  readonly isSuspended?: boolean
  /** The disk of a snapshot that a writable root starts from. */
  readonly disk?: string | undefined
  /** The layers of an image under a writable root, the topmost first; absent: the host's programs. */
  readonly lower?: readonly string[] | undefined
}

/** Wraps the gate's `open` for sandboxes that may have private directories. */
export const openWithPrivateDirectories =
  (gate: Pick<Gate, 'open'>, parts: PrivateParts) =>
  async (
    spec: Spec,
    { id = parts.newId('sb'), isSuspended = false, disk, lower, ...options }: Opening,
  ): Promise<Sandbox> => {
    const { directories, roots } = parts
    const count = spec.private?.length ?? 0
    const wantsRoot = spec.root === 'writable' || spec.root === 'preferred'
    if (count === 0 && !wantsRoot) return gate.open(spec, { id, ...options })
    try {
      const own = isSuspended ? directories.kept(id, count) : directories.make(id, count)
      if (!isSuspended) makeMountPoints(spec, own)
      const dir = directories.of(id)
      // A suspended sandbox gets what it had.
      const root = !isSuspended ? spec.root : roots?.has(dir) ? 'writable' : 'read-only'
      const prepare = (diskMb: number) => (roots as WritableRoots).prepare({ dir, diskMb, from: disk, lower })
      const preparation = roots && { unavailable: () => roots.unavailable(), prepare }
      const open = (one: Spec['root']) =>
        gate.open({ ...spec, ...(one && { root: one }) }, { id, ...options, own, root: preparation })
      const first = await open(root)
      const sandbox = await orWithout(first, root, async (reason) => {
        // SECURITY: what the caller mounts can be the reason, and must not cost other sandboxes their root.
        if (!disk && !lower && first.plan.mounts.length === 0) roots?.fail(reason)
        return open('read-only')
      })
      sandbox.onClose(() => directories.remove(id))
      return sandbox
    } catch (error) {
      if (!isSuspended) await directories.remove(id)
      throw error
    }
  }

/** Volumes may be mounted below a private directory. INVARIANT: nothing has run in the sandbox yet, so no link is followed. */
function makeMountPoints({ private: targets = [], volumes = [] }: Spec, own: readonly string[]): void {
  for (const { target } of volumes)
    for (const [index, outer] of targets.entries()) {
      const inner = relative(outer, target)
      // SECURITY: the target is not judged yet.
      const isBelow = target.startsWith('/') && inner !== '' && !/^\.\.(\/|$)/.test(inner)
      if (isBelow) mkdirSync(join(own[index] as string, inner), { recursive: true, mode: 0o755 })
    }
}

type PrivateParts = {
  readonly directories: PrivateDirectories
  readonly newId: (prefix: string) => string
  /** Root file systems of their own; absent: no sandbox has one. */
  readonly roots?: WritableRoots | undefined
}

/** Starts the sandbox; if its root cannot be started here and was only preferred, opens it without. */
async function orWithout(
  sandbox: Sandbox,
  root: Spec['root'],
  without: (reason: string) => Promise<Sandbox>,
): Promise<Sandbox> {
  if (root !== 'preferred' || !sandbox.plan.root) return sandbox
  try {
    await sandbox.layers()
    return sandbox
  } catch (error) {
    await sandbox.close()
    if (!(error instanceof SandboxError) || error.code !== 'launch-failed') throw error
    return without(error.message)
  }
}
