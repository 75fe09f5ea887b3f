import type { Change, Review } from '../../host/review/review.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Event, EventSink, Json } from '../../model/event.ts'
import type { Spec } from '../../model/spec.ts'
import { redact } from '../../model/text/redact.ts'
import type { SandboxRow } from '../../store/sandboxes.ts'
import type { Principal } from '../access/keys.ts'
import type { LiveSandbox } from '../lifecycle/live-sandbox.ts'
import type { Supervisor } from '../supervisor.ts'

/** Further changes are counted but not listed; `ringfence review` on the host lists all. */
const MOST_LISTED = 2000
/** The most sandboxes in the list of pending reviews. */
const MOST_WAITING = 200
const MOST_TEXT = 512 * 1024
/** The most changes in one audit record. */
const MOST_RECORDED = 100

/** A change with the version that was shown. */
export type SeenChange = Change & { readonly version: string }
/** The changes that a person chose. */
export type Chosen = {
  readonly paths?: readonly string[] | undefined
  readonly seen?: Readonly<Record<string, string>> | undefined
}

type Parts = {
  readonly supervisor: Supervisor
  readonly trail: EventSink
  /** The changes of a sandbox that has ended, while they are pending. */
  readonly find: (sandboxId: string) => Review | undefined
  /** The ids of all sandboxes with changes on this host, including running ones. */
  readonly ids: () => readonly string[]
  /** The number of pending changes of a sandbox that has ended, if it was counted. */
  readonly waitingOf: (sandboxId: string) => number | undefined
}

/** A sandbox that has ended and its number of pending changes; null if it crashed before they were counted. */
export type WaitingReview = { readonly row: SandboxRow; readonly changes: number | null }

/** The principal of this server's own cleanup. */
const ANYBODY: Principal = { keyId: '', tenant: '', scopes: ['admin'] }

type Reviewed = {
  readonly row: SandboxRow
  readonly live?: LiveSandbox | undefined
  readonly review?: Review
}

/** Pending changes of sandboxes: listed while the sandbox runs or after it, then applied or dropped. */
export class Reviews {
  readonly #parts: Parts

  constructor(parts: Parts) {
    this.#parts = parts
  }

  async list(principal: Principal, id: string) {
    const { live, review } = await this.#reviewed(principal, id)
    const all = (await review?.changes()) ?? []
    const items: SeenChange[] = []
    for (const one of all.slice(0, MOST_LISTED)) {
      const seen = await versioned(review as Review, one)
      if (seen) items.push(seen)
    }
    return { open: live !== undefined, total: all.length, items }
  }

  /** The ended sandboxes with pending changes, latest first. Does not walk an overlay. */
  async waiting(
    principal: Principal,
  ): Promise<{ readonly items: readonly WaitingReview[]; readonly total: number }> {
    const { supervisor, ids, waitingOf } = this.#parts
    const rows = [...(await supervisor.endedOf(principal, ids()))]
    rows.sort((a, b) => (b.endedAt ?? 0) - (a.endedAt ?? 0))
    const items = rows.slice(0, MOST_WAITING).map((row) => ({ row, changes: waitingOf(row.id) ?? null }))
    return { items, total: rows.length }
  }

  /** After a start: counts changes that an earlier run could not count, and removes reviews without changes. */
  async settle(): Promise<void> {
    const { supervisor, ids, waitingOf, find } = this.#parts
    const uncounted = ids().filter((id) => waitingOf(id) === undefined)
    for (const { id } of await supervisor.endedOf(ANYBODY, uncounted)) await find(id)?.settle()
  }

  /** One change with its text before and after, if it has any. */
  async diff(principal: Principal, id: string, path: string) {
    const { review } = await this.#reviewed(principal, id)
    const change = (await review?.changes())?.find(({ inside }) => inside === path)
    const seen = change && (await versioned(review as Review, change))
    if (!review || !change || !seen)
      throw new SandboxError('not-found', `\`${path.slice(0, 256)}\` is not changed`)
    return { change: seen, ...review.texts(change, MOST_TEXT) }
  }

  /** SECURITY: the sandbox is frozen meanwhile, so that the files that are compared are the files that are copied. */
  async apply(principal: Principal, id: string, chosen: Chosen) {
    const { row, live, review } = await this.#reviewed(principal, id)
    if (!review) throw nothingWaits(id)
    const work = () => this.#apply(principal, row, review, chosen, live !== undefined)
    return live ? live.serially(() => stillIn(live, work)) : work()
  }

  async #apply(principal: Principal, row: SandboxRow, review: Review, chosen: Chosen, stays: boolean) {
    const changes = await review.changes()
    const { wanted, stale } = await wantedOf(review, changes, chosen)
    const by = { answered_by: principal.keyId, count: wanted.size }
    const paths = changes.filter((one) => wanted.has(one.inside)).map(({ inside }) => redact(inside))
    await this.#record(row, { state: 'applying', ...by, paths: paths.slice(0, MOST_RECORDED) })
    const failed = await review.apply(({ inside }) => wanted.has(inside), { stays })
    const refused = [...stale, ...failed.map(({ inside, why }) => ({ path: inside, why }))]
    const applied = wanted.size - failed.length
    const said = refused.slice(0, MOST_RECORDED).map(({ path, why }) => ({ path: redact(path), why }))
    await this.#record(row, { state: 'applied', ...by, count: applied, refused: said })
    return { applied, refused, waiting: changes.length - applied }
  }

  /** Only for a sandbox that has ended: a running one still uses its changes. */
  async drop(principal: Principal, id: string): Promise<void> {
    const { row, live, review } = await this.#reviewed(principal, id)
    if (live)
      throw new SandboxError('wrong-state', `sandbox ${id} is still running`, {
        hint: 'end it first; its changes stay until they are dropped',
      })
    if (!review) throw nothingWaits(id)
    const count = (await review.changes()).length
    await this.#record(row, { state: 'dropped', answered_by: principal.keyId, count })
    review.drop()
  }

  async #reviewed(principal: Principal, id: string): Promise<Reviewed> {
    const { row, live } = await this.#parts.supervisor.get(principal, id)
    if (!(JSON.parse(row.spec) as Spec).review)
      throw new SandboxError(
        'wrong-state',
        `sandbox ${id} is not in review mode: its writes are applied immediately`,
        {
          hint: 'create it with `review: true`',
        },
      )
    const review = live ? live.sandbox?.review : this.#parts.find(id)
    return { row, live, ...(review ? { review } : {}) }
  }

  #record(row: SandboxRow, fields: Readonly<Record<string, Json>>): Promise<void> {
    const agent = row.agentId === null ? {} : { agent_id: row.agentId }
    const event: Event = { event: 'Review', sandbox_id: row.id, ...agent, ...fields }
    return this.#parts.trail.append(event)
  }
}

const nothingWaits = (id: string): SandboxError =>
  new SandboxError('wrong-state', `sandbox ${id} has no pending changes`)

/** A file that disappears meanwhile has no version. */
const versioned = (review: Review, change: Change): Promise<SeenChange | undefined> =>
  review.version(change).then(
    (version) => ({ ...change, version }),
    () => undefined,
  )

async function stillIn<T>(entry: LiveSandbox, work: () => Promise<T>): Promise<T> {
  // A paused sandbox is already frozen, and must stay paused.
  if (entry.state === 'paused') return work()
  const live = entry.ready()
  await live.files.hold()
  try {
    return await live.still(work)
  } finally {
    live.files.release()
  }
}

type Refused = { readonly path: string; readonly why: string }

/** The chosen changes with the new directories that contain them, and those that changed since the caller saw them. */
async function wantedOf(review: Review, changes: readonly Change[], { paths, seen }: Chosen) {
  const stale: Refused[] = []
  const wanted = new Set<string>()
  for (const change of changes) {
    const { inside } = change
    const known = seen && (Object.hasOwn(seen, inside) ? seen[inside] : undefined)
    if (seen ? known === undefined : !isBelowAny(inside, paths)) continue
    if (seen && (await versioned(review, change))?.version !== known)
      stale.push({ path: inside, why: 'it has changed since it was read' })
    else wanted.add(inside)
  }
  const here = new Set(changes.flatMap(({ inside }) => [inside, ...dirsAround(inside)]))
  for (const path of seen ? Object.keys(seen) : (paths ?? []))
    if (!here.has(path.replace(/(.)\/$/, '$1'))) stale.push({ path, why: 'it is no longer changed' })
  const around = new Set([...wanted].flatMap(dirsAround))
  for (const { inside, kind, change } of changes)
    if (kind === 'dir' && change === 'added' && around.has(inside)) wanted.add(inside)
  return { wanted, stale }
}

function dirsAround(path: string): readonly string[] {
  const names = path.split('/').slice(0, -1)
  return names.map((_, index) => names.slice(0, index + 1).join('/'))
}

const isBelowAny = (path: string, dirs: readonly string[] | undefined): boolean =>
  dirs === undefined || dirs.some((dir) => path === dir || path.startsWith(`${dir.replace(/\/$/, '')}/`))
