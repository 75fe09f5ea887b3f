import { SandboxError } from '../../model/errors.ts'
import {
  judgeAnswers,
  judgeTarget,
  type NetworkPolicy,
  parseTarget,
  type Target,
  type TargetKind,
} from '../../policy/network/network.ts'
import { Cancellation, type CancelSignal, deadline, orCancelled } from '../cancel.ts'
import { hostResolve, type Resolve } from './names.ts'

/** A permitted target with its checked addresses. */
export type Judged = {
  readonly target: Target
  /** Connect to one of these and never to the name: a second lookup may return other addresses. */
  readonly addresses: readonly string[]
  readonly reason: string
}

/** How names are resolved, and until when. */
export type Lookup = {
  readonly resolve?: Resolve | undefined
  readonly until?: CancelSignal | undefined
  readonly timeoutMs?: number | undefined
}

/** Parses a target, resolves it once and checks it; throws `ssrf-blocked` unless the name and every address pass. */
export async function resolveJudged(
  policy: NetworkPolicy,
  raw: string,
  kind: TargetKind,
  options: Lookup = {},
): Promise<Judged> {
  const parsed = parseTarget(raw, kind)
  if (parsed.kind === 'blocked') throw new SandboxError('ssrf-blocked', parsed.reason)
  const target = parsed.value
  const judged = judgeTarget(policy, target)
  if (judged.verdict === 'block') throw new SandboxError('ssrf-blocked', judged.reason)
  if (target.literal) return { target, addresses: [target.host], reason: judged.reason }
  const addresses = await lookUp(target.host, options)
  const verdict = judgeAnswers(policy, target, addresses)
  if (verdict.verdict === 'block') throw new SandboxError('ssrf-blocked', verdict.reason)
  return { target, addresses, reason: verdict.reason }
}

/** The most time for a lookup, the wait for its turn included. */
const LOOKUP_MS = 10_000

/** A failed lookup blocks like an empty one; a hung lookup ends in time, and with the connection that needs it. */
export async function lookUp(
  host: string,
  { resolve = hostResolve, until, timeoutMs = LOOKUP_MS }: Lookup,
): Promise<readonly string[]> {
  const clock = deadline(timeoutMs, `\`${host}\` is not resolved`, until)
  try {
    const answers = resolve(host, clock.until)
    if (Array.isArray(answers)) return [...answers]
    return [...(await orCancelled(Promise.resolve(answers), clock.until))]
  } catch (error) {
    if (error instanceof SandboxError || clock.until.reason !== undefined) throw error
    return []
  } finally {
    clock.stop()
  }
}

const CACHED_NAMES = 1024

/** One lookup and its answers. */
class Held {
  /** At once when they are known. */
  answers: Promise<readonly string[]> | readonly string[]
  readonly #until: number
  readonly #lookup = new Cancellation()
  #isDone = false
  #waiting = 0

  constructor(
    until: number,
    start: (until: CancelSignal) => Promise<readonly string[]>,
    failed: (held: Held) => void,
  ) {
    this.#until = until
    const answers = start(this.#lookup)
    this.answers = answers
    answers.then(
      (found) => {
        this.answers = found
        this.#isDone = true
      },
      () => {
        this.#isDone = true
        failed(this)
      },
    )
  }

  /** Also while the lookup goes on: a second one for the same name would take as long. */
  get isFresh(): boolean {
    return this.#lookup.reason === undefined && (!this.#isDone || this.#until > Date.now())
  }

  /** The lookup goes on until the last connection that waits for it has ended. */
  waitUntil(until: CancelSignal | undefined): void {
    if (this.#isDone) return
    this.#waiting++
    until?.listen(() => {
      if (--this.#waiting === 0) this.#lookup.cancel(until.reason as Error)
    })
  }
}

/**
 * Caches the addresses of a name briefly. SECURITY: caches addresses, never decisions: callers check them again and
 * connect to exactly the checked address, so a cached address is as safe as a fresh one.
 */
export function rememberAnswers(resolve: Resolve, ttlMs: number): Resolve {
  const known = new Map<string, Held>()
  const asking = (host: string) => async (end: CancelSignal) => [...(await resolve(host, end))]
  const forget = (host: string) => (failed: Held) => {
    if (known.get(host) === failed) known.delete(host)
  }
  return (host, until) => {
    const found = known.get(host)
    const held = found?.isFresh ? found : new Held(Date.now() + ttlMs, asking(host), forget(host))
    held.waitUntil(until)
    if (held !== found && known.size >= CACHED_NAMES) known.clear()
    known.set(host, held)
    return held.answers
  }
}
