import type { ExecResult, Violation } from '../model/command.ts'
import type { Mount, Plan } from '../model/plan.ts'
import type { RunningCommand } from './backend.ts'
import type { Manifest } from './copy-in.ts'
import type { SharedFiles } from './guest-files.ts'
import { CopyOut, NAME_BYTES, type ProtectedNameOf, type SkippedPath } from './microvm/files/copy-out.ts'
import { TarReader } from './tar/reader.ts'

/** A host directory that the guest has a writable copy of. */
export type SharedMount = { readonly mount: Mount; readonly manifest: Manifest }

/** How files are copied back. */
export type CopyRules = {
  readonly refuses: ProtectedNameOf
  /** The limit of all bytes that are copied back. */
  readonly most: number
}

type CopyBackParts = CopyRules & {
  readonly plan: Plan
  readonly files: Pick<SharedFiles, 'changes'>
  readonly shared: readonly SharedMount[]
  /** When the copies were complete, on the guest's clock, in nanoseconds. */
  readonly since: string
}

const MAX_ENTRIES = 1_000_000
const MAX_NOTED = 64

/** Copies the changes of a sandbox that works on copies back to the host's directories: after each command, and at the end. */
export class CopyBack {
  readonly #parts: CopyBackParts
  readonly #since = new Map<string, string>()
  #taking: Promise<unknown> = Promise.resolve()

  constructor(parts: CopyBackParts) {
    this.#parts = parts
  }

  /** The same command, whose result arrives once its changes are on the host. */
  after(running: RunningCommand): RunningCommand {
    if (this.#parts.shared.length === 0) return running
    const result = running.result.then((ended) => this.#settle(ended))
    result.catch(() => {})
    return {
      pid: running.pid,
      result,
      write: (data) => running.write(data),
      endInput: () => running.endInput(),
      signal: (signal) => running.signal(signal),
      resize: (size) => running.resize(size),
    }
  }

  /** One at a time: parallel copies would take each other's changes for changes of the host. */
  take(): Promise<readonly SkippedPath[]> {
    const taken = this.#taking.then(() => this.#takeAll())
    this.#taking = taken.catch(() => {})
    return taken
  }

  async #settle(ended: ExecResult): Promise<ExecResult> {
    const left = await this.take().catch((error: Error): SkippedPath[] => [
      { path: error.message, why: 'refused' },
    ])
    return left.length === 0
      ? ended
      : { ...ended, violations: [...ended.violations, ...left.slice(0, MAX_NOTED).map(violationOf)] }
  }

  async #takeAll(): Promise<readonly SkippedPath[]> {
    const left: SkippedPath[] = []
    for (const one of this.#parts.shared) left.push(...(await this.#takeOne(one)))
    return left
  }

  async #takeOne({ mount, manifest }: SharedMount): Promise<readonly SkippedPath[]> {
    const { plan, files, refuses, most, since } = this.#parts
    const source = files.changes(mount.target, this.#since.get(mount.target) ?? since)
    const reader = new TarReader(source, { entries: MAX_ENTRIES, bytes: most, nameBytes: NAME_BYTES })
    const out = new CopyOut(mount, manifest, plan.protection, refuses)
    const taken = await out.take(reader).catch((error: unknown) => {
      void reader.close().catch(() => {})
      throw error
    })
    if (taken.since !== undefined) this.#since.set(mount.target, taken.since)
    return taken.left
  }
}

const violationOf = ({ path, why }: SkippedPath): Violation => ({
  guarantee: why === 'protected' ? 'fs.protect' : 'fs.write',
  details:
    why === 'protected'
      ? `${path} is protected and was not copied back`
      : why === 'changed'
        ? `${path} was changed on the host meanwhile and was not copied back`
        : `${path} could not be copied back`,
})
