import { createContext, useContext, useSyncExternalStore } from 'react'
import type { ConsoleClient } from '../../src/client/console.ts'
import type { ConsoleEvent, ConsoleSandbox, Sample, Who } from '../../src/client/console-types.ts'
import type { Approval, TrailRecord, WaitingReview } from '../../src/client/types.ts'
import { type StreamEnd, isAuthenticationLost } from '../../src/model/stream-end.ts'
import { isSignedOut } from './session.ts'

/** Everything that is live on the page, fed by one stream. A break in it changes nothing that is shown. */

const KEPT_RECORDS = 5000
const KEPT_SAMPLES = 60
const KEPT_ENDED = 200
const HOUR_MS = 3_600_000
const FIRST_PAUSE_MS = 250
const LONGEST_PAUSE_MS = 5000

export type Connection = 'connecting' | 'live' | 'broken'

export type Snapshot = {
  readonly connection: Connection
  /** Why the stream ended, until it is back. */
  readonly why: string
  /** What runs, newest first. */
  readonly sandboxes: readonly ConsoleSandbox[]
  /** What ended while the page was open, newest first. */
  readonly ended: readonly ConsoleSandbox[]
  readonly approvals: readonly Approval[]
  /** Sandboxes that have ended and whose changes wait, latest first. */
  readonly reviews: readonly WaitingReview[]
  /** Newest last. */
  readonly records: readonly TrailRecord[]
  readonly seq: number
  readonly policy: string
}

const EMPTY: Snapshot = {
  connection: 'connecting',
  why: '',
  sandboxes: [],
  ended: [],
  approvals: [],
  reviews: [],
  records: [],
  seq: -1,
  policy: '',
}

export class Live {
  readonly client: ConsoleClient
  readonly who: Who
  readonly #listeners = new Set<() => void>()
  readonly #sampled = new Map<string, readonly Sample[]>()
  readonly #stop = new AbortController()
  readonly #onSignedOut: (why: string) => void
  #known = new Map<string, ConsoleSandbox>()
  #ended = new Map<string, ConsoleSandbox>()
  #records: TrailRecord[] = []
  #last: number | undefined
  #now: Snapshot = EMPTY
  #draft: { -readonly [K in keyof Snapshot]?: Snapshot[K] } = {}
  #frame = false

  constructor(client: ConsoleClient, who: Who, onSignedOut: (why: string) => void) {
    this.client = client
    this.who = who
    this.#onSignedOut = onSignedOut
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }
  readonly snapshot = (): Snapshot => this.#now
  readonly samplesOf = (id: string): readonly Sample[] => this.#sampled.get(id) ?? NONE

  /** The last hour first, then the stream; comes back by itself for as long as the page is there. */
  async run(): Promise<void> {
    const since = new Date(Date.now() - HOUR_MS).toISOString()
    const recent = await this.client.trail({ order: 'desc', since, limit: 1000 }).catch(() => undefined)
    if (recent) {
      this.#records = [...recent.items].reverse()
      this.#last = this.#records.at(-1)?.seq
      this.#set({ records: this.#records })
    }
    for (let pause = FIRST_PAUSE_MS; !this.#stop.signal.aborted; ) {
      let cut: StreamEnd | undefined
      try {
        for await (const event of this.client.stream(this.#last, this.#stop.signal)) {
          pause = FIRST_PAUSE_MS
          if (event.type === 'cut') cut = event.data
          else this.#take(event)
        }
      } catch (error) {
        if (isSignedOut(error) && !cut) return this.#onSignedOut('your session has ended')
      }
      // Whoever is out would only be turned away again.
      if (cut && isAuthenticationLost(cut)) return this.#onSignedOut(cut.message)
      this.#set({ connection: 'broken', ...(cut && { why: cut.message }) })
      await new Promise((resolve) => setTimeout(resolve, pause))
      pause = Math.min(pause * 2, LONGEST_PAUSE_MS)
    }
  }

  stop(): void {
    this.#stop.abort()
  }

  #take(event: ConsoleEvent): void {
    if (event.type === 'hello') this.#hello(event.data)
    else if (event.type === 'approvals') this.#set({ approvals: event.data })
    else if (event.type === 'reviews') this.#set({ reviews: event.data })
    else if (event.type === 'gone') this.#gone(event.data)
    else if (event.type === 'record') this.#record(event.data)
    else if (event.type === 'samples') this.#samples(event.data)
    else if (event.type === 'sandbox') {
      this.#known.set(event.data.id, event.data)
      this.#listed()
    }
  }

  #samples(samples: Readonly<Record<string, Sample>>): void {
    for (const [id, sample] of Object.entries(samples))
      this.#sampled.set(id, [...(this.#sampled.get(id) ?? []), sample].slice(-KEPT_SAMPLES))
    this.#listed()
  }

  #hello(data: Extract<ConsoleEvent, { type: 'hello' }>['data']): void {
    const before = this.#known
    this.#known = new Map(data.sandboxes.map((one) => [one.id, one]))
    for (const { id, samples = [] } of data.sandboxes) if (samples.length > 0) this.#sampled.set(id, samples)
    // What was here before a break and is not any more: its end is asked for, so that nothing just vanishes.
    for (const one of before.values()) if (!this.#known.has(one.id)) void this.#askEnd(one)
    this.#set({ connection: 'live', why: '', seq: Math.max(this.#now.seq, data.seq), policy: data.policy })
    this.#listed()
  }

  async #askEnd(one: ConsoleSandbox): Promise<void> {
    const found = await this.client.get(one.id).catch(() => undefined)
    this.#gone(found ? { ...one, ...found.info } : { ...one, state: 'failed', reason: 'not known any more' })
  }

  #gone(one: ConsoleSandbox): void {
    const last = this.#known.get(one.id) ?? this.#ended.get(one.id)
    this.#known.delete(one.id)
    this.#ended.delete(one.id)
    this.#ended.set(one.id, { ...last, ...one })
    if (this.#ended.size > KEPT_ENDED) this.#ended.delete(this.#ended.keys().next().value as string)
    this.#listed()
  }

  #record(record: TrailRecord): void {
    if (this.#last !== undefined && record.seq <= this.#last) return
    this.#last = record.seq
    this.#records = [...this.#records.slice(-KEPT_RECORDS), record]
    this.#set({ records: this.#records, seq: record.seq })
  }

  #listed(): void {
    const byAge = (a: ConsoleSandbox, b: ConsoleSandbox): number => (a.created_at < b.created_at ? 1 : -1)
    this.#set({
      sandboxes: [...this.#known.values()].sort(byAge),
      ended: [...this.#ended.values()].reverse(),
    })
  }

  /** Many events, one drawing. */
  #set(change: Partial<Snapshot>): void {
    Object.assign(this.#draft, change)
    if (this.#frame) return
    this.#frame = true
    setTimeout(() => {
      this.#frame = false
      this.#now = { ...this.#now, ...this.#draft }
      this.#draft = {}
      for (const listener of this.#listeners) listener()
    }, 50)
  }
}

const NONE: readonly Sample[] = []

const Current = createContext<Live | undefined>(undefined)
export const LiveProvider = Current.Provider

export function useLive(): Live {
  const live = useContext(Current)
  if (!live) throw new Error('nobody is signed in')
  return live
}

export const useClient = (): ConsoleClient => useLive().client

export function useSnapshot(): Snapshot {
  const live = useLive()
  return useSyncExternalStore(live.subscribe, live.snapshot)
}
