import { SandboxError } from '../model/errors.ts'
import { isOperator, type Principal } from './access/keys.ts'

/** How many sandboxes a key and a tenant may have. */
export type SandboxCeilings = {
  readonly perKey: number
  /** For all keys of a tenant together. */
  readonly perTenant: (tenant: string) => number
}

/** How many sandboxes of a key and of its tenant exist. */
export type SandboxCounts = { readonly ofKey: number; readonly ofTenant: number }

/** Counts sandboxes per key and per tenant, so that none of them takes all of the server's capacity. */
export class SandboxQuotas {
  readonly #ceilings: SandboxCeilings
  readonly #keys = new Map<string, number>()
  readonly #tenants = new Map<string, number>()
  /** The tenant that a key's sandboxes count for; none for an operator's key. */
  readonly #tenantOf = new Map<string, string>()

  constructor(ceilings: SandboxCeilings) {
    this.#ceilings = ceilings
  }

  take(principal: Principal): void {
    const refusal = this.refusal(principal, this.#counts(principal))
    if (refusal) throw refusal
    this.add(principal)
  }

  /** Why a principal with so many sandboxes may not have one more; undefined if it may. */
  refusal(principal: Principal, { ofKey, ofTenant }: SandboxCounts): SandboxError | undefined {
    if (ofKey >= this.#ceilings.perKey)
      return tooMany('this key', ofKey, '`max_sandboxes_per_key` in [server]')
    if (isOperator(principal) || ofTenant < this.#ceilings.perTenant(principal.tenant)) return undefined
    return tooMany(
      'this tenant',
      ofTenant,
      '`max_sandboxes` in [[tenant]] or `max_sandboxes_per_tenant` in [server]',
    )
  }

  /** Whether this server alone holds half of what the principal may have. */
  isTight(principal: Principal): boolean {
    const { ofKey, ofTenant } = this.#counts(principal)
    const ofAll = isOperator(principal)
      ? Number.POSITIVE_INFINITY
      : this.#ceilings.perTenant(principal.tenant)
    return 2 * ofKey >= this.#ceilings.perKey || 2 * ofTenant >= ofAll
  }

  #counts({ keyId, tenant }: Principal): SandboxCounts {
    return { ofKey: this.#keys.get(keyId) ?? 0, ofTenant: this.#tenants.get(tenant) ?? 0 }
  }

  /** Counts a sandbox that exists already, whatever the ceilings are. */
  add(principal: Principal): void {
    const { keyId, tenant } = principal
    if (!isOperator(principal)) {
      this.#tenants.set(tenant, (this.#tenants.get(tenant) ?? 0) + 1)
      this.#tenantOf.set(keyId, tenant)
    }
    this.#keys.set(keyId, (this.#keys.get(keyId) ?? 0) + 1)
  }

  give(keyId: string): void {
    const tenant = this.#tenantOf.get(keyId)
    if (tenant !== undefined) subtract(this.#tenants, tenant)
    subtract(this.#keys, keyId)
    if (!this.#keys.has(keyId)) this.#tenantOf.delete(keyId)
  }
}

function subtract(counts: Map<string, number>, name: string): void {
  const left = (counts.get(name) ?? 0) - 1
  if (left > 0) counts.set(name, left)
  else counts.delete(name)
}

const tooMany = (who: string, count: number, setting: string): SandboxError =>
  new SandboxError('too-many-requests', `${who} already has ${count} sandboxes`, {
    hint: `end some, or ask the operator for more: ${setting}`,
    retryAfterSecs: 5,
  })
