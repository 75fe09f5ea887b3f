import { createHash, randomBytes } from 'node:crypto'
import {
  chownSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { SandboxError } from '../../model/errors.ts'
import type { Mount, PathFact } from '../../model/plan.ts'
import { hostPath } from '../files/facts.ts'
import { run } from '../process/run.ts'
import { applyChange, type OwnChanges } from './apply.ts'
import { type Change, changesOf } from './changes.ts'
import { contentName, textOf, type UntrustedPath } from './read.ts'

type Record = {
  readonly id: string
  /** On the clock of file timestamps: an original with a later timestamp was changed meanwhile. */
  readonly startedNs: string
  readonly mounts: readonly { readonly real: string; readonly dir: string; readonly target?: string }[]
  readonly own?: OwnChanges
  /** The number of changes at the last count, after the sandbox's end. */
  readonly waiting?: number
}

export type { Change } from './changes.ts'

const HOME = 'reviews'

/** Pending changes of a sandbox. They are stored in the state directory until they are applied or dropped. */
export class Review {
  readonly id: string
  readonly #dir: string
  readonly #agent: string
  #record: Record

  private constructor(dir: string, agent: string, record: Record) {
    this.#dir = dir
    this.#agent = agent
    this.#record = record
    this.id = record.id
  }

  /** Creates the directories for the changes of this many mounts. `owner` is the user who will write there. */
  static create(
    stateDir: string,
    agent: string,
    count: number,
    owner: PathFact | undefined,
    id = `rv_${randomBytes(6).toString('hex')}`,
  ): Review {
    const dir = join(stateDir, HOME, id)
    mkdirSync(dir, { recursive: true, mode: 0o700 })
    for (let index = 0; index < count; index++) {
      for (const name of ['', 'upper', 'work']) {
        const directory = join(dir, String(index), name)
        mkdirSync(directory, { recursive: true, mode: 0o755 })
        if (process.getuid?.() === 0 && owner) chownSync(directory, owner.uid, owner.gid)
      }
    }
    const review = new Review(dir, agent, { id, startedNs: clockOf(dir), mounts: [] })
    return review
  }

  static open(stateDir: string, agent: string, id: string): Review {
    const file = join(stateDir, HOME, id, 'review.json')
    if (!/^rv_[0-9a-f]+$/.test(id) || !existsSync(file))
      throw new SandboxError('invalid-input', `no such review \`${id}\``, { hint: 'ringfence review ls' })
    return new Review(join(stateDir, HOME, id), agent, JSON.parse(readFileSync(file, 'utf8')) as Record)
  }

  /** The review of a sandbox; undefined once all changes are applied or dropped. */
  static of(stateDir: string, agent: string, sandboxId: string): Review | undefined {
    const id = reviewId(sandboxId)
    return Review.list(stateDir).includes(id) ? Review.open(stateDir, agent, id) : undefined
  }

  static list(stateDir: string): readonly string[] {
    const home = join(stateDir, HOME)
    return existsSync(home) ? readdirSync(home).filter((id) => existsSync(join(home, id, 'review.json'))) : []
  }

  /** The number of pending changes at the last count, without walking the files; undefined if never counted. */
  static waitingOf(stateDir: string, sandboxId: string): number | undefined {
    try {
      const file = join(stateDir, HOME, reviewId(sandboxId), 'review.json')
      return (JSON.parse(readFileSync(file, 'utf8')) as Record).waiting
    } catch {
      // Dropped concurrently.
      return undefined
    }
  }

  /** The directories for a plan, one per mount. */
  directories(): readonly PathFact[] {
    return readdirSync(this.#dir)
      .filter((name) => /^\d+$/.test(name))
      .sort((a, b) => Number(a) - Number(b))
      .map((name) => hostPath(join(this.#dir, name)).fact as PathFact)
  }

  /** Stores which originals the changes belong to. */
  keep(mounts: readonly Mount[]): void {
    const kept = mounts.flatMap(({ real, target, overlay }) =>
      overlay ? [{ real, target, dir: overlay.real }] : [],
    )
    this.#write({ ...this.#record, mounts: kept })
  }

  #write(record: Record): void {
    this.#record = record
    writeFileSync(join(this.#dir, 'review.json'), JSON.stringify(record), { mode: 0o600 })
  }

  /** The changes, sorted by path. */
  async changes(): Promise<readonly Change[]> {
    const all: Change[] = []
    for (const { real, dir, target = real } of this.#record.mounts) {
      const upper = join(dir, 'upper')
      all.push(...(await changesOf({ root: real, target, upper }, await this.#records(upper))))
    }
    return all.sort((a, b) => (a.path < b.path ? -1 : 1))
  }

  /**
   * Applies the chosen changes, each one atomically; resolves with those that failed. With `stays` the directory is kept,
   * because the sandbox still uses it.
   */
  async apply(
    chosen: (change: Change) => boolean = () => true,
    { stays = false }: { readonly stays?: boolean } = {},
  ): Promise<readonly { readonly path: string; readonly inside: string; readonly why: string }[]> {
    const refused: { path: string; inside: string; why: string }[] = []
    let own: OwnChanges = this.#record.own ?? {}
    for (const change of (await this.changes()).filter(chosen)) {
      try {
        own = { ...own, ...(await applyChange(change, BigInt(this.#record.startedNs), own)) }
      } catch (error) {
        refused.push({ path: change.path, inside: change.inside, why: (error as Error).message })
      }
    }
    this.#write({ ...this.#record, own })
    if (!stays) await this.settle()
    return refused
  }

  /** After the sandbox's end: counts the remaining changes, and removes a review without changes. */
  async settle(): Promise<void> {
    const waiting = (await this.changes()).length
    if (waiting === 0) this.drop()
    else this.#write({ ...this.#record, waiting })
  }

  /** Identifies exactly this change, so that the change that a person saw is the one that is applied. */
  async version({ change, kind, mode, size, target, upper, relative }: Change): Promise<string> {
    const content = kind === 'file' && upper ? await contentName({ root: upper, relative }) : ''
    return createHash('sha256')
      .update(JSON.stringify([change, kind, mode, size, target ?? '', content]))
      .digest('hex')
  }

  /** The text before and after, if the files are text. */
  texts(
    { change, kind, root, upper, relative }: Change,
    most: number,
  ): { readonly before?: string | undefined; readonly after?: string | undefined } {
    const read = (untrusted: UntrustedPath): string | undefined => {
      try {
        return textOf(untrusted, most)
      } catch {
        return undefined
      }
    }
    if (kind !== 'file' || change === 'mode') return {}
    return {
      before: change === 'added' ? '' : read({ root, relative }),
      after: upper ? read({ root: upper, relative }) : '',
    }
  }

  /** Removes all changes. */
  drop(): void {
    this.#record = { ...this.#record, mounts: [] }
    rmSync(this.#dir, { recursive: true, force: true })
  }

  async #records(upper: string): Promise<readonly string[]> {
    const result = await run(
      { file: this.#agent, args: ['overlay-changes', upper], env: {}, control: false },
      {},
    )
    if (result.exit.code !== 0)
      throw new SandboxError(
        'internal',
        `the changes cannot be read: ${Buffer.from(result.stderr).toString()}`,
      )
    return Buffer.from(result.stdout).toString('utf8').split('\0')
  }
}

/**
 * The current time on the clock of file timestamps, which advances in steps of a few milliseconds. Waits for the next
 * step, so that everything written before has an earlier timestamp.
 */
function clockOf(dir: string): string {
  const stamp = (): bigint => {
    writeFileSync(join(dir, 'started'), '')
    return statSync(join(dir, 'started'), { bigint: true }).ctimeNs
  }
  const first = stamp()
  let now = first
  while (now === first) {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1)
    now = stamp()
  }
  return String(now)
}

/** The sandbox id of a review; runs of the command line have no sandbox record. */
export const reviewedId = (reviewId: string): string => reviewId.replace(/^rv_/, 'sb_')

/** The review of a sandbox has the same id with another prefix. */
export const reviewId = (sandboxId: string): string => sandboxId.replace(/^[a-z]+_/, 'rv_')
