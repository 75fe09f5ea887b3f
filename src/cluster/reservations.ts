import { SandboxError } from '../model/errors.ts'
import type { Spec } from '../model/spec.ts'
import type { NodeFacts } from '../store/nodes.ts'
import { describeRefusals, type Need, type Refusal, shortageOf } from './placement.ts'

/** What this node has, and what a sandbox takes that asks for nothing. */
export type Capacity = {
  readonly cpus: number
  readonly memoryMb: number
  readonly diskMb: number
  readonly sandboxes: number
  readonly perSandbox: { readonly cpus: number; readonly memoryMb: number; readonly diskMb: number }
}

/** How long a node rests after several creates failed in a row. */
const REST_MS = 30_000

/**
 * What the sandboxes of this node have reserved. INVARIANT: only this node adds to its own reservations, so that it never
 * holds more than its capacity, whatever other nodes believe.
 */
export class Reservations {
  readonly #capacity: Capacity
  #used = { cpus: 0, memoryMb: 0, diskMb: 0, sandboxes: 0 }
  #failures = 0
  #failedAt = 0

  constructor(capacity: Capacity) {
    this.#capacity = capacity
  }

  /** What a sandbox of this spec takes. */
  needOf({ limits = {} }: Pick<Spec, 'limits'>): Need {
    const { perSandbox } = this.#capacity
    return {
      cpus: limits.cpus ?? perSandbox.cpus,
      memoryMb: limits.memoryMb ?? perSandbox.memoryMb,
      diskMb: limits.diskMb ?? perSandbox.diskMb,
    }
  }

  /** Reserves room for a sandbox; call the result when it is gone. Throws `NoRoom`. */
  reserve(spec: Pick<Spec, 'limits'>): () => void {
    const need = this.needOf(spec)
    const short = shortageOf(this.facts(), need)
    if (short) throw new NoRoom(short)
    this.#add(need, 1)
    let isHeld = true
    return () => {
      if (isHeld) this.#add(need, -1)
      isHeld = false
    }
  }

  #add({ cpus, memoryMb, diskMb }: Need, sign: 1 | -1): void {
    const used = this.#used
    this.#used = {
      // Rounded, so that the errors of many additions do not add up.
      cpus: Math.round((used.cpus + sign * cpus) * 1000) / 1000,
      memoryMb: used.memoryMb + sign * memoryMb,
      diskMb: used.diskMb + sign * diskMb,
      sandboxes: used.sandboxes + sign,
    }
  }

  /** A create has ended: several failures in a row for the node's own reasons make it rest. */
  note(isFailure: boolean): void {
    this.#failures = isFailure ? this.#failures + 1 : 0
    if (isFailure) this.#failedAt = Date.now()
  }

  get failures(): number {
    // After its rest one create may try.
    const isRested = this.#failures > 0 && Date.now() - this.#failedAt > REST_MS
    return isRested ? 0 : this.#failures
  }

  facts(): NodeFacts {
    const { cpus, memoryMb, diskMb, sandboxes } = this.#capacity
    return {
      cpus,
      memoryMb,
      diskMb,
      sandboxes,
      used: this.#used,
      backends: [],
      labels: {},
      failures: this.failures,
    }
  }
}

/** This node has no room; another one may have. */
export class NoRoom extends SandboxError {
  readonly refusal: Refusal

  constructor(refusal: Refusal) {
    super('too-many-requests', `no room for this sandbox: ${describeRefusals(new Map([[refusal, 1]]))}`, {
      hint: 'end some sandboxes, ask for less, or try again later',
      retryAfterSecs: 5,
    })
    this.refusal = refusal
  }
}
