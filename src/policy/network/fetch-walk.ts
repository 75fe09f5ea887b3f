import type { UrlVerdict } from '../../model/decision.ts'
import {
  block,
  judgeAnswers,
  judgeTarget,
  type NetworkPolicy,
  parseTarget,
  type Target,
  type TargetKind,
} from './network.ts'

/**
 * All steps of a fetch, with the network as an argument: resolve, judge all addresses, connect, follow redirects.
 */

export const MAX_REDIRECTS = 5

/** The parts of a response that matter for redirects. */
export type Answer = { readonly status: number; readonly location?: string | undefined }

/** The network as functions, so that a fetch can be tested without one. */
export type FetchWorld = {
  /** All addresses of a name. It may throw; a failure blocks like an empty answer. */
  readonly resolve: (host: string) => Promise<readonly string[]> | readonly string[]
  /** Connects to the judged address and requests the URL. */
  readonly respond: (url: URL, address: string) => Promise<Answer> | Answer
  /** The number of lookups that must agree that a name is public before the first answer is used; default: 2. */
  readonly lookups?: number
}

/** The verdict on a whole fetch, with its hops. */
export type FetchWalk = UrlVerdict & {
  /** Every address that was connected to, in order. */
  readonly connects: readonly string[]
}

/** Follows a fetch or a proxy request to its end and checks every hop against the policy. */
export async function walkFetch(
  policy: NetworkPolicy,
  request: { readonly url: string; readonly kind: TargetKind },
  world: FetchWorld,
): Promise<FetchWalk> {
  const connects: string[] = []
  let raw = request.url
  for (let hop = 0; hop <= MAX_REDIRECTS; hop++) {
    const parsed = parseTarget(raw, request.kind)
    if (parsed.kind === 'blocked') return { ...block(parsed.reason), connects }
    const pinned = await pinAddress(policy, parsed.value, world)
    if (pinned.kind === 'blocked') return { ...pinned.verdict, connects }
    connects.push(pinned.address)
    const url = parsed.value.url
    const next = url && redirectOf(url, await world.respond(url, pinned.address))
    if (next === undefined) return { verdict: 'allow', reason: pinned.reason, connects }
    raw = next
  }
  return { ...block(`more than ${MAX_REDIRECTS} redirects`), connects }
}

type Pinned =
  | { readonly kind: 'pinned'; readonly address: string; readonly reason: string }
  | { readonly kind: 'blocked'; readonly verdict: UrlVerdict }

/**
 * The address to connect to. SECURITY: it comes from the first lookup, never from a later one; the other lookups only
 * detect names that resolve differently each time.
 */
async function pinAddress(policy: NetworkPolicy, target: Target, world: FetchWorld): Promise<Pinned> {
  const verdict = judgeTarget(policy, target)
  if (verdict.verdict === 'block') return { kind: 'blocked', verdict }
  if (target.literal) return { kind: 'pinned', address: target.host, reason: verdict.reason }
  let first: string | undefined
  let reason = verdict.reason
  for (let lookup = 0; lookup < (world.lookups ?? 2); lookup++) {
    const answers = await answersOf(world, target.host)
    const judged = judgeAnswers(policy, target, answers)
    if (judged.verdict === 'block') return { kind: 'blocked', verdict: judged }
    first ??= answers[0]
    reason = judged.reason
  }
  return first === undefined
    ? { kind: 'blocked', verdict: block(`\`${target.host}\` does not resolve`) }
    : { kind: 'pinned', address: first, reason }
}

async function answersOf(world: FetchWorld, host: string): Promise<readonly string[]> {
  try {
    return await world.resolve(host)
  } catch {
    return []
  }
}

const REDIRECTS = [301, 302, 303, 307, 308]

/**
 * The redirect target of a response, as text that is judged like a new request; `undefined` if there is none.
 */
export function redirectOf(from: URL, { status, location }: Answer): string | undefined {
  if (!REDIRECTS.includes(status) || location === undefined) return undefined
  // SECURITY: a target with a host is passed on unparsed, so that the same text checks apply as for a first request.
  if (/^[a-z][a-z0-9+.-]*:/i.test(location) || /[\u0000-\u0020\u007f\\]/.test(location)) return location
  if (location.startsWith('//')) return from.protocol + location
  return URL.canParse(location, from.href) ? new URL(location, from.href).href : location
}
