import { positionOf } from '../../audit/chain.ts'
import type { Approval } from '../../model/api/approvals.ts'
import type { ConsoleSandbox, consoleEvents } from '../../model/api/console.ts'
import type { WaitingReview } from '../../model/api/reviews.ts'
import { streamEndOf } from '../../model/stream-end.ts'
import type { Principal } from '../../supervisor/access/keys.ts'
import type { LiveSandbox } from '../../supervisor/lifecycle/live-sandbox.ts'
import type { ServerParts } from '../parts.ts'
import type { EventOf } from '../route.ts'
import { approvalJson, sandboxJson, waitingJson } from '../views.ts'

/**
 * One stream with everything that a console shows, for whatever its key may see: the sandboxes and the open approvals as
 * they are now, then what changes, what they use, and each record of the trail once, from wherever the page left off.
 */

type StreamEvent = EventOf<typeof consoleEvents>

const SETTLE_MS = 80
/** A reader that lags so far comes back and starts from where it is. */
const MOST_WAITING = 20_000

/** A sandbox as the console lists it. */
function consoleSandbox(parts: ServerParts, entry: LiveSandbox): ConsoleSandbox {
  const connections = entry.sandbox?.connections ?? []
  const refused = connections.filter(({ verdict }) => verdict === 'deny').length
  return {
    ...sandboxJson({ row: entry.row, live: entry }),
    running: entry.running,
    last_command: entry.lastCommand?.command ?? null,
    last_command_at: entry.lastCommand ? new Date(entry.lastCommand.at).toISOString() : null,
    egress: { allowed: connections.length - refused, refused },
    samples: parts.usage.recent(entry.id),
  }
}

/** The live events of one console page. */
export class ConsoleStream {
  readonly #parts: ServerParts
  readonly #principal: Principal
  readonly #stop = new AbortController()
  readonly #queue: StreamEvent[] = []
  readonly #sent = new Map<string, string>()
  #wake: () => void = () => {}
  #settling: NodeJS.Timeout | undefined
  #isBehind = false
  #reviewed = false

  constructor(parts: ServerParts, principal: Principal) {
    this.#parts = parts
    this.#principal = principal
  }

  async *events(after: number | undefined, signal: AbortSignal): AsyncGenerator<StreamEvent, void> {
    signal.addEventListener('abort', () => this.#end(), { once: true })
    const { usage, approvals } = this.#parts
    const leave = [usage.watch(() => this.#sampled()), approvals.onChange(() => void this.#asked())]
    try {
      yield await this.#hello()
      yield { event: 'approvals', data: await this.#pending() }
      yield { event: 'reviews', data: await this.#waiting() }
      void this.#follow(after)
      while (!this.#stop.signal.aborted) {
        const next = this.#queue.shift()
        if (next) yield next
        else await new Promise<void>((resolve) => (this.#wake = resolve))
      }
      if (this.#isBehind) yield { event: 'cut', data: streamEndOf('behind') }
    } finally {
      for (const one of leave) one()
      this.#end()
    }
  }

  async #hello(): Promise<StreamEvent> {
    const entries = this.#parts.supervisor.liveOf(this.#principal)
    const sandboxes = entries.map((entry) => {
      const view = consoleSandbox(this.#parts, entry)
      this.#sent.set(entry.id, keyOf(view))
      return view
    })
    const seq = await this.#parts.trail.position()
    return { event: 'hello', data: { sandboxes, seq, policy: this.#parts.policy.hash() } }
  }

  async #pending(): Promise<readonly Approval[]> {
    return (await this.#parts.approvals.list(this.#principal, 'pending', 200)).map(approvalJson)
  }

  /** Changes of sandboxes that have ended. */
  async #waiting(): Promise<readonly WaitingReview[]> {
    return (await this.#parts.reviews.waiting(this.#principal)).items.map(waitingJson)
  }

  async #settled(): Promise<void> {
    this.#reviewed = false
    const data = await this.#waiting().catch(() => undefined)
    if (data) this.#push({ event: 'reviews', data })
  }

  async #asked(): Promise<void> {
    this.#push({ event: 'approvals', data: await this.#pending() })
  }

  async #follow(after: number | undefined): Promise<void> {
    const { signal } = this.#stop
    try {
      for await (const record of this.#parts.feed.follow(this.#principal, { after, signal })) {
        this.#push({ event: 'record', data: record, id: positionOf(record) })
        this.#reviewed ||= record.event === 'Review'
        this.#settling ??= setTimeout(() => this.#changes(), SETTLE_MS)
      }
    } finally {
      this.#end()
    }
  }

  /** Sends the sandboxes that look different from what was sent last, and those that are gone. */
  #changes(): void {
    this.#settling = undefined
    const entries = this.#parts.supervisor.liveOf(this.#principal)
    for (const entry of entries) {
      const { samples: _samples, ...view } = consoleSandbox(this.#parts, entry)
      if (this.#sent.get(entry.id) === keyOf(view)) continue
      this.#sent.set(entry.id, keyOf(view))
      this.#push({ event: 'sandbox', data: view })
    }
    const alive = new Set(entries.map(({ id }) => id))
    for (const id of this.#sent.keys()) if (!alive.has(id)) void this.#gone(id)
    if (this.#reviewed) void this.#settled()
  }

  async #gone(id: string): Promise<void> {
    this.#sent.delete(id)
    const seen = await this.#parts.supervisor.get(this.#principal, id).catch(() => undefined)
    if (!seen) return
    const view = sandboxJson(seen)
    this.#push({ event: 'gone', data: view })
    if (view.review) await this.#settled()
  }

  #sampled(): void {
    this.#changes()
    const pairs = this.#parts.supervisor.liveOf(this.#principal).flatMap(({ id }) => {
      const sample = this.#parts.usage.recent(id).at(-1)
      return sample ? [[id, sample] as const] : []
    })
    if (pairs.length > 0) this.#push({ event: 'samples', data: Object.fromEntries(pairs) })
  }

  #push(event: StreamEvent): void {
    this.#isBehind ||= this.#queue.push(event) > MOST_WAITING
    if (this.#isBehind) this.#end()
    this.#wake()
  }

  #end(): void {
    clearTimeout(this.#settling)
    this.#stop.abort()
    this.#wake()
  }
}

const keyOf = (view: object): string => JSON.stringify({ ...view, samples: undefined })
