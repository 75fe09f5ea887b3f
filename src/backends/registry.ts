import { monotonicMs } from '../host/clock.ts'
import type { ExecResult } from '../model/command.ts'
import { SandboxError } from '../model/errors.ts'
import { atLeast, type Guarantee } from '../model/guarantee.ts'
import type { Plan } from '../model/plan.ts'
import type { Backend, BackendSandbox, Probe } from './backend.ts'

/** Caches probes between runs; a result is valid only while the backend's fingerprint is the same. */
export type ProbeCache = {
  load(backend: string, fingerprint: string): Probe | undefined
  save(backend: string, fingerprint: string, probe: Probe): void
  forget(backend: string): void
}

type Entry = {
  readonly backend: Backend
  readonly priority: number
  probe?: { readonly at: number; readonly probe: Probe }
}
type Gap = {
  readonly backend: Backend
  readonly reason: string
  readonly fix: string
  readonly available: boolean
}

const PROBE_AGE_MS = 30_000

/** All backends of this host. Selection never falls back to a weaker backend: without isolation nothing runs. */
export class SandboxRegistry {
  readonly #entries = new Map<string, Entry>()
  readonly #memory: ProbeCache | undefined
  readonly #emulates: () => boolean
  readonly #broken: (backend: string) => readonly Guarantee[]
  /** The backends of `[backends] order`; undefined: all of them, by priority. */
  #order: readonly string[] | undefined

  /**
   * `emulates`: the operator accepts emulated virtual machines for automatic selection. `broken`: what `ringfence prove` found
   * broken on this host.
   */
  constructor(
    memory?: ProbeCache,
    emulates: () => boolean = () => false,
    broken: (backend: string) => readonly Guarantee[] = () => [],
  ) {
    this.#memory = memory
    this.#emulates = emulates
    this.#broken = broken
  }

  register(backend: Backend, priority = 0): this {
    this.#entries.set(backend.name, { backend, priority })
    return this
  }

  /**
   * The backends for requests that name none, in this order. SECURITY: nothing else is used in their place: an operator who
   * lists only `gvisor` never wants a tenant's code behind `bubblewrap`.
   */
  setOrder(names: readonly string[]): void {
    this.#order = names
  }

  /** All backends: those of the order first, then by priority. */
  list(): readonly Backend[] {
    const order = this.#order ?? []
    const place = (name: string): number => (order.includes(name) ? order.indexOf(name) : order.length)
    return [...this.#entries.values()]
      .sort((a, b) => place(a.backend.name) - place(b.backend.name) || b.priority - a.priority)
      .map((entry) => entry.backend)
  }

  get(name: string): Backend | undefined {
    return this.#entries.get(name)?.backend
  }

  /** Probes a backend; only success is cached, and only for a short time within one process. */
  async probe(name: string, options: { readonly fresh?: boolean } = {}): Promise<Probe> {
    const entry = this.#entries.get(name)
    if (!entry) return { available: false, reason: `no such backend \`${name}\``, fix: this.#known() }
    if (!options.fresh && entry.probe && monotonicMs() - entry.probe.at < PROBE_AGE_MS)
      return entry.probe.probe
    const fingerprint = entry.backend.fingerprint?.()
    const remembered = fingerprint && !options.fresh ? this.#memory?.load(name, fingerprint) : undefined
    const probe = remembered ?? (await entry.backend.probe())
    if (probe.available) entry.probe = { at: monotonicMs(), probe }
    if (probe.available && fingerprint && !remembered) this.#memory?.save(name, fingerprint, probe)
    return probe
  }

  /** Discards the cached probe of a backend that failed. */
  invalidate(name: string): void {
    const entry = this.#entries.get(name)
    if (entry) delete entry.probe
    this.#memory?.forget(name)
  }

  /** The first available backend, by priority, that provides every guarantee the plan needs. */
  async select(plan: Plan): Promise<Backend> {
    const candidates = this.#candidates(plan)
    const gaps: Gap[] = []
    for (const backend of candidates) {
      const gap = await this.#gap(backend, plan)
      if (!gap) return backend
      gaps.push(gap)
    }
    throw refusal(plan, gaps, this.#order)
  }

  #candidates(plan: Plan): readonly Backend[] {
    const found =
      plan.backend === undefined
        ? this.list().filter(
            (backend) => this.#isListed(backend) && isAutomatic(backend, plan, this.#emulates()),
          )
        : [this.#named(plan.backend)]
    return withVolumes(withImage(withRoot(withReview(withPermission(found, plan), plan), plan), plan), plan)
  }

  /** Throws unless this backend provides every guarantee the plan needs. */
  async assertCovers(backend: Backend, plan: Plan): Promise<void> {
    const gap = await this.#gap(backend, plan)
    if (gap) throw refusal(plan, [gap])
  }

  #isListed({ name }: Backend): boolean {
    return this.#order?.includes(name) ?? true
  }

  #named(name: string): Backend {
    const backend = this.get(name)
    if (backend) return backend
    throw new SandboxError('backend-unavailable', `no such backend \`${name}\``, { hint: this.#known() })
  }

  #known(): string {
    return `known: ${[...this.#entries.keys()].join(', ')}`
  }

  async #gap(backend: Backend, plan: Plan): Promise<Gap | undefined> {
    if (!atLeast(backend.level, plan.minLevel) && backend.name !== 'mock')
      return {
        backend,
        available: true,
        reason: `provides only \`${backend.level}\` isolation`,
        fix: 'choose a stronger backend',
      }
    const probe = await this.probe(backend.name)
    if (!probe.available) return { backend, available: false, reason: probe.reason, fix: probe.fix }
    // SECURITY: a claim that an attack has broken on this host does not count.
    const broken = this.#broken(backend.name)
    const claimed = probe.guarantees.filter((name) => !broken.includes(name))
    const missing = missingOf(plan.needs, [...claimed, ...(probe.waived ?? [])])
    if (missing.length === 0) return undefined
    const found = missing.some((name) => broken.includes(name))
      ? ' (`ringfence prove` found it broken here)'
      : ''
    return {
      backend,
      available: true,
      reason: `cannot guarantee: ${missing.join(', ')}${found}`,
      fix: `choose another backend, or waive by name: ${missing.map((name) => `--waive ${name}`).join(' ')}`,
    }
  }

  /** A one-shot interface on top of any backend. */
  oneShot(backend: Backend, plan: () => Plan): OneShot {
    return new OneShot(this, backend, plan)
  }
}

const isAutomatic = (backend: Backend, plan: Plan, emulates: boolean): boolean =>
  !backend.byNameOnly &&
  (emulates || !backend.emulated) &&
  atLeast(backend.level, plan.minLevel) &&
  (!backend.onRequest || plan.image !== undefined || !atLeast('os', plan.minLevel))

/** The guarantees that are needed and not claimed. */
export const missingOf = (needs: readonly Guarantee[], claims: readonly Guarantee[]): readonly Guarantee[] =>
  needs.filter((name) => !claims.includes(name))

function refusal(plan: Plan, gaps: readonly Gap[], order?: readonly string[]): SandboxError {
  const best = gaps.find((gap) => gap.available) ?? gaps[0]
  if (!best) {
    const who = order === undefined ? 'no backend on this host' : 'no backend in `[backends] order`'
    return new SandboxError('backend-unavailable', `${who} provides \`${plan.minLevel}\` isolation`, {
      hint:
        order === undefined
          ? 'run `ringfence doctor` to see what this host can do'
          : 'add one to the list (an emulated one also needs `emulate = true`), or name one in the request',
    })
  }
  const code = best.available ? 'missing-guarantee' : 'backend-unavailable'
  return new SandboxError(code, `${best.backend.name}: ${best.reason}`, {
    hint: best.fix,
    reasons: gaps.map((gap) => `${gap.backend.name}: ${gap.reason}`),
  })
}

/** `isAvailable`, `execute`, `kill`, `cleanup`: one sandbox per command, without state. */
export class OneShot {
  readonly #registry: SandboxRegistry
  readonly #backend: Backend
  readonly #plan: () => Plan
  readonly #running = new Map<string, AbortController>()
  #count = 0

  constructor(registry: SandboxRegistry, backend: Backend, plan: () => Plan) {
    this.#registry = registry
    this.#backend = backend
    this.#plan = plan
  }

  async isAvailable(): Promise<boolean> {
    return (await this.#registry.probe(this.#backend.name)).available
  }

  async execute(argv: readonly [string, ...string[]]): Promise<ExecResult & { readonly id: string }> {
    const id = `${this.#backend.name}-${++this.#count}`
    const controller = new AbortController()
    this.#running.set(id, controller)
    let sandbox: BackendSandbox | undefined
    try {
      const plan = this.#plan()
      await this.#registry.assertCovers(this.#backend, plan)
      sandbox = await this.#backend.open(plan, { signal: controller.signal })
      return { id, ...(await sandbox.exec({ argv }, { signal: controller.signal })) }
    } finally {
      this.#running.delete(id)
      await sandbox?.close()
    }
  }

  /** Kills a running command; returns whether there was one with this id. */
  kill(id: string): boolean {
    const controller = this.#running.get(id)
    controller?.abort()
    return controller !== undefined
  }

  cleanup(): void {
    for (const id of this.#running.keys()) this.kill(id)
  }
}

/** SECURITY: selection skips backends that the requester may not use. */
function withPermission(found: readonly Backend[], { allowedBackends }: Plan): readonly Backend[] {
  const able = found.filter(({ name }) => allowedBackends?.includes(name) ?? true)
  if (able.length > 0 || found.length === 0) return able
  throw new SandboxError('forbidden', 'this tenant may not use any backend of this host', {
    hint: `the operator can permit one: \`backends = ["${found[0]?.name}"]\` in [[tenant]]`,
  })
}

function withImage(found: readonly Backend[], { image }: Plan): readonly Backend[] {
  if (image === undefined) return found
  const able = found.filter((backend) => backend.runsImages)
  if (able.length > 0) return able
  throw new SandboxError('unsupported', `no backend that may be used here can run the image \`${image}\``, {
    hint: 'leave out --image, or choose --backend docker or gvisor',
  })
}

/** Only some backends can give a sandbox a root file system of its own. */
function withRoot(found: readonly Backend[], { root, backend }: Plan): readonly Backend[] {
  if (!root) return found
  const able = found.filter(({ writableRoots }) => writableRoots)
  if (able.length > 0) return able
  const who =
    backend === undefined ? 'no backend that may be used here can' : `the backend \`${backend}\` cannot`
  throw new SandboxError('unsupported', `${who} give a sandbox a writable root`, {
    hint: 'use bubblewrap, or leave out `root`',
  })
}

/** SECURITY: a backend without review support would write to the originals. */
function withReview(found: readonly Backend[], { mounts, backend }: Plan): readonly Backend[] {
  if (!mounts.some(({ overlay }) => overlay)) return found
  const able = found.filter(({ reviews }) => reviews)
  if (able.length > 0) return able
  const who =
    backend === undefined ? 'no backend that may be used here can' : `the backend \`${backend}\` cannot`
  throw new SandboxError('unsupported', `${who} hold changes back for review`, {
    hint: 'use bubblewrap, or leave out --review',
  })
}

/** SECURITY: a backend that works on copies would lose what other sandboxes write to a volume meanwhile. */
function withVolumes(found: readonly Backend[], { volumes, backend }: Plan): readonly Backend[] {
  if (volumes.length === 0) return found
  const able = found.filter((one) => one.mountsVolumes)
  if (able.length > 0) return able
  const who =
    backend === undefined ? 'no backend that may be used here can' : `the backend \`${backend}\` cannot`
  throw new SandboxError('unsupported', `${who} mount volumes`, {
    hint: 'use bubblewrap, docker or gvisor, or leave the volumes out',
  })
}
