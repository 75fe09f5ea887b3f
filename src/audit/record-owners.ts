import type { Tx } from '../store/sql.ts'
import { tenantsOfSandboxes } from '../store/trail/rows.ts'
import type { Entry } from './batch.ts'
import { canonicalMember } from './canonical.ts'
import type { Members } from './chain.ts'

/** How many sandboxes are cached. */
const KNOWN = 4096

/** Adds the tenant of its sandbox to each record, so that a tenant's part of the log can be read and proven by itself. */
export class RecordOwners {
  readonly #remembered = new Map<string, string>()
  live: (sandboxId: string) => string | undefined = () => undefined

  async name(tx: Tx, entries: readonly Entry[]): Promise<readonly Entry[]> {
    const ids = entries.map((entry) => (entry.kind === 'event' ? unnamedSandbox(entry.members) : undefined))
    const unknown = ids.filter((id): id is string => id !== undefined && this.#known(id) === undefined)
    // One question for the whole batch: a sandbox that nobody knows must not cost one for each of its records.
    const found = await tenantsOfSandboxes((sql, params) => tx.run(sql, params), [...new Set(unknown)])
    for (const [id, tenant] of found) this.#remember(id, tenant)
    return entries.map((entry, index) => {
      const id = ids[index]
      const tenant = id === undefined ? undefined : (this.#known(id) ?? found.get(id))
      return tenant === undefined ? entry : withTenant(entry, tenant)
    })
  }

  #known(id: string): string | undefined {
    return this.live(id) ?? this.#remembered.get(id)
  }

  #remember(id: string, tenant: string): void {
    if (this.#remembered.size >= KNOWN) this.#remembered.clear()
    this.#remembered.set(id, tenant)
  }
}

/** A member is kept in its canonical form, `"sandbox_id":"…"`. */
function unnamedSandbox(members: Members): string | undefined {
  const member = members.get('sandbox_id')
  if (member === undefined || members.has('tenant')) return undefined
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
