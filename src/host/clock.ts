/** Milliseconds on the monotonic clock. (The global `performance` costs milliseconds at its first use.) */
export function monotonicMs(): number {
  const [seconds, nanoseconds] = process.hrtime()
  return seconds * 1000 + nanoseconds / 1e6
}

/** PLATFORM: timers store 31 bits of milliseconds (24.8 days); a longer timer would fire at once. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1

/** A timer that may be longer than Node's longest. */
export type LongTimeout = { readonly clear: () => void; readonly unref: () => LongTimeout }

/** `setTimeout` without an upper limit: long waits are split into steps. */
export function longTimeout(action: () => void, ms: number): LongTimeout {
  const at = monotonicMs() + ms
  let held = true
  let timer: NodeJS.Timeout
  const arm = (): void => {
    const left = Math.max(0, at - monotonicMs())
    timer = setTimeout(left > LONGEST_TIMER_MS ? arm : action, Math.min(left, LONGEST_TIMER_MS))
    if (!held) timer.unref()
  }
  arm()
  const it: LongTimeout = {
    clear: () => clearTimeout(timer),
    unref: () => {
      held = false
      timer.unref()
      return it
    },
  }
  return it
}
