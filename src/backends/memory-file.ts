import { readdirSync, renameSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import type { Session } from '../host/guest/session.ts'

/** How a sandbox goes to disk while it is paused; for machines and gVisor sandboxes. */

const ANSWER_MS = 15_000
/** What must stay free on disk when memory is written there. */
export const RESERVE_MB = 512

/** The memory of a sleeping sandbox: a file, or a directory with files. */
export class MemoryFile {
  readonly #path: string
  #isWritten = false

  constructor(path: string) {
    this.#path = path
  }

  /** Whether the memory is on disk and nowhere else. */
  get isWritten(): boolean {
    return this.#isWritten
  }

  /** What it takes on disk. */
  get bytes(): number {
    return this.#isWritten ? allocated(this.#path) : 0
  }

  /** Writes it. What a failed attempt left is removed. */
  async write(save: (path: string) => Promise<void>): Promise<void> {
    try {
      await save(this.#path)
    } catch (error) {
      this.#remove(this.#path)
      throw error
    }
    this.#isWritten = true
  }

  /**
   * Continues from it. SECURITY: it is gone before anything of the sandbox runs, so that no second copy of its memory ever does.
   * `restore` must have ended what it started if it throws.
   */
  async read<T>(restore: (path: string) => Promise<T>): Promise<T> {
    const waking = `${this.#path}-waking`
    renameSync(this.#path, waking)
    let restored: T
    try {
      restored = await restore(waking)
    } catch (error) {
      renameSync(waking, this.#path)
      throw error
    }
    this.#remove(waking)
    this.#isWritten = false
    return restored
  }

  #remove(path: string): void {
    rmSync(path, { recursive: true, force: true })
  }
}

function allocated(path: string): number {
  const found = statSync(path, { throwIfNoEntry: false })
  if (!found) return 0
  const inside = found.isDirectory() ? readdirSync(path).map((name) => allocated(join(path, name))) : []
  return inside.reduce((sum, bytes) => sum + bytes, found.blocks * 512)
}

/** Has the agent answer: then everything before has arrived there. A sandbox whose agent does not answer is ended. */
export async function answered(session: Session | undefined, identity: Uint8Array): Promise<void> {
  const late = setTimeout(() => session?.close('the sandbox did not answer in time'), ANSWER_MS)
  try {
    await session?.renew(identity)
  } finally {
    clearTimeout(late)
  }
}
