import { SandboxError } from '../../model/errors.ts'
import type { Principal } from '../../supervisor/access/keys.ts'
import type { SandboxView } from '../../supervisor/provisioner.ts'
import { callerMetadata, cursorFrom, cursorOf } from '../views.ts'
import type { E2bSurface } from './sandbox-request.ts'
import { infoOf, optionsOf, specOf } from './views.ts'

/** Lists of running sandboxes, page by page. */

const PAGE = 100
const MOST = 1000

type Filter = {
  readonly states: readonly string[]
  readonly metadata: readonly (readonly [string, string])[]
  readonly template: string | undefined
  readonly after: number
}

/** E2B's clients encode each pair, then the whole. */
function metadataFilter(text: string | null): Filter['metadata'] {
  if (!text) return []
  return [...new URLSearchParams(text)].map(([name, value]) => [decoded(name), decoded(value)] as const)
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

function filterOf(query: URLSearchParams): Filter {
  const asked = query.getAll('state').flatMap((one) => one.split(','))
  const running = asked.length === 0 || asked.includes('running')
  const paused = asked.length === 0 || asked.includes('paused')
  const after = query.get('startedAfter')
  return {
    states: [...(running ? ['ready'] : []), ...(paused ? ['paused'] : [])],
    metadata: metadataFilter(query.get('metadata')),
    template: query.get('template') ?? undefined,
    after: after === null ? 0 : Date.parse(after) || 0,
  }
}

function fits(seen: SandboxView, { metadata, template, after }: Filter): boolean {
  const spec = specOf(seen)
  const own = callerMetadata(spec)
  return (
    seen.row.createdAt >= after &&
    metadata.every(([name, value]) => own[name] === value) &&
    (template === undefined || optionsOf(spec).template === template)
  )
}

/** All that fit, newest first, until there are enough. */
async function collect(
  { parts }: E2bSurface,
  principal: Principal,
  filter: Filter,
  from: ReturnType<typeof cursorFrom>,
  wanted: number,
): Promise<SandboxView[]> {
  const found: SandboxView[] = []
  let after = from
  for (;;) {
    const page = await parts.supervisor.list(principal, { states: filter.states, after, limit: PAGE })
    for (const seen of page) {
      if (seen.live && fits(seen, filter)) found.push(seen)
      if (found.length === wanted) return found
    }
    const last = page.at(-1)
    if (page.length < PAGE || !last || last.row.createdAt < filter.after) return found
    after = { createdAt: last.row.createdAt, id: last.row.id }
  }
}

/** One page of running sandboxes. */
export async function listPage(
  surface: E2bSurface,
  principal: Principal,
  query: URLSearchParams,
): Promise<Response> {
  const limit = limitOf(query)
  const filter = filterOf(query)
  const token = query.get('nextToken')
  if (query.get('order') === 'asc') return ascending(surface, principal, filter, limit, token)
  const from = token === null ? undefined : cursorFrom(token)
  if (token !== null && !from) throw new SandboxError('invalid-input', 'nextToken: not one of ours')
  // One more than a page, so that the last page says that it is the last.
  const found = await collect(surface, principal, filter, from, limit + 1)
  const page = found.slice(0, limit)
  const last = page.at(-1)
  return answer(page, found.length > limit && last ? cursorOf(last.row) : undefined)
}

/** Oldest first: there are never more of them than one server holds. */
async function ascending(
  surface: E2bSurface,
  principal: Principal,
  filter: Filter,
  limit: number,
  token: string | null,
): Promise<Response> {
  const all = (await collect(surface, principal, filter, undefined, Number.POSITIVE_INFINITY)).reverse()
  const from = token === null ? undefined : cursorFrom(token)
  const start = from === undefined ? 0 : all.findIndex(({ row }) => row.id === from.id) + 1
  const page = all.slice(start, start + limit)
  const last = page.at(-1)
  return answer(page, start + limit < all.length && last ? cursorOf(last.row) : undefined)
}

/** The page size of a query. */
export function limitOf(query: URLSearchParams): number {
  const limit = Number(query.get('limit') ?? PAGE)
  if (!Number.isInteger(limit) || limit < 1) throw new SandboxError('invalid-input', 'limit: not a number')
  return Math.min(limit, MOST)
}

function answer(page: readonly SandboxView[], next: string | undefined): Response {
  const total = { 'x-total-items': String(page.length) }
  return Response.json(page.map(infoOf), {
    headers: next === undefined ? total : { ...total, 'x-next-token': next },
  })
}

/** All running sandboxes. */
export async function listAll(
  surface: E2bSurface,
  principal: Principal,
  query: URLSearchParams,
): Promise<Response> {
  const filter = { ...filterOf(query), states: ['ready'] }
  const found = await collect(surface, principal, filter, undefined, Number.POSITIVE_INFINITY)
  return Response.json(found.map(infoOf))
}
