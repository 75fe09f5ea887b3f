import type { ContainerEngine } from '../../host/net/container-engine.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Plan } from '../../model/plan.ts'
import { type Image, type ImageStore, PROBE_IMAGE } from '../images/store.ts'

const LOAD_MS = 10 * 60_000
const REFERENCE = /^[a-zA-Z0-9][a-zA-Z0-9._/:@-]{0,254}$/

/** Finds the engine's image for a sandbox. Images are never pulled: a missing one is an error. */
export class EngineImages {
  readonly engine: ContainerEngine
  readonly #store: ImageStore
  readonly #onProgress: ((text: string) => void) | undefined
  readonly #loaded = new Map<string, Promise<string>>()
  #podman: Promise<boolean> | undefined

  constructor(engine: ContainerEngine, store: ImageStore, onProgress?: (text: string) => void) {
    this.engine = engine
    this.#store = store
    this.#onProgress = onProgress
  }

  /** The id of one of our images, loaded if the engine lacks it, or of an image of the engine. */
  async idOf({ image: name, engineImages }: Pick<Plan, 'image' | 'engineImages'>): Promise<string> {
    const onProgress = this.#onProgress
    const own = name === undefined ? await this.#store.default({ onProgress }) : this.#store.get(name)
    if (own) return this.#ensure(own)
    // SECURITY: the engine's images belong to the operator. The error is the same whether the image exists or not.
    if (!engineImages) throw notGranted(name)
    if (!REFERENCE.test(name ?? '')) throw unknown(name)
    const { status, body } = await this.#inspect(name as string)
    if (status === 404) throw unknown(name)
    return idIn(body)
  }

  /** The id of an empty image. */
  async empty(): Promise<string> {
    return this.#ensure(
      this.#store.get(PROBE_IMAGE) ?? (await this.#store.build(PROBE_IMAGE, { kind: 'empty' })),
    )
  }

  /** Podman's API differs in details. */
  isPodman(): Promise<boolean> {
    this.#podman ??= this.engine.call({ method: 'GET', path: '/version' }).then(({ body }) => {
      const { Components } = (body ?? {}) as { Components?: unknown }
      return JSON.stringify(Components ?? '').includes('Podman')
    })
    this.#podman.catch(() => {
      this.#podman = undefined
    })
    return this.#podman
  }

  #ensure(image: Image): Promise<string> {
    const known = this.#loaded.get(image.id)
    if (known) return known
    const loading = this.#load(image)
    this.#loaded.set(image.id, loading)
    loading.catch(() => this.#loaded.delete(image.id))
    return loading
  }

  async #load(image: Image): Promise<string> {
    const there = await this.#inspect(image.id)
    if (there.status !== 404) return idIn(there.body)
    this.#onProgress?.(`loading the image ${image.name} into the engine`)
    await this.engine.call({
      method: 'POST',
      path: '/images/load?quiet=1',
      stream: this.#store.archive(image),
      deadlineMs: LOAD_MS,
    })
    const { status, body } = await this.#inspect(image.id)
    if (status === 404)
      throw new SandboxError('launch-failed', `the engine did not load the image \`${image.name}\``)
    return idIn(body)
  }

  #inspect(name: string) {
    const path = `/images/${name.split('/').map(encodeURIComponent).join('/')}/json`
    return this.engine.call({ method: 'GET', path }, [404])
  }
}

const notGranted = (name: string | undefined): SandboxError =>
  new SandboxError('forbidden', `this tenant may not run the image \`${name}\``, {
    hint: `the operator can permit it: \`images = ["${name}"]\` in [[tenant]], or build one: ringfence image build NAME`,
  })

const unknown = (name: string | undefined): SandboxError =>
  new SandboxError('invalid-input', `no such image \`${name}\``, {
    hint: 'build one: ringfence image build NAME; images are never pulled',
  })

function idIn(body: unknown): string {
  const { Id } = (body ?? {}) as { Id?: unknown }
  if (typeof Id === 'string' && /^(sha256:)?[0-9a-f]{64}$/.test(Id)) return Id
  throw new SandboxError('backend-unavailable', 'the container engine returned no image id')
}
