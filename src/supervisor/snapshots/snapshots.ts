import { SandboxError } from '../../model/errors.ts'
import type { EventSink } from '../../model/event.ts'
import type { Spec } from '../../model/spec.ts'
import type { Principal } from '../access/keys.ts'
import type { OpenSandboxOptions } from '../gate.ts'
import type { LiveSandbox } from '../live-sandbox.ts'
import type { Created } from '../provisioner.ts'
import type { Sandbox } from '../sandbox.ts'
import type { Supervisor } from '../supervisor.ts'
import type { Template, Templates } from './templates.ts'

type Parts = {
  readonly supervisor: Supervisor
  readonly templates: Templates
  readonly trail: EventSink
  readonly newId: (prefix: string) => string
}

/** Its own place in every sandbox, beside the private directories that a spec may name. */
const TEMPORARY = '/tmp'

/**
 * What a sandbox holds, kept for others of the same tenant: the files of its own places, and the spec that it was made of.
 * Mounts are the host's, so a fork gets them again and not a copy. Processes are not in it.
 */
export class Snapshots {
  readonly #parts: Parts

  constructor(parts: Parts) {
    this.#parts = parts
  }

  async take(principal: Principal, id: string, name?: string): Promise<Template> {
    const entry = await this.#parts.supervisor.use(principal, id)
    return this.#keep(entry, name ?? null)
  }

  /** A new sandbox of the same spec, judged anew, with the files of this moment. */
  async fork(principal: Principal, id: string, timeoutMs?: number): Promise<Created> {
    const [one] = await this.forks(principal, id, 1, timeoutMs)
    if (one?.status !== 'fulfilled') throw one?.reason
    return one.value
  }

  /** Several of the same moment; each comes up or fails by itself. */
  async forks(
    principal: Principal,
    id: string,
    count: number,
    timeoutMs?: number,
  ): Promise<readonly PromiseSettledResult<Created>[]> {
    const { supervisor, templates } = this.#parts
    const entry = await supervisor.use(principal, id)
    const { allowHosts } = entry.ready()
    const kept = await this.#keep(entry, null)
    try {
      const spec: Spec = { ...(JSON.parse(entry.row.spec) as Spec), template: kept.id }
      const request = { spec, timeoutMs, idleMs: entry.idleMs }
      const one = async (): Promise<Created> => {
        const made = await supervisor.create(principal, request)
        await this.#narrow(principal, made, allowHosts)
        return made
      }
      return await Promise.allSettled(Array.from({ length: count }, one))
    } finally {
      await templates.remove(kept)
    }
  }

  /** SECURITY: what was taken from the first while it ran is not given to its copy. */
  async #narrow(principal: Principal, made: Created, allowHosts: readonly string[]): Promise<void> {
    const live = made.live?.ready()
    if (!live || live.allowHosts.join() === allowHosts.join()) return
    try {
      await live.setAllowHosts(allowHosts)
    } catch (error) {
      await this.#parts.supervisor.stop(principal, made.row.id).catch(() => {})
      throw error
    }
  }

  list(principal: Principal, limit: number): Promise<readonly Template[]> {
    return this.#parts.templates.list({ tenant: principal.tenant, kind: 'snapshot', limit })
  }

  async remove(principal: Principal, idOrName: string): Promise<void> {
    const found = await this.#parts.templates.find(principal.tenant, idOrName)
    if (found?.kind !== 'snapshot')
      throw new SandboxError('not-found', `there is no snapshot \`${idOrName.slice(0, 128)}\``)
    await this.#parts.templates.remove(found)
  }

  #keep(entry: LiveSandbox, name: string | null): Promise<Template> {
    const { templates, trail, newId } = this.#parts
    return entry.serially(async () => {
      const live = entry.ready()
      const done = entry.begin()
      const { id, tenant } = entry.row
      const record = { id: newId('snp'), kind: 'snapshot' as const, tenant, name, sandboxId: id }
      try {
        const places = [...live.plan.own, TEMPORARY]
        const { env } = JSON.parse(entry.row.spec) as Spec
        const data = env ? { env } : {}
        const kept = await live.still(() =>
          templates.keep(live, places, { ...record, createdAt: Date.now(), data }),
        )
        const reason = `snapshot ${kept.id}`
        await trail.append({ event: 'SandboxState', sandbox_id: id, state: 'ready', reason })
        return kept
      } finally {
        done()
      }
    })
  }
}

/** Templates that mean: nothing beyond the spec. */
const PLAIN = ['base', 'default']

/** The part of a spec that policy judges: its template was made by a sandbox that it judged before. */
export function judged({ template: _, ...spec }: Spec): Spec {
  return spec
}

type Opening = Pick<OpenSandboxOptions, 'id' | 'signal' | 'owner' | 'requester'>
type Open = (spec: Spec, options: Opening) => Promise<Sandbox>

/** Opens what a spec asks for and puts the files of its template into it. */
export const openFrom =
  (templates: Templates, open: Open): Open =>
  async (spec, options) => {
    if (spec.template === undefined || PLAIN.includes(spec.template)) return open(judged(spec), options)
    // SECURITY: a template is its tenant's; without one there is none to find.
    const found = options.owner === undefined ? undefined : await templates.find(options.owner, spec.template)
    if (!found)
      throw new SandboxError('not-found', `there is no template \`${spec.template.slice(0, 128)}\``, {
        hint: 'take a snapshot, or build one',
      })
    const live = await open(withOwn(judged(spec), found), options)
    try {
      await templates.restore(live, live.plan.own, found)
      return live
    } catch (error) {
      await live.close()
      throw error
    }
  }

/** The private directories that its files need, unless the caller named its own. */
function withOwn(spec: Spec, { data }: Template): Spec {
  const places = (data.paths ?? []).filter((path) => path !== TEMPORARY)
  const env = { ...data.env, ...spec.env }
  const named = Object.keys(env).length > 0 ? { env } : {}
  return spec.private || places.length === 0 ? { ...spec, ...named } : { ...spec, ...named, private: places }
}
