import { readFileSync } from 'node:fs'
import { descendantsOf } from '../../src/host/system.ts'

/** Many paused sandboxes: they use disk instead of memory. */

/** How many sandboxes sleep at the same time in these tests, which run with full counts only. */
export const SLEEPERS = 100

/** The memory of all processes that this one has started, in MiB: each page counts once. */
function childrenMb(): number {
  const kilobytes = descendantsOf(process.pid)
    .slice(1)
    .map((pid) => Number(/^Pss:\s+(\d+)/m.exec(rollup(pid))?.[1] ?? 0))
  return kilobytes.reduce((sum, one) => sum + one, 0) / 1024
}

function rollup(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8')
  } catch {
    // The process has exited.
    return ''
  }
}

type Sleeper = { readonly pause: () => Promise<void>; readonly close: () => Promise<void> }

/**
 * Opens sandboxes one after the other; each has 4 MB of random bytes when it goes to sleep. Returns the memory before, of one that is
 * awake, and with all asleep, in MiB.
 */
export async function putToSleep<T extends Sleeper>(
  open: () => Promise<T>,
): Promise<{ readonly sandboxes: readonly T[]; readonly before: number; awake: number; asleep: number }> {
  const before = childrenMb()
  const sandboxes: T[] = []
  let awake = 0
  while (sandboxes.length < SLEEPERS) {
    const sandbox = await open()
    if (awake === 0) awake = childrenMb() - before
    await sandbox.pause()
    sandboxes.push(sandbox)
  }
  return { sandboxes, before, awake, asleep: childrenMb() }
}

/** A command that has 4 MB of random bytes in memory, says so, and waits. */
export const HOLDS_MEMORY = [
  'sh',
  '-c',
  'm=$(head -c 3000000 /dev/urandom | base64 -w 0); echo held; while :; do sleep 1; printf %s $m | wc -c; done',
] as const

/** Prints the figures of a run. */
export function report(what: string, { before, awake, asleep }: Record<string, unknown>, disk: number): void {
  const mb = (value: unknown): string => `${Number(value).toFixed(0)} MB`
  process.stderr.write(
    `${SLEEPERS} sleeping ${what}: memory of all processes before ${mb(before)}, of one awake ${mb(awake)}, with all asleep ${mb(asleep)}; disk ${mb(disk / 2 ** 20)}\n`,
  )
}
