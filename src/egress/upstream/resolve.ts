import { SandboxError } from '../../model/errors.ts'
import {
  judgeAnswers,
  judgeTarget,
  type NetworkPolicy,
  parseTarget,
  type Target,
  type TargetKind,
} from '../../policy/network/network.ts'
import { hostResolve, type Resolve } from './dial.ts'

/** A permitted target with its checked addresses. */
export type Judged = {
  readonly target: Target
  /** Connect to one of these and never to the name: a second lookup may return other addresses. */
  readonly addresses: readonly string[]
  readonly reason: string
}

/** How names are resolved, and until when. */
export type Lookup = { readonly resolve?: Resolve; readonly signal?: AbortSignal }

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

/** A failed lookup blocks like an empty one; a hung lookup ends with the fetch. */
async function lookUp(host: string, { resolve = hostResolve, signal }: Lookup): Promise<readonly string[]> {
  const answers = (async () => [...(await resolve(host))])().catch(() => [])
  return signal === undefined ? answers : Promise.race([answers, aborted(signal)])
}

const aborted = (signal: AbortSignal): Promise<never> =>
  new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason)
    else signal.addEventListener('abort', () => reject(signal.reason), { once: true })
  })

const CACHED_NAMES = 1024

/**
 * Caches the addresses of a name briefly. SECURITY: caches addresses, never decisions: callers check them again and
 * connect to exactly the checked address, so a cached address is as safe as a fresh one.
 */
export function rememberAnswers(resolve: Resolve, ttlMs: number): Resolve {
  const known = new Map<string, { readonly until: number; readonly answers: Promise<readonly string[]> }>()
  return (host) => {
    const now = Date.now()
    const held = known.get(host)
    if (held !== undefined && held.until > now) return held.answers
    if (known.size >= CACHED_NAMES) known.clear()
    const answers = (async () => [...(await resolve(host))])()
    known.set(host, { until: now + ttlMs, answers })
    answers.catch(() => known.delete(host))
    return answers
  }
}
