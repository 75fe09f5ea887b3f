import { closeSync, fstatSync, openSync, readSync } from 'node:fs'
import type { SecretConfig } from '../../model/config.ts'
import { SandboxError } from '../../model/errors.ts'
import { assertPrivateFile } from '../../model/files/private-file.ts'
import { Secret } from './secret.ts'

const MAX_BYTES = 65_536

/** Values that were read and are not active yet. */
export type PendingValues = ReadonlyMap<string, Buffer>

/**
 * The operator's secrets, by name. There is one copy of each: a replaced or revoked secret changes in every running
 * sandbox at once, and the old bytes are zeroed. A proxy keeps what it must still find in responses until its sandbox
 * ends.
 */
export class Vault {
  readonly #env: Readonly<Record<string, string>>
  readonly #secrets = new Map<string, Secret>()
  #opened = false

  constructor(env: Readonly<Record<string, string>>) {
    this.#env = env
  }

  /** Reads every value, or throws; nothing changes before `take`. */
  read(declared: readonly SecretConfig[]): PendingValues {
    const fresh = new Map<string, Buffer>()
    for (const one of declared) {
      if (fresh.has(one.name)) throw wrong(one.name, 'is declared twice', 'keep one of them')
      fresh.set(one.name, this.#valueOf(one))
    }
    return fresh
  }

  /** Activates values and zeroes their input buffers. Returns the names that were added, changed or removed. */
  take(fresh: PendingValues): readonly string[] {
    const changed = [...this.#secrets.keys()].filter((name) => !fresh.has(name))
    for (const name of changed) this.#withdraw(name)
    for (const [name, value] of fresh) {
      const before = this.#secrets.get(name)
      if (!before?.use((bytes) => bytes.equals(value))) changed.push(name)
      if (before) before.replace(value)
      else this.#secrets.set(name, new Secret(value))
      value.fill(0)
    }
    this.#opened = true
    return changed
  }

  /** The shared secret itself, not a copy; reads all values at first use. */
  lend(name: string, declared: readonly SecretConfig[]): Secret | undefined {
    if (!this.#opened) this.take(this.read(declared))
    return this.#secrets.get(name)
  }

  dispose(): void {
    for (const name of [...this.#secrets.keys()]) this.#withdraw(name)
  }

  #withdraw(name: string): void {
    this.#secrets.get(name)?.dispose()
    this.#secrets.delete(name)
  }

  #valueOf({ name, file, env }: SecretConfig): Buffer {
    if ((file === undefined) === (env === undefined))
      throw wrong(name, 'needs exactly one source', 'give it `file` or `env`')
    if (file !== undefined) return readPrivate(name, file)
    const value = this.#env[env as string]
    if (!value) throw wrong(name, `has no value: \`${env}\` is not set`, `set ${env} where ringfence starts`)
    return Buffer.from(value)
  }
}

/** SECURITY: checked and read through one descriptor, so that the file that was checked is the file that is read. */
function readPrivate(name: string, file: string): Buffer {
  const fd = opened(name, file)
  try {
    const { mode, size, uid } = fstatSync(fd)
    if ((mode & 0o170000) !== 0o100000) throw wrong(name, `is not a file: \`${file}\``, 'name a regular file')
    assertPrivateFile(`the secret \`${name}\``, { file, mode, uid, reader: process.geteuid?.() })
    if (size > MAX_BYTES) throw wrong(name, `is larger than ${MAX_BYTES} bytes`, 'is it the right file?')
    const bytes = Buffer.alloc(size)
    const end = readSync(fd, bytes, 0, size, 0)
    return withoutLineEnd(bytes.subarray(0, end))
  } finally {
    closeSync(fd)
  }
}

function opened(name: string, file: string): number {
  try {
    return openSync(file, 'r')
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    throw wrong(
      name,
      `cannot be read from \`${file}\` (${code})`,
      'write its value there, or name another file',
    )
  }
}

/** Editors append a line break that is not part of the value. */
const withoutLineEnd = (bytes: Buffer): Buffer =>
  bytes.subarray(0, bytes.length - (/\r?\n$/.exec(bytes.subarray(-2).toString('latin1'))?.[0].length ?? 0))

const wrong = (name: string, why: string, hint: string): SandboxError =>
  new SandboxError('invalid-config', `the secret \`${name}\` ${why}`, { hint })
