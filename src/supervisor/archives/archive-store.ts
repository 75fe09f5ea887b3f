import { createHash, createHmac } from 'node:crypto'
import { open } from 'node:fs/promises'
import { decrypt, encrypt } from '../../host/secrets/authenticated-cipher.ts'
import { SandboxError } from '../../model/errors.ts'
import { claimChunk, condemnChunks, forgetChunk, noteStored } from '../../store/chunks.ts'
import type { Store } from '../../store/sql.ts'
import type { ObjectStore } from './s3.ts'

const CHUNK_BYTES = 8 * 1024 * 1024
/** Nonce and tag of an encrypted chunk. */
const SEAL_BYTES = 12 + 16
/** Chunks of one archive that are on their way at a time. */
const AT_ONCE = 4
const WAIT_MS = 500
const WAITS = 120
const COLLECTED = 1000
/** A chunk that nothing needs stays this long: an upload of something that shares it may be under way. */
const KEEP_MS = 24 * 3_600_000

/** What archives in a store are made with. */
export type ArchiveStoreParts = {
  readonly objects: ObjectStore
  readonly store: Store
  /** Encrypts the chunks and hides their names; absent: neither. */
  readonly key?: Buffer | undefined
}

/**
 * Archives in an object store: chunks by the hash of their content. Equal chunks of one tenant are stored once.
 * SECURITY: never across tenants, so that nobody can find out by the time of an upload what another tenant has.
 */
export class ArchiveStore {
  readonly #parts: ArchiveStoreParts

  constructor(parts: ArchiveStoreParts) {
    this.#parts = parts
  }

  /** Stores a file; returns the hashes of its chunks when all of them are there. */
  async upload(tenant: string, path: string): Promise<readonly string[]> {
    const file = await open(path, 'r')
    const hashes: string[] = []
    const known = new Set<string>()
    const under = new Set<Promise<void>>()
    try {
      for (;;) {
        const buffer = Buffer.allocUnsafe(CHUNK_BYTES)
        const bytes = await fill(file, buffer)
        if (bytes === 0) break
        const chunk = buffer.subarray(0, bytes)
        const hash = createHash('sha256').update(chunk).digest('hex')
        hashes.push(hash)
        if (known.has(hash)) continue
        known.add(hash)
        const one = this.#put(tenant, hash, chunk).finally(() => under.delete(one))
        under.add(one)
        one.catch(() => {})
        if (under.size >= AT_ONCE) await Promise.race(under)
      }
      await Promise.all(under)
      return hashes
    } finally {
      await Promise.allSettled(under)
      await file.close()
    }
  }

  /** The content of an archive. */
  async *download(tenant: string, hashes: readonly string[]): AsyncGenerator<Uint8Array, void> {
    for (const hash of hashes) {
      const name = this.nameOf(tenant, hash)
      const chunk = this.#opened(name, await this.#parts.objects.get(name, CHUNK_BYTES + SEAL_BYTES))
      if (createHash('sha256').update(chunk).digest('hex') !== hash)
        throw new SandboxError('launch-failed', 'a chunk in the archive store has another content')
      yield chunk
    }
  }

  /** The object of a chunk. */
  nameOf(tenant: string, hash: string): string {
    const name = createHmac('sha256', this.#parts.key ?? '')
      .update(`${tenant}\0${hash}`)
      .digest('hex')
    return `chunks/${name.slice(0, 2)}/${name}`
  }

  /** Removes chunks that no archive has needed for a while. Returns how many. */
  async collect(before = Date.now() - KEEP_MS): Promise<number> {
    const { store, objects } = this.#parts
    const names = await store.write((tx) => condemnChunks(tx, before, COLLECTED))
    for (const name of names) {
      await objects.remove(name)
      await store.write((tx) => forgetChunk(tx, name))
    }
    return names.length
  }

  async #put(tenant: string, hash: string, chunk: Buffer): Promise<void> {
    const { store, objects } = this.#parts
    const name = this.nameOf(tenant, hash)
    for (let turn = 0; turn < WAITS; turn++) {
      const claim = await store.write((tx) => claimChunk(tx, name, chunk.length))
      if (claim === 'stored') return
      if (claim === 'write') {
        await objects.put(name, this.#sealed(name, chunk))
        await store.write((tx) => noteStored(tx, name))
        return
      }
      await new Promise((resolve) => setTimeout(resolve, WAIT_MS))
    }
    throw new SandboxError('unreachable', 'a chunk is being removed from the archive store', {
      retryAfterSecs: 10,
    })
  }

  #sealed(name: string, chunk: Buffer): Uint8Array {
    const { key } = this.#parts
    if (!key) return chunk
    return encrypt(key, chunk, name)
  }

  #opened(name: string, bytes: Uint8Array): Uint8Array {
    const { key } = this.#parts
    if (!key) return bytes
    const chunk = decrypt(key, bytes, name)
    if (!chunk) throw new SandboxError('launch-failed', 'a chunk in the archive store cannot be decrypted')
    return chunk
  }
}

/** Reads until the buffer is full or the file ends. */
async function fill(file: Awaited<ReturnType<typeof open>>, buffer: Buffer): Promise<number> {
  let at = 0
  while (at < buffer.length) {
    const { bytesRead } = await file.read(buffer, at, buffer.length - at)
    if (bytesRead === 0) break
    at += bytesRead
  }
  return at
}
