import { SandboxError } from '../../model/errors.ts'
import type { EventSink } from '../../model/event.ts'
import type { Spec } from '../../model/spec.ts'
import type { Principal } from '../access/keys.ts'
import type { OpenSandboxOptions } from '../gate.ts'
import type { Images } from '../images/images.ts'
import type { LiveSandbox } from '../lifecycle/live-sandbox.ts'
import type { OpenSandbox } from '../open-sandbox.ts'
import type { Created } from '../provisioner.ts'
import type { Sandbox } from '../sandbox.ts'
import type { Supervisor } from '../supervisor.ts'
import { TEMPORARY, type Template, type Templates } from './templates.ts'

type Parts = {
  readonly supervisor: Supervisor
  readonly templates: Templates
  readonly trail: EventSink
  readonly newId: (prefix: string) => string
}

/**
 * Snapshots of sandboxes, for other sandboxes of the same tenant: the files of the private directories, and the spec.
 * Mounts belong to the host, so a fork mounts them again instead of copying them. Processes are not included.
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

  /** Creates a sandbox with the same spec, checked again by the policy, and the current files. */
  async fork(principal: Principal, id: string, timeoutMs?: number): Promise<Created> {
    const [one] = await this.forks(principal, id, 1, timeoutMs)
    if (one?.status !== 'fulfilled') throw one?.reason
    return one.value
  }

  /** Creates several forks of the same moment; each succeeds or fails on its own. */
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

  /** SECURITY: hosts that were removed from the original while it ran are removed from the fork too. */
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
      throw new SandboxError('not-found', `no such snapshot \`${idOrName.slice(0, 128)}\``)
    await this.#parts.templates.remove(found)
  }

  /**
   * The files with which a sandbox moves to another node, when that node or the store of archives has them; undefined: none of them
   * could. INVARIANT: called while nothing runs in the sandbox.
   */
  async forMove(entry: LiveSandbox, live: OpenSandbox): Promise<Template | undefined> {
    const { templates } = this.#parts
    const kept = await templates.secure(await this.#archive(entry, live, { kind: 'move', name: null }))
    if (kept.data.copies || kept.data.archives?.every(({ chunks }) => chunks)) return kept
    await templates.remove(kept)
    return undefined
  }

  async #archive(
    { row }: LiveSandbox,
    live: OpenSandbox,
    { kind, name }: Pick<Template, 'kind' | 'name'>,
  ): Promise<Template> {
    const { templates, newId } = this.#parts
    const { env, template } = JSON.parse(row.spec) as Spec
    const from = template === undefined ? undefined : await templates.find(row.tenant, template)
    const { image, workdir, user } = from?.data ?? {}
    const data = {
      ...(env ? { env } : {}),
      ...(image === undefined ? {} : { image }),
      ...(workdir === undefined ? {} : { workdir }),
      ...(user === undefined ? {} : { user }),
    }
    const record = { id: newId('snp'), kind, tenant: row.tenant, name, sandboxId: row.id }
    const directories = [...live.plan.own, TEMPORARY]
    return templates.keep(live, directories, { ...record, createdAt: Date.now(), data })
  }

  #keep(entry: LiveSandbox, name: string | null): Promise<Template> {
    const { templates, trail } = this.#parts
    return entry.serially(async () => {
      const live = entry.ready()
      const done = entry.begin()
      const { id } = entry.row
      try {
        const { restart } = JSON.parse(entry.row.spec) as Spec
        const kept = await live.still(() => this.#archive(entry, live, { kind: 'snapshot', name }))
        const reason = `snapshot ${kept.id}`
        await trail.append({ event: 'SandboxState', sandbox_id: id, state: 'ready', reason })
        // What a sandbox restarts from must not be on its own node only.
        return restart ? await templates.secure(kept) : kept
      } finally {
        done()
      }
    })
  }
}

/** Template names that add nothing to the spec. */
const PLAIN = ['base', 'default']

/** The part of a spec that the policy checks: its template comes from a sandbox that was checked before. */
export function judged({ template: _, ...spec }: Spec): Spec {
  return spec
}

type Opening = Pick<
  OpenSandboxOptions,
  'id' | 'signal' | 'owner' | 'requester' | 'generation' | 'takesOver'
> & {
  readonly isSuspended?: boolean
  readonly disk?: string | undefined
  readonly lower?: readonly string[] | undefined
}
type Open = (spec: Spec, options: Opening) => Promise<Sandbox>

/** Opens the sandbox of a spec and restores the files of its template. */
export const openFrom =
  (templates: Templates, images: Images, open: Open): Open =>
  async (spec, options) => {
    if (spec.template === undefined || PLAIN.includes(spec.template)) return open(judged(spec), options)
    // SECURITY: a template belongs to a tenant; without a tenant there is no template.
    const found = options.owner === undefined ? undefined : await templates.find(options.owner, spec.template)
    if (!found)
      throw new SandboxError('not-found', `no such template \`${spec.template.slice(0, 128)}\``, {
        hint: 'take a snapshot, or build one',
      })
    const { image } = found.data
    await templates.bring(found)
    const base = {
      disk: templates.diskOf(found),
      lower: image === undefined ? undefined : images.layersOf(image),
    }
    const defaults = { cwd: found.data.workdir, user: found.data.user }
    if (options.isSuspended) {
      const woken = await open(judged(spec), { ...options, lower: base.lower })
      woken.commandDefaults = defaults
      return woken
    }
    const asked = withOwn(judged(spec), found)
    // Its files are there, as the last server left them.
    if (options.takesOver) {
      const taken = await open(asked, options)
      taken.commandDefaults = defaults
      return taken
    }
    // SECURITY: only a root of its own can hold what another root held.
    const hasRoot = base.disk !== undefined || image !== undefined
    const own = base.disk === undefined ? {} : backendOfDisk(spec, found)
    const live = await open(hasRoot ? { ...asked, ...own, root: 'writable' } : asked, { ...options, ...base })
    try {
      live.commandDefaults = defaults
      await templates.restore(live, live.plan.own, found)
      return live
    } catch (error) {
      await live.close()
      throw error
    }
  }

const MACHINE = 'microvm'

/** A disk holds the changes to what is below it, and a virtual machine has other programs there than the host. */
function backendOfDisk({ backend }: Spec, { id, backend: kept }: Template): Pick<Spec, 'backend'> {
  if (backend === undefined) return kept ? { backend: kept } : {}
  if ((backend === MACHINE) === (kept === MACHINE)) return { backend }
  throw new SandboxError('unsupported', `template ${id} has the disk of a \`${kept}\` sandbox`, {
    hint: `use \`"backend": "${kept}"\`, or leave the backend out`,
  })
}

/** Adds the private directories that the template's files need, unless the caller named its own. */
function withOwn(spec: Spec, { data }: Template): Spec {
  const directories = data.own ?? (data.paths ?? []).filter((path) => path !== TEMPORARY)
  const env = { ...data.env, ...spec.env }
  const named = Object.keys(env).length > 0 ? { env } : {}
  return spec.private || directories.length === 0
    ? { ...spec, ...named }
    : { ...spec, ...named, private: directories }
}
