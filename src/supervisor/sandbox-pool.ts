import { createHash } from 'node:crypto'
import { WarmPool } from '../host/warm-pool.ts'
import type { Spec } from '../model/spec.ts'
import type { OpenSandbox } from './open-sandbox.ts'

/** How many sandboxes of one spec are kept ready. */
export type PoolSize = { readonly spec: Spec; readonly size: number }

/** Starts what a sandbox has before its first use, in the name of a tenant. */
export type Preparation = (sandbox: OpenSandbox, tenant: string) => Promise<void>

/** How the pool opens sandboxes and knows the policy. */
export type PoolParts = {
  /** How many prepared sandboxes of each kind are kept ready. */
  readonly prepared: number
  /** How long after a prepared sandbox was taken the next one is opened. */
  readonly refillMs?: number
  readonly open: (spec: Spec) => Promise<OpenSandbox>
  /** The hash of the active policy; a sandbox planned under another policy is not handed out. */
  readonly policyHash: () => string
}

/** Spec fields that do not affect the sandbox. */
const IRRELEVANT: readonly string[] = ['metadata']

/** `policy` is the hash of the policy that admitted the sandbox. */
type Pooled = { readonly sandbox: OpenSandbox; readonly policy: string; isAlive: boolean }

/**
 * SECURITY: a prepared sandbox waits for anybody, so it holds nothing of the client that asked for the last one: no
 * variables, headers, secrets, mounts, volumes, templates. A field that is not listed here is taken for such a thing.
 */
const COMMON: readonly string[] = [
  ...['private', 'root', 'publicPorts', 'network', 'env', 'limits', 'metadata', 'atTimeout'],
]
const isCommon = (spec: Spec): boolean =>
  Object.entries(spec).every(([name, value]) => value === undefined || COMMON.includes(name)) &&
  Object.keys(spec.env ?? {}).length === 0 &&
  spec.network?.upstream === undefined &&
  (spec.network?.headers ?? []).length === 0

/** The tenant of what runs in a sandbox that nobody has yet. */
const NOBODY = ''

/** Preparing takes CPU time, which the taker needs first. */
const PREPARED_MS = 500

/** How many kinds of prepared sandboxes are kept. */
const KINDS = 4

/**
 * Sandboxes that `[[server.pool]]` keeps ready, and prepared ones of kinds that were asked for. SECURITY: only unused sandboxes are handed out, only for a spec that is
 * equal in every relevant field, and only if the active policy admitted them; a sandbox is destroyed after use.
 */
export class SandboxPool {
  readonly #parts: PoolParts
  readonly #pool: WarmPool<Pooled>
  #policy: string

  constructor(parts: PoolParts, sizes: readonly PoolSize[]) {
    this.#parts = parts
    this.#pool = new WarmPool<Pooled>({
      size: parts.prepared,
      maxKinds: KINDS,
      refillMs: 25,
      isUsable: ({ isAlive, policy }) => isAlive && policy === parts.policyHash(),
      discard: ({ sandbox }) => sandbox.close(),
    })
    this.#policy = parts.policyHash()
    for (const { spec, size } of sizes) this.#pool.pin(poolKey(spec), size, () => this.#open(spec))
  }

  get ready(): number {
    return this.#pool.ready
  }

  /** Opens missing sandboxes in the background. */
  fill(): void {
    this.#pool.fill()
  }

  /** Takes a sandbox that matches the spec exactly and that the caller may have; undefined if there is none. */
  async take(
    spec: Spec,
    isPermitted: (sandbox: OpenSandbox) => boolean,
    prepare?: Preparation,
  ): Promise<OpenSandbox | undefined> {
    if (this.#policy !== this.#parts.policyHash()) {
      this.#policy = this.#parts.policyHash()
      void this.#pool.clear()
    }
    // Hosts that a person approved belong to one tenant, and a pooled sandbox was planned for none.
    const accepts = ({ sandbox }: Pooled): boolean =>
      sandbox.plan.network.unlisted !== 'ask' && isPermitted(sandbox)
    if (!prepare || !isCommon(spec))
      return (await this.#pool.take(poolKey(spec), undefined, { accepts, wait: false }))?.sandbox
    const make = (): Promise<Pooled> => this.#open(spec, prepare)
    const options = { accepts, wait: false, refillMs: this.#parts.refillMs ?? PREPARED_MS }
    return (await this.#pool.take(`prepared ${poolKey(spec)}`, make, options))?.sandbox
  }

  close(): Promise<void> {
    return this.#pool.close()
  }

  async #open(spec: Spec, prepare?: Preparation): Promise<Pooled> {
    const policy = this.#parts.policyHash()
    const sandbox = await this.#parts.open(spec)
    // Backends start a sandbox at its first use; this starts it now.
    await sandbox.layers()
    // Not awaited: a create that comes meanwhile waits only for the rest of the preparation.
    void prepare?.(sandbox, NOBODY).catch(() => {})
    const pooled = { sandbox, policy, isAlive: true }
    void sandbox.ended.then(() => {
      pooled.isAlive = false
    })
    return pooled
  }
}

/** A digest of every relevant field of a spec. */
function poolKey(spec: Spec): string {
  const entries = Object.entries(spec).filter(
    ([name, value]) => !IRRELEVANT.includes(name) && value !== undefined,
  )
  return createHash('sha256')
    .update(stable(Object.fromEntries(entries)))
    .digest('hex')
}

function stable(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(stable).join(',')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null'
  const fields = value as Record<string, unknown>
  const names = Object.keys(fields).sort()
  return `{${names.map((name) => `${JSON.stringify(name)}:${stable(fields[name])}`).join(',')}}`
}
