import { createHash, randomBytes } from 'node:crypto'
import {
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'

const DIGEST_BYTES = 32
const MAX_BYTES = 256 * 1024 * 1024
const NAME = /^[0-9a-f]{64}$/

const digestOf = (bytes: Uint8Array): Buffer => createHash('sha256').update(bytes).digest()

/**
 * Metered modules on disk, by the hash of the original, the meter's version and the limits, so that a new process does not
 * meter them again. SECURITY: the directory is in the state directory, which no sandbox can reach; what is damaged or cannot be
 * read is metered again.
 */
export class ModuleFiles {
  readonly #directory: string

  constructor(directory: string) {
    this.#directory = directory
  }

  read(hash: string): Uint8Array | undefined {
    const file = join(this.#directory, hash)
    try {
      const stored = readFileSync(file)
      const bytes = stored.subarray(DIGEST_BYTES)
      if (!digestOf(bytes).equals(stored.subarray(0, DIGEST_BYTES))) return undefined
      utimesSync(file, new Date(), new Date())
      return bytes
    } catch {
      return undefined
    }
  }

  /** A file that cannot be written costs time at the next start, nothing else. */
  write(hash: string, bytes: Uint8Array): void {
    try {
      mkdirSync(this.#directory, { recursive: true, mode: 0o700 })
      const temporary = join(this.#directory, `${randomBytes(8).toString('hex')}.tmp`)
      writeFileSync(temporary, Buffer.concat([digestOf(bytes), bytes]), { flag: 'wx', mode: 0o600 })
      renameSync(temporary, join(this.#directory, hash))
      this.#evict()
    } catch {
      // as above
    }
  }

  /** Removes those that were not used for the longest time. */
  #evict(): void {
    const files = readdirSync(this.#directory)
      .filter((name) => NAME.test(name))
      .map((name) => ({ path: join(this.#directory, name), ...sizeAndTime(join(this.#directory, name)) }))
      .sort((a, b) => b.time - a.time)
    let total = 0
    for (const { path, size } of files) {
      total += size
      if (total > MAX_BYTES) rmSync(path, { force: true })
    }
  }
}

function sizeAndTime(path: string): { readonly size: number; readonly time: number } {
  const stat = statSync(path, { throwIfNoEntry: false })
  return { size: stat?.size ?? 0, time: stat?.mtimeMs ?? 0 }
}
