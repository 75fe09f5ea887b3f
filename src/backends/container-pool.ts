import { createHash } from 'node:crypto'
import { WarmPool } from '../host/warm-pool.ts'
import type { Plan } from '../model/plan.ts'
import type { ContainerTransport } from './container-handle.ts'

/** Containers that are started, confined and configured, and in which no command ran yet. */
export class ContainerPool {
  readonly #pool: WarmPool<ContainerTransport>

  constructor(size: number) {
    this.#pool = new WarmPool({
      size,
      isUsable: (container) => !container.isGone,
      discard: (container) => container.close(),
    })
  }

  /** One from the pool, or one that `make` starts now; `prepare` makes the next ones. */
  async take(
    plan: Plan,
    owner: string,
    { make, prepare }: Record<'make' | 'prepare', () => Promise<ContainerTransport>>,
  ): Promise<ContainerTransport> {
    // What is made for one sandbox alone would never fit another.
    if (plan.files.length > 0 || plan.own.length > 0) return make()
    return (await this.#pool.take(poolKey(plan, owner), prepare)) ?? make()
  }

  close(): Promise<void> {
    return this.#pool.close()
  }
}

/**
 * SECURITY: the whole plan, its owner and the image, so that nobody gets a container that was made for somebody or something
 * else. INVARIANT: a field that is added to plans makes the key more exact, never less.
 */
export const poolKey = (plan: Plan, owner: string): string =>
  createHash('sha256')
    .update(JSON.stringify([owner, plan]))
    .digest('hex')
