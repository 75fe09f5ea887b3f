import { createHash } from 'node:crypto'
import type { Spec } from '../model/spec.ts'
import type { OpenSandbox } from './open-sandbox.ts'

/** So many sandboxes of one kind are kept ready. */
export type PoolSize = { readonly spec: Spec; readonly size: number }

export type PoolParts = {
  readonly open: (spec: Spec) => Promise<OpenSandbox>
  /** What the policy in force is called; a sandbox that another one admitted is not handed out. */
  readonly policyHash: () => string
}

/** Words for people only; they change nothing about the sandbox. */
const IRRELEVANT: readonly string[] = ['metadata']

type Kept = { readonly live: OpenSandbox; readonly usable: () => boolean }
type Kind = { readonly spec: Spec; readonly size: number; readonly kept: Kept[]; opening: number }

const RETRY_MS = 1000
const REFILL_MS = 25

/**
 * Sandboxes made beforehand. SECURITY: only ones that nobody ever used, and only for a spec that is the same in everything
 * that matters, judged by the same policy; what comes back from a caller is destroyed and never returns here.
 */
export class Pool {
  readonly #parts: PoolParts
  readonly #kinds = new Map<string, Kind>()
  #closed = false
  #policy: string

  constructor(parts: PoolParts, sizes: readonly PoolSize[]) {
    this.#parts = parts
    this.#policy = parts.policyHash()
    for (const { spec, size } of sizes) this.#kinds.set(kindOf(spec), { spec, size, kept: [], opening: 0 })
  }

  get ready(): number {
    return [...this.#kinds.values()].reduce((sum, { kept }) => sum + kept.length, 0)
  }

  /** Makes what is missing, in the background. */
  fill(): void {
    for (const kind of this.#kinds.values())
      while (!this.#closed && kind.kept.length + kind.opening < kind.size) void this.#open(kind)
  }

  /** One that fits exactly and that the caller may have, or nothing: then the caller opens its own. */
  take(spec: Spec, isPermitted: (live: OpenSandbox) => boolean): OpenSandbox | undefined {
    if (this.#policy !== this.#parts.policyHash()) this.#renew()
    const kind = this.#kinds.get(kindOf(spec))
    if (!kind) return undefined
    if (kind.kept[0] && !isPermitted(kind.kept[0].live)) return undefined
    for (let kept = kind.kept.shift(); kept; kept = kind.kept.shift()) {
      if (!kept.usable()) continue
      // The caller's first command comes now; the next of the kind can wait for it.
      setTimeout(() => this.fill(), REFILL_MS).unref()
      return kept.live
    }
    this.fill()
    return undefined
  }

  async close(): Promise<void> {
    this.#closed = true
    await Promise.all(this.#empty())
  }

  #renew(): void {
    this.#policy = this.#parts.policyHash()
    void Promise.all(this.#empty())
  }

  #empty(): Promise<void>[] {
    return [...this.#kinds.values()].flatMap(({ kept }) =>
      kept.splice(0).map(({ live }) => live.close().catch(() => {})),
    )
  }

  async #open(kind: Kind): Promise<void> {
    kind.opening++
    const policy = this.#policy
    try {
      const live = await this.#parts.open(kind.spec)
      // Backends build the wall when it is first needed; here that is now.
      await live.layers()
      if (this.#closed || policy !== this.#policy) return await live.close()
      let alive = true
      void live.ended.then(() => {
        alive = false
      })
      kind.kept.push({ live, usable: () => alive })
    } catch {
      // The next caller gets the reason from its own attempt.
      if (!this.#closed) setTimeout(() => this.fill(), RETRY_MS).unref()
      kind.opening++
      setTimeout(() => kind.opening--, RETRY_MS).unref()
    } finally {
      kind.opening--
    }
  }
}

/** Everything of a spec that matters, as one word. */
export function kindOf(spec: Spec): string {
  const entries = Object.entries(spec).filter(
    ([name, value]) => !IRRELEVANT.includes(name) && value !== undefined,
  )
  return createHash('sha256')
    .update(stable(Object.fromEntries(entries)))
    .digest('hex')
}

function stable(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(stable).join(',')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null'
  const fields = value as Record<string, unknown>
  const names = Object.keys(fields).sort()
  return `{${names.map((name) => `${JSON.stringify(name)}:${stable(fields[name])}`).join(',')}}`
}
