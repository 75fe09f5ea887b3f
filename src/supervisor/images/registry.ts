import { createHash } from 'node:crypto'
import { type SafeHead, safeDownload, safeFetch } from '../../egress/fetch/safe-fetch.ts'
import { type Resolve, resolveFor } from '../../egress/upstream/names.ts'
import { SandboxError } from '../../model/errors.ts'
import { DIGEST, type ImageName, imageText } from './image-name.ts'

/** A user's name and password at a registry. */
export type Credentials = { readonly username: string; readonly password: string }

/** Another address for a registry, which the operator chose. */
export type Mirror = { readonly registry: string; readonly url: string }

/** A blob that a manifest names. */
export type Descriptor = { readonly digest: string; readonly size: number; readonly mediaType: string }

/** What a registry says about an image for this machine. */
export type Manifest = {
  /** The digest of the manifest itself, which covers everything below. */
  readonly digest: string
  readonly config: Descriptor
  readonly layers: readonly Descriptor[]
}

type Endpoint = {
  readonly base: string
  /** Private addresses that requests to this registry may reach. */
  readonly allowPrivate: readonly string[]
}

const MANIFEST_BYTES = 4 * 1024 * 1024
const MOST_LAYERS = 256
const ASK_MS = 30_000
const BLOB_MS = 30 * 60_000
const HUB = 'https://registry-1.docker.io'

const INDEX = /(manifest\.list\.v2|image\.index\.v1)\+json$/
const ACCEPT = [
  'application/vnd.oci.image.index.v1+json',
  'application/vnd.docker.distribution.manifest.list.v2+json',
  'application/vnd.oci.image.manifest.v1+json',
  'application/vnd.docker.distribution.manifest.v2+json',
].join(', ')

const ARCHITECTURES: Readonly<Record<string, string>> = { x64: 'amd64', arm64: 'arm64' }

/** The SHA-256 of bytes, as registries write it. */
const digestOf = (bytes: Uint8Array): string => `sha256:${createHash('sha256').update(bytes).digest('hex')}`

/**
 * One image at its registry. SECURITY: a tenant chooses the registry, and the registry chooses where redirects and tokens
 * come from, so every request goes to a public address with TLS, or to the operator's mirror.
 */
export class Registry {
  readonly #name: ImageName
  readonly #credentials: Credentials | undefined
  readonly #endpoint: Endpoint
  readonly #resolve: Resolve
  #authorization: string | undefined

  /** `tenant`: who chose the registry; absent: the operator. */
  constructor(name: ImageName, mirrors: readonly Mirror[], credentials?: Credentials, tenant = '') {
    this.#name = name
    this.#credentials = credentials
    this.#endpoint = endpointOf(name.registry, mirrors)
    this.#resolve = resolveFor({ tenant, keyId: 'images' })
  }

  /** The manifest for this machine's architecture. */
  async manifest(): Promise<Manifest> {
    const { json, digest, type } = await this.#manifest(this.#name.reference)
    if (!INDEX.test(type) && !Array.isArray(json.manifests)) return this.#parsed(json, digest)
    const architecture = ARCHITECTURES[process.arch]
    const found = (json.manifests ?? []).find(
      ({ platform }) => platform?.os === 'linux' && platform?.architecture === architecture,
    )
    if (!found || !DIGEST.test(String(found.digest)))
      throw this.#unusable(`it has no variant for linux/${architecture}`)
    const chosen = await this.#manifest(String(found.digest))
    return this.#parsed(chosen.json, chosen.digest)
  }

  async #manifest(
    reference: string,
  ): Promise<{ readonly json: Json; readonly digest: string; readonly type: string }> {
    const { status, body, headers } = await this.#ask(`manifests/${reference}`, { accept: ACCEPT })
    if (status !== 200) throw this.#failed(status)
    const digest = digestOf(body)
    if (reference.startsWith('sha256:') && digest !== reference)
      throw this.#unusable(`the registry sent a manifest with another digest than ${reference}`)
    try {
      const json = JSON.parse(Buffer.from(body).toString('utf8')) as Json
      return { json, digest, type: String(headers['content-type'] ?? json.mediaType ?? '') }
    } catch (cause) {
      throw this.#unusable('its manifest is not JSON', cause)
    }
  }

  #parsed({ config, layers }: Json, digest: string): Manifest {
    if (!Array.isArray(layers) || layers.length > MOST_LAYERS)
      throw this.#unusable(`its manifest has no layers, or more than ${MOST_LAYERS}`)
    return {
      digest,
      config: this.#descriptor(config),
      layers: layers.map((layer: Json) => this.#descriptor(layer)),
    }
  }

  #descriptor(one: Json | undefined): Descriptor {
    const { digest, size, mediaType } = one ?? {}
    const isValid = DIGEST.test(String(digest)) && Number.isSafeInteger(size) && Number(size) >= 0
    if (!isValid) throw this.#unusable('its manifest is not valid')
    return { digest: String(digest), size: Number(size), mediaType: String(mediaType ?? '') }
  }

  /** A small blob as a whole. */
  async small({ digest }: Descriptor): Promise<Uint8Array> {
    const { status, body } = await this.#ask(`blobs/${digest}`, {})
    if (status !== 200) throw this.#failed(status)
    if (digestOf(body) !== digest) throw this.#unusable(`the registry sent other bytes than ${digest}`)
    return body
  }

  /** Streams a blob. SECURITY: throws after the last byte if the bytes do not have the digest. */
  async blob<T>(descriptor: Descriptor, read: (bytes: AsyncIterable<Uint8Array>) => Promise<T>): Promise<T> {
    const { digest, size } = descriptor
    return safeDownload(
      this.#url(`blobs/${digest}`),
      this.#options({}, BLOB_MS),
      async ({ status }, body) => {
        if (status !== 200) throw this.#failed(status)
        const checked = this.#checked(body, digest, size)
        const done = await read(checked)
        // The rest, so that the digest covers every byte.
        for await (const _ of checked);
        return done
      },
    )
  }

  async *#checked(
    body: AsyncIterable<Uint8Array>,
    digest: string,
    size: number,
  ): AsyncGenerator<Uint8Array, void> {
    const hash = createHash('sha256')
    let length = 0
    for await (const chunk of body) {
      length += chunk.length
      if (length > size) throw this.#unusable(`a layer is longer than its manifest says`)
      hash.update(chunk)
      yield chunk
    }
    if (length !== size || `sha256:${hash.digest('hex')}` !== digest)
      throw this.#unusable(`the registry sent other bytes than ${digest}`)
  }

  async #ask(
    path: string,
    headers: Readonly<Record<string, string>>,
  ): Promise<SafeHead & { readonly body: Uint8Array }> {
    const first = await safeFetch(this.#url(path), this.#options(headers, ASK_MS))
    if (first.status !== 401 || this.#authorization !== undefined) return first
    this.#authorization = await this.#authorize(first.headers['www-authenticate'] ?? '')
    return safeFetch(this.#url(path), this.#options(headers, ASK_MS))
  }

  #url(path: string): string {
    return `${this.#endpoint.base}/v2/${this.#name.repository}/${path}`
  }

  #options(headers: Readonly<Record<string, string>>, timeoutMs: number) {
    const authorization = this.#authorization === undefined ? {} : { authorization: this.#authorization }
    const { allowPrivate } = this.#endpoint
    const limits = { timeoutMs, maxBytes: MANIFEST_BYTES, allowPrivate }
    return { headers: { ...headers, ...authorization }, resolve: this.#resolve, ...limits }
  }

  /** What the registry asks for: the password itself, or a token that another address gives. */
  async #authorize(challenge: string): Promise<string> {
    const basic = this.#credentials && basicOf(this.#credentials)
    if (/^basic/i.test(challenge)) {
      if (basic === undefined) throw this.#failed(401)
      return basic
    }
    const field = (name: string): string | undefined => new RegExp(`${name}="([^"]*)"`).exec(challenge)?.[1]
    const realm = field('realm')
    if (!/^bearer/i.test(challenge) || realm === undefined) throw this.#failed(401)
    const url = this.#realm(realm)
    const service = field('service')
    if (service !== undefined) url.searchParams.set('service', service)
    url.searchParams.set('scope', `repository:${this.#name.repository}:pull`)
    const { allowPrivate } = this.#endpoint
    const { status, body } = await safeFetch(url, {
      headers: basic === undefined ? {} : { authorization: basic },
      timeoutMs: ASK_MS,
      allowPrivate,
      resolve: this.#resolve,
    })
    if (status !== 200) throw this.#failed(status)
    const { token, access_token } = JSON.parse(Buffer.from(body).toString('utf8')) as Json
    return `Bearer ${String(token ?? access_token ?? '')}`
  }

  /** SECURITY: a password never travels without TLS, except to the operator's own mirror. */
  #realm(text: string): URL {
    const url = URL.canParse(text) ? new URL(text) : undefined
    const isMirror = url?.origin === new URL(this.#endpoint.base).origin
    if (url?.protocol === 'https:' || (url && isMirror)) return url
    throw this.#unusable('the registry names an address for tokens without TLS')
  }

  #failed(status: number): SandboxError {
    const name = imageText(this.#name)
    if (status === 401 || status === 403)
      return new SandboxError('invalid-input', `the registry does not give out \`${name}\``, {
        hint: 'check the name, and the credentials if the image is not public',
      })
    if (status === 404)
      return new SandboxError('not-found', `there is no image \`${name}\``, {
        hint: 'check the name and the tag',
      })
    return new SandboxError('fetch-failed', `the registry answers ${status} for \`${name}\``, {
      hint: 'try again later',
    })
  }

  #unusable(why: string, cause?: unknown): SandboxError {
    return new SandboxError(
      'invalid-input',
      `the image \`${imageText(this.#name)}\` cannot be used: ${why}`,
      {
        cause,
      },
    )
  }
}

/** What a registry sends; each field is checked where it is used. */
type Json = {
  readonly mediaType?: unknown
  readonly manifests?: readonly Json[]
  readonly platform?: { readonly os?: unknown; readonly architecture?: unknown }
  readonly config?: Json
  readonly layers?: readonly Json[]
  readonly digest?: unknown
  readonly size?: unknown
  readonly token?: unknown
  readonly access_token?: unknown
}

const basicOf = ({ username, password }: Credentials): string =>
  `Basic ${Buffer.from(`${username}:${password}`).toString('base64')}`

/** Where a registry is asked: at its own address, or at the operator's mirror. */
export function endpointOf(registry: string, mirrors: readonly Mirror[]): Endpoint {
  const mirror = mirrors.find((one) => one.registry === registry)
  if (!mirror) return { base: registry === 'docker.io' ? HUB : `https://${registry}`, allowPrivate: [] }
  const url = new URL(mirror.url)
  return { base: url.origin, allowPrivate: [url.hostname.replace(/^\[|\]$/g, '')] }
}
