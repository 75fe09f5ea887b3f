import { SandboxError } from './errors.ts'

/** The tenant and key of a request. */
export type AdmissionOwner = { readonly tenant: string; readonly keyId: string }

type Waiting = { readonly go: () => void; readonly leave: (error: unknown) => void }

/** Slots that one key, or all keys of one tenant, use and wait for. */
class Share {
  running = 0
  waiting = 0
  get isIdle(): boolean {
    return this.running === 0 && this.waiting === 0
  }
}
class KeyShare extends Share {
  readonly queue: Waiting[] = []
}
class TenantShare extends Share {
  readonly keys = new Map<string, KeyShare>()
}

const NOBODY: AdmissionOwner = { tenant: '', keyId: '' }

type AdmissionLimits = {
  readonly running: number
  readonly waiting: number
  /** `running` is never exceeded, not even for a tenant below its share. */
  readonly strict?: boolean
}

/**
 * A semaphore with a fair queue: `running` slots, `waiting` requests in the queue, further requests are rejected. Slots are shared
 * equally between tenants, and within a tenant between its keys. A requester below its equal share never waits, even if every
 * slot is in use; the queue is served round-robin. So unless the limit is strict, the number of used slots may exceed it
 * while tenants share it, by less than each newcomer's equal share.
 */
export class Admission {
  readonly #what: string
  readonly #limits: AdmissionLimits
  /** INVARIANT: in the order in which tenants are served; a served tenant moves to the end. */
  readonly #tenants = new Map<string, TenantShare>()
  #running = 0
  #waiting = 0

  constructor(what: string, limits: AdmissionLimits) {
    this.#what = what
    this.#limits = limits
  }

  get running(): number {
    return this.#running
  }

  get waiting(): number {
    return this.#waiting
  }

  /** Runs the work when a slot is free. */
  async run<T>(work: () => Promise<T>, who: AdmissionOwner = NOBODY): Promise<T> {
    const release = await this.enter(who)
    try {
      return await work()
    } finally {
      release()
    }
  }

  /** Resolves when a slot is free, with the function that releases it. */
  async enter(who: AdmissionOwner = NOBODY): Promise<() => void> {
    return this.take(who) ?? this.#wait(who)
  }

  /** Takes slots without waiting; undefined if the requester would have to wait. */
  take(who: AdmissionOwner = NOBODY, slots = 1): (() => void) | undefined {
    const [tenant, key] = this.#sharesOf(who)
    if (!this.#mayRun(tenant, key)) {
      this.#forget(who)
      return undefined
    }
    this.#count(tenant, key, slots)
    return this.#release(who, tenant, key, slots)
  }

  #sharesOf(who: AdmissionOwner): readonly [TenantShare, KeyShare] {
    const tenant = shareOf(this.#tenants, who.tenant, () => new TenantShare())
    return [tenant, shareOf(tenant.keys, who.keyId, () => new KeyShare())]
  }

  #release(who: AdmissionOwner, tenant: TenantShare, key: KeyShare, slots = 1): () => void {
    let left = false
    return () => {
      if (left) return
      left = true
      this.#count(tenant, key, -slots)
      this.#serve()
      this.#forget(who)
    }
  }

  /** Rejects all waiting requests. */
  turnAway(error: unknown): void {
    for (const { keys } of this.#tenants.values())
      for (const key of keys.values()) for (const { leave } of key.queue.splice(0)) leave(error)
  }

  #mayRun(tenant: TenantShare, key: KeyShare): boolean {
    if (this.#running < this.#limits.running) return true
    if (this.#limits.strict) return false
    return tenant.running < this.#equal(tenant, 'running') || this.#isShortOf(tenant, key)
  }

  /** Whether a key is below its equal part of the tenant's share, while the tenant has less than two shares. */
  #isShortOf(tenant: TenantShare, key: KeyShare): boolean {
    const share = this.#equal(tenant, 'running')
    return tenant.running < 2 * share && key.running < Math.max(1, Math.floor(share / tenant.keys.size))
  }

  /** The equal share of each active tenant. */
  #equal(tenant: TenantShare, of: 'running' | 'waiting'): number {
    let count = 0
    for (const one of this.#tenants.values()) if (one === tenant || !one.isIdle) count++
    return Math.max(Math.min(1, this.#limits[of]), Math.floor(this.#limits[of] / count))
  }

  async #wait(who: AdmissionOwner): Promise<() => void> {
    const [tenant, key] = this.#sharesOf(who)
    if (this.#waiting >= this.#limits.waiting && tenant.waiting >= this.#equal(tenant, 'waiting')) {
      this.#forget(who)
      throw this.#full()
    }
    this.#count(tenant, key, 1, 'waiting')
    try {
      await new Promise<void>((resolve, leave) => {
        // The slot is counted at once, so that no other request can take it.
        const go = (): void => {
          this.#count(tenant, key, 1)
          resolve()
        }
        key.queue.push({ go, leave })
      })
    } finally {
      this.#count(tenant, key, -1, 'waiting')
      this.#forget(who)
    }
    return this.#release(who, tenant, key)
  }

  /** Admits waiting requests, round-robin by tenant and key, while slots are free. */
  #serve(): void {
    for (let found = this.#next(); found; found = this.#next()) {
      const [name, tenant, keyName, key] = found
      toEnd(this.#tenants, name, tenant)
      toEnd(tenant.keys, keyName, key)
      key.queue.shift()?.go()
    }
  }

  /** The one with the fewest slots comes first; among equals, the one served longest ago. */
  #next(): readonly [string, TenantShare, string, KeyShare] | undefined {
    let found: readonly [string, TenantShare, string, KeyShare] | undefined
    for (const [name, tenant] of this.#tenants) {
      if (tenant.waiting === 0 || (found && found[1].running <= tenant.running)) continue
      const key = leastOf(
        [...tenant.keys].filter(([, one]) => one.queue.length > 0 && this.#mayRun(tenant, one)),
      )
      if (key) found = [name, tenant, ...key]
    }
    return found
  }

  #count(tenant: TenantShare, key: KeyShare, by: number, what: 'running' | 'waiting' = 'running'): void {
    tenant[what] += by
    key[what] += by
    if (what === 'running') this.#running += by
    else this.#waiting += by
  }

  #forget({ tenant, keyId }: AdmissionOwner): void {
    const share = this.#tenants.get(tenant)
    if (share?.keys.get(keyId)?.isIdle) share.keys.delete(keyId)
    if (share?.keys.size === 0) this.#tenants.delete(tenant)
  }

  #full(): SandboxError {
    const { running, waiting } = this.#limits
    return new SandboxError('too-many-requests', `too many ${this.#what} at once`, {
      hint: `at most ${running} at the same time${waiting > 0 ? ` and ${waiting} waiting` : ''}, shared by all tenants; try again later`,
      retryAfterSecs: 1,
    })
  }
}

function shareOf<T>(all: Map<string, T>, name: string, make: () => T): T {
  const found = all.get(name) ?? make()
  all.set(name, found)
  return found
}

function leastOf<T extends Share>(all: readonly (readonly [string, T])[]): readonly [string, T] | undefined {
  return all.reduce<readonly [string, T] | undefined>(
    (least, one) => (least && least[1].running <= one[1].running ? least : one),
    undefined,
  )
}

function toEnd<T>(all: Map<string, T>, name: string, value: T): void {
  all.delete(name)
  all.set(name, value)
}
