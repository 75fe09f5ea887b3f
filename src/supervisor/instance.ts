import { randomBytes } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createLock } from '../audit/lock.ts'
import { writeAtomically } from '../host/files/atomic-file.ts'
import { SandboxError } from '../model/errors.ts'

/**
 * Identifies the owner of sandboxes found on a host. The id belongs to the state directory; the epoch grows with each
 * start. A sandbox may be reaped only if it carries our id and an older epoch.
 */
export type Instance = { readonly id: string; readonly epoch: number; readonly release: () => void }

/** Keeps servers from using a state directory until the result is called; throws while one uses it. */
export function lockStateDirectory(stateDir: string): () => void {
  mkdirSync(stateDir, { recursive: true, mode: 0o700 })
  const lock = createLock(join(stateDir, 'server.lock'))
  if (lock.tryAcquire() === undefined)
    throw new SandboxError(
      'wrong-state',
      `a server (process ${lock.holderPid()}) already uses \`${stateDir}\``,
      {
        hint: 'stop it first, or set RINGFENCE_HOME to another directory',
      },
    )
  let held = true
  return () => {
    if (held) lock.release()
    held = false
  }
}

/** Increments the epoch; throws while another server uses the same state directory. */
export function beginInstance(stateDir: string): Instance {
  const release = lockStateDirectory(stateDir)
  const file = join(stateDir, 'instance.json')
  const last = existsSync(file)
    ? parse(readFileSync(file, 'utf8'))
    : { id: randomBytes(8).toString('hex'), epoch: 0 }
  const next = { id: last.id, epoch: last.epoch + 1 }
  writeAtomically(file, `${JSON.stringify(next)}\n`)
  return { ...next, release }
}

function parse(text: string): { readonly id: string; readonly epoch: number } {
  try {
    const { id, epoch } = JSON.parse(text) as { readonly id?: unknown; readonly epoch?: unknown }
    if (typeof id === 'string' && Number.isSafeInteger(epoch)) return { id, epoch: epoch as number }
  } catch {
    // Reported below.
  }
  throw new SandboxError('invalid-config', 'instance.json in the state directory is unreadable', {
    hint: 'restore it, or start with a new state directory',
  })
}
