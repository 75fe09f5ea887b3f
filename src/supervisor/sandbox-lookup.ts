import { SandboxError } from '../model/errors.ts'
import type { Spec } from '../model/spec.ts'
import { findSandbox, findSandboxes, listSandboxes, type SandboxRow } from '../store/sandboxes.ts'
import { isOperator, type Principal, requesterOf } from './access/keys.ts'
import { isEnded } from './lifecycle/lifecycle.ts'
import type { LiveSandbox } from './lifecycle/live-sandbox.ts'
import type { UnrecordedEnds } from './lifecycle/unrecorded-ends.ts'
import type { SandboxView } from './provisioner.ts'
import type { SupervisorParts } from './supervisor-parts.ts'

/** Which sandboxes a list shows. */
export type SandboxQuery = {
  readonly states?: readonly string[] | undefined
  readonly agentId?: string | undefined
  readonly after?: { readonly createdAt: number; readonly id: string } | undefined
  readonly limit: number
}

type LookupParts = Pick<SupervisorParts, 'store' | 'assertPermitted'> & {
  readonly entries: ReadonlyMap<string, LiveSandbox>
  readonly unrecorded: UnrecordedEnds
}

/** Finds sandboxes, live and stored, and decides who may see and use them. */
export class SandboxLookup {
  readonly #parts: LookupParts

  constructor(parts: LookupParts) {
    this.#parts = parts
  }

  /** SECURITY: a sandbox of another tenant is reported as not found. */
  async get(principal: Principal, id: string): Promise<SandboxView> {
    const seen = await this.find(principal, id)
    this.#assertPermitted(principal, seen)
    return seen
  }

  /** As `get`, for what a principal may always do with a sandbox of its tenant: end it. */
  async find(principal: Principal, id: string): Promise<SandboxView> {
    const live = this.#parts.entries.get(id)
    const row = await this.#rowOf(id)
    if (!row || !mayUse(principal, row)) throw notFound(id)
    return { row, live }
  }

  /** The live sandbox, if the principal may use it; throws if it has ended. */
  async use(principal: Principal, id: string): Promise<LiveSandbox> {
    const { row, live } = await this.get(principal, id)
    if (live) return live
    throw new SandboxError(
      'wrong-state',
      `sandbox ${id} is ${row.state}${row.reason ? ` (${row.reason})` : ''}`,
    )
  }

  /** The live sandboxes that this principal may see. */
  liveOf(principal: Principal): readonly LiveSandbox[] {
    return [...this.#parts.entries.values()].filter((entry) => mayUse(principal, entry.row))
  }

  /** The ended sandboxes among these ids that this principal may see. */
  async endedOf(principal: Principal, ids: readonly string[]): Promise<readonly SandboxRow[]> {
    const { store, entries } = this.#parts
    const rows = await findSandboxes(
      store,
      ids.filter((id) => !entries.has(id)),
    )
    return rows.filter((row) => mayUse(principal, row) && isEnded(row.state))
  }

  /** The hash to check a sandbox's own token against. */
  async tokenHash(
    id: string,
  ): Promise<{ readonly hash: string; readonly tenant: string; readonly keyId: string } | undefined> {
    const row = await this.#rowOf(id)
    return row && { hash: row.tokenHash, tenant: row.tenant, keyId: row.keyId }
  }

  async list(principal: Principal, query: SandboxQuery): Promise<readonly SandboxView[]> {
    const { store, entries, unrecorded } = this.#parts
    const tenant = isOperator(principal) ? undefined : principal.tenant
    const states = query.states?.map((state) => (state === 'executing' ? 'ready' : state))
    const rows = await listSandboxes(store, { ...query, states, tenant })
    return rows.flatMap((row) => {
      const live = entries.get(row.id)
      const ended = unrecorded.row(row.id)
      // The store still has the old state, which does not match the filter any more.
      if (ended && states && !states.includes(ended.state)) return []
      return [{ row: live?.row ?? ended ?? row, live }]
    })
  }

  async #rowOf(id: string): Promise<SandboxRow | undefined> {
    const { store, entries, unrecorded } = this.#parts
    return entries.get(id)?.row ?? unrecorded.row(id) ?? (await findSandbox(store, id))
  }

  /** SECURITY: a key must not get through an operator's sandbox in its tenant what it could not request itself. */
  #assertPermitted(principal: Principal, { row, live }: SandboxView): void {
    const requester = requesterOf(principal)
    // Without a key, a signed URL was enough; it gives access to one port or one file only.
    if (requester.operator || principal.keyId === '') return
    const isOwn = row.keyId === principal.keyId
    const { secrets = [], ...spec } = JSON.parse(row.spec) as Spec
    const opened = {
      ...spec,
      ...(row.backend === null ? {} : { backend: row.backend }),
      // A withdrawn secret is already gone from the sandbox; its creator may continue without it.
      secrets: isOwn ? [] : secrets,
    }
    this.#parts.assertPermitted(requester, opened, { plan: live?.sandbox?.plan, isOwn })
  }
}

const mayUse = (principal: Principal, row: SandboxRow): boolean =>
  principal.sandboxId === undefined
    ? isOperator(principal) || row.tenant === principal.tenant
    : principal.sandboxId === row.id

const notFound = (id: string): SandboxError =>
  new SandboxError('sandbox-not-found', `no such sandbox \`${id.slice(0, 64)}\``)
