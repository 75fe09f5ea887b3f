import type { LiveSandbox } from './live-sandbox.ts'

/**
 * Freezes sandboxes while this server must not act for them. Nothing is recorded: the database is what cannot be reached.
 * A sandbox that cannot be frozen is ended.
 */
export class Freeze {
  #thaw: (() => void) | undefined

  get isOn(): boolean {
    return this.#thaw !== undefined
  }

  start(entries: Iterable<LiveSandbox>): void {
    if (this.#thaw) return
    const thawed = new Promise<void>((resolve) => {
      this.#thaw = resolve
    })
    for (const { state, sandbox } of entries) {
      if (state !== 'ready' || !sandbox) continue
      const frozen = Promise.resolve().then(() => sandbox.still(() => thawed))
      frozen.catch(() => sandbox.close().catch(() => {}))
    }
  }

  end(): void {
    this.#thaw?.()
    this.#thaw = undefined
  }
}
