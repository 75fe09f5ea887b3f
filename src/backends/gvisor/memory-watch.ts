import { readdirSync, readlinkSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { isAlive, processKey, readText } from '../../host/system.ts'

const INTERVAL_MS = 50
const BLOCK_BYTES = 512

/** Where gVisor's kernel keeps the memory of all processes in it: files that exist only in memory. */
function memoryFilesOf(boot: number): readonly string[] {
  const dir = `/proc/${boot}/fd`
  const files = new Map<number, string>()
  for (const name of readdirSync(dir)) {
    const path = join(dir, name)
    if (linkTarget(path).startsWith('/memfd:')) files.set(statSync(path).ino, path)
  }
  if (files.size === 0) throw new Error(`process ${boot} has no memory file`)
  return [...files.values()]
}

/** The target of a symbolic link; empty if there is none any more. */
export function linkTarget(path: string): string {
  try {
    return readlinkSync(path)
  } catch {
    return ''
  }
}

const sizeOf = (files: readonly string[]): number =>
  files.reduce((sum, path) => sum + statSync(path).blocks * BLOCK_BYTES, 0)

/** Bytes of memory that the processes in a sandbox use. */
export const memoryOf = (boot: number): number => sizeOf(memoryFilesOf(boot))

/** Bytes of gVisor's kernel itself, for example its socket buffers. */
function ownMemoryOf(boot: number): number {
  const found = /^RssAnon:\s+(\d+) kB/m.exec(readText(`/proc/${boot}/status`) ?? '')?.[1]
  if (found === undefined) throw new Error(`the memory of process ${boot} cannot be read`)
  return Number(found) * 1024
}

/**
 * Enforces the memory limit where no cgroup can, because an ordinary user started gVisor: kills its kernel, with everything
 * in it, as soon as they use more. SECURITY: memory that cannot be measured counts as too much. Returns how to stop watching.
 */
export function limitMemory(boot: number, maxBytes: number, onExceeded: () => void): () => void {
  const files = memoryFilesOf(boot)
  const key = processKey(boot)
  const isOver = (): boolean => {
    try {
      return sizeOf(files) + ownMemoryOf(boot) > maxBytes
    } catch {
      return true
    }
  }
  const timer = setInterval(() => {
    if (!isOver()) return
    clearInterval(timer)
    // A process that has ended cannot be measured either.
    if (!isAlive(key)) return
    onExceeded()
    kill(boot)
  }, INTERVAL_MS)
  timer.unref()
  return () => clearInterval(timer)
}

function kill(boot: number): void {
  try {
    process.kill(boot, 'SIGKILL')
  } catch {
    // It has just ended.
  }
}
