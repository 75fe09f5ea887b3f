import type { ConsoleClient } from '../../../src/client/console.ts'
import { type TrustedKey, trustedKey } from './verifier.ts'

const STORAGE_KEY = 'ringfence.trail-key'

/**
 * The public key that this browser trusts for this server's audit log: the first one it saw. SECURITY: a server that
 * later presents another key is not trusted until a person accepts the new key.
 */
export async function pinnedKey(client: ConsoleClient): Promise<TrustedKey> {
  const stored = localStorage.getItem(STORAGE_KEY)
  if (stored !== null) return trustedKey(stored)
  const { public_key } = await client.trailHead()
  localStorage.setItem(STORAGE_KEY, public_key)
  return trustedKey(public_key)
}

/** Forgets the pinned key; the next verification pins the key that the server presents then. */
export function trustNewKey(): void {
  localStorage.removeItem(STORAGE_KEY)
}
