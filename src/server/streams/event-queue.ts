const MAX_EVENTS = 10_000
const MAX_CHARACTERS = 4 * 1024 * 1024

/**
 * Events that wait for a slow reader. SECURITY: a program in a sandbox causes them faster than anyone reads them, and names are
 * as long as paths, so their number and their size are limited; further events are dropped.
 */
export class EventQueue<T> {
  readonly #events: { readonly event: T; readonly characters: number }[] = []
  #characters = 0

  get isEmpty(): boolean {
    return this.#events.length === 0
  }

  add(event: T): void {
    const characters = JSON.stringify(event).length
    if (this.#events.length >= MAX_EVENTS || this.#characters + characters > MAX_CHARACTERS) return
    this.#events.push({ event, characters })
    this.#characters += characters
  }

  /** Takes the oldest event. */
  next(): T | undefined {
    const oldest = this.#events.shift()
    this.#characters -= oldest?.characters ?? 0
    return oldest?.event
  }

  /** Takes all events. */
  all(): T[] {
    this.#characters = 0
    return this.#events.splice(0).map(({ event }) => event)
  }
}
