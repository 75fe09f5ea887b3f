import type { Tx } from '../store/sql.ts'
import { tenantOfSandbox } from '../store/trail-rows.ts'
import type { Entry } from './batch.ts'
import { canonicalMember } from './canonical.ts'
import type { Members } from './chain.ts'

/** How many sandboxes are cached. */
const KNOWN = 4096

/** Adds the tenant of its sandbox to each record, so that a tenant's part of the log can be read and proven by itself. */
export class RecordOwners {
  readonly #known = new Map<string, string>()
  live: (sandboxId: string) => string | undefined = () => undefined

  async name(tx: Tx, entries: readonly Entry[]): Promise<readonly Entry[]> {
    const named: Entry[] = []
    for (const entry of entries) {
      const tenant = entry.kind === 'event' ? await this.#tenantOf(tx, entry.members) : undefined
      named.push(tenant === undefined ? entry : withTenant(entry, tenant))
    }
    return named
  }

  async #tenantOf(tx: Tx, members: Members): Promise<string | undefined> {
    const id = members.has('tenant') ? undefined : sandboxIn(members)
    if (id === undefined) return undefined
    const known = this.live(id) ?? this.#known.get(id)
    if (known !== undefined) return known
    const found = await tenantOfSandbox((sql, params) => tx.run(sql, params), id)
    if (found !== undefined) this.#remember(id, found)
    return found
  }

  #remember(id: string, tenant: string): void {
    if (this.#known.size >= KNOWN) this.#known.clear()
    this.#known.set(id, tenant)
  }
}

/** A member is kept in its canonical form, `"sandbox_id":"…"`. */
function sandboxIn(members: Members): string | undefined {
  const member = members.get('sandbox_id')
  if (member === undefined) return undefined
  const value: unknown = JSON.parse(`{${member}}`).sandbox_id
  return typeof value === 'string' ? value : undefined
}

function withTenant(entry: Entry, tenant: string): Entry {
  if (entry.kind !== 'event') return entry
  return {
    ...entry,
    members: new Map(entry.members).set('tenant', canonicalMember('tenant', tenant)),
  }
}
