import { createHash } from 'node:crypto'
import { mkdirSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { writeAtomically } from '../host/files/atomic-file.ts'
import { SandboxError } from '../model/errors.ts'
import type { Json } from '../model/event.ts'
import type { MemoryStore } from '../wasm/host/host-parts.ts'

/** Quotas of one agent. */
export type MemoryQuota = { readonly keys: number; readonly bytes: number }

const QUOTA: MemoryQuota = { keys: 1000, bytes: 1024 * 1024 }

const digest = (text: string): string => createHash('sha256').update(text).digest('hex')

/**
 * The memory of one agent: one file per key under the state directory, written atomically. File names are hashes, so
 * that neither an agent's name nor a key can choose a path.
 */
export function memoryOf(stateDir: string, agentId: string, quota: MemoryQuota = QUOTA): MemoryStore {
  const dir = join(stateDir, 'memory', digest(agentId))
  const fileOf = (key: string): string => join(dir, `${digest(key)}.json`)
  return {
    async recall(key) {
      const kept = readKept(fileOf(key))
      return kept?.key === key ? kept.value : undefined
    },
    async store(key, value) {
      mkdirSync(dir, { recursive: true, mode: 0o700 })
      const content = JSON.stringify({ key, value })
      const others = sizesIn(dir, fileOf(key))
      const bytes = others.reduce((sum, size) => sum + size, 0) + Buffer.byteLength(content)
      if (others.length >= quota.keys || bytes > quota.bytes) throw full(quota)
      writeAtomically(fileOf(key), content)
    },
  }
}

const full = ({ keys, bytes }: MemoryQuota): SandboxError =>
  new SandboxError('resource-exhausted', `an agent keeps at most ${keys} keys and ${bytes} bytes`)

function readKept(file: string): { readonly key: string; readonly value: Json } | undefined {
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as { key: string; value: Json }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}

/** Bytes used by the other keys. */
const sizesIn = (dir: string, except: string): readonly number[] =>
  readdirSync(dir)
    .filter((name) => name.endsWith('.json'))
    .map((name) => join(dir, name))
    .filter((file) => file !== except)
    .map((file) => statSync(file, { throwIfNoEntry: false })?.size ?? 0)
