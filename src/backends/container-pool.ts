import { createHash } from 'node:crypto'
import { WarmPool } from '../host/warm-pool.ts'
import { ownedTargets, type Plan } from '../model/plan.ts'
import type { ContainerTransport } from './container-handle.ts'

/** Containers that are started, confined and configured, and in which no command has run yet. */
export class ContainerPool {
  readonly #pool: WarmPool<ContainerTransport>

  constructor(size: number) {
    this.#pool = new WarmPool({
      size,
      isUsable: (container) => !container.isGone,
      discard: (container) => container.close(),
    })
  }

  /** Takes a container from the pool, or starts one with `make`; `prepare` creates the next ones. */
  async take(
    plan: Plan,
    owner: string,
    { make, prepare }: Record<'make' | 'prepare', () => Promise<ContainerTransport>>,
  ): Promise<ContainerTransport> {
    // A container with private files or directories fits no other sandbox.
    if (plan.root || plan.files.length > 0 || ownedTargets(plan).length > 0) return make()
    return (await this.#pool.take(poolKey(plan, owner), prepare)) ?? make()
  }

  close(): Promise<void> {
    return this.#pool.close()
  }
}

/**
 * SECURITY: the key contains the whole plan, its owner and the image, so that a container is used only for what it was
 * created for. INVARIANT: a field that is added to plans makes the key more exact, never less.
 */
export const poolKey = (plan: Plan, owner: string): string =>
  createHash('sha256')
    .update(JSON.stringify([owner, plan]))
    .digest('hex')
