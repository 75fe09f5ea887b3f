import type { ConsoleClient } from '../../src/client/console.ts'
import { type TrustedKey, trustedKey } from './verify.ts'

const KEPT = 'ringfence.trail-key'

/**
 * The key that this browser trusts for this trail: the first one it met. SECURITY: a server that later shows another key is
 * not believed; somebody has to say that they know why.
 */
export async function pinnedKey(client: ConsoleClient): Promise<TrustedKey> {
  const kept = localStorage.getItem(KEPT)
  if (kept !== null) return trustedKey(kept)
  const { public_key } = await client.trailHead()
  localStorage.setItem(KEPT, public_key)
  return trustedKey(public_key)
}

export const pinned = (): string | null => localStorage.getItem(KEPT)

export function trustAnew(): void {
  localStorage.removeItem(KEPT)
}
