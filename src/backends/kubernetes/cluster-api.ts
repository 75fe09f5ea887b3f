import type * as Client from '@kubernetes/client-node'
import { SandboxError } from '../../model/errors.ts'
import { AUTHORITY_SECRET } from './launch.ts'
import type { KubernetesSettings } from './settings.ts'

/** The cluster's API, through the official client library. Every call that this backend makes is here. */

/** The official client library, which is loaded at the first use of the backend. */
export type ClientLibrary = typeof Client

/** What this backend reads of a Pod, as the API sends it. */
export type PodView = Client.V1Pod

/** One right that the backend needs in its namespace. */
export type Right = {
  readonly group: string
  readonly resource: string
  readonly verb: string
  /** Absent: on all objects of the kind. */
  readonly name?: string
}

const right =
  (group: string, resource: string) =>
  (verb: string): Right => ({ group, resource, verb })

/** Every right that the backend uses. deploy/ grants exactly these; a test compares them. */
export const RIGHTS: readonly Right[] = [
  ...['create', 'delete', 'list', 'patch', 'watch'].map(right('', 'pods')),
  ...['create', 'delete'].map(right('', 'secrets')),
  { ...right('', 'secrets')('get'), name: AUTHORITY_SECRET },
  ...['list'].map(right('', 'events')),
  ...['create', 'get', 'update'].map(right('coordination.k8s.io', 'leases')),
  ...['create', 'get'].map(right('networking.k8s.io', 'networkpolicies')),
]

/** What the backend also uses with `tenant_namespaces`; namespaces belong to the whole cluster. */
export const TENANT_RIGHTS = {
  use: [right('', 'namespaces')('get')],
  create: [
    right('', 'namespaces')('create'),
    right('', 'resourcequotas')('create'),
    right('', 'limitranges')('create'),
  ],
} as const satisfies Record<string, readonly Right[]>

/** What a watch tells: a Pod as it is now, or that it is gone. */
export type PodChange = { readonly kind: 'seen' | 'gone'; readonly pod: PodView }

const CALL_MS = 30_000

/** The calls to one cluster, in one namespace. */
export class ClusterApi {
  readonly namespace: string
  readonly #library: ClientLibrary
  readonly #config: Client.KubeConfig
  readonly #core: Client.CoreV1Api

  constructor(library: ClientLibrary, settings: KubernetesSettings) {
    this.#library = library
    this.namespace = settings.namespace
    this.#config = configOf(library, settings)
    this.#core = this.#config.makeApiClient(library.CoreV1Api)
  }

  /** The address of the API, for messages. */
  get server(): string {
    return this.#config.getCurrentCluster()?.server ?? 'the cluster'
  }

  createPod(body: Client.V1Pod): Promise<PodView> {
    return this.#call(() => this.#core.createNamespacedPod({ namespace: this.namespace, body }))
  }

  async listPods(
    labelSelector: string,
    fieldSelector?: string,
  ): Promise<{ readonly pods: readonly PodView[]; readonly version: string }> {
    const { items, metadata } = await this.#call(() =>
      this.#core.listNamespacedPod({
        namespace: this.namespace,
        labelSelector,
        ...(fieldSelector === undefined ? {} : { fieldSelector }),
      }),
    )
    return { pods: items, version: metadata?.resourceVersion ?? '' }
  }

  /** Resolves when the cluster has accepted it; the Pod itself ends later. A Pod that is gone counts as deleted. */
  async deletePod(name: string, graceSecs: number): Promise<void> {
    const namespace = this.namespace
    await this.#unlessMissing(() =>
      this.#core.deleteNamespacedPod({ name, namespace, gracePeriodSeconds: graceSecs }),
    )
  }

  /** The same, unless another server has claimed the Pod. Rejects with `conflict` if the Pod changes meanwhile. */
  async deleteOwnPod(
    name: string,
    labels: Readonly<Record<string, string>>,
    graceSecs: number,
  ): Promise<void> {
    const namespace = this.namespace
    const { pods } = await this.listPods(selectorOf(labels), `metadata.name=${name}`)
    const { uid, resourceVersion } = pods[0]?.metadata ?? {}
    if (!uid || !resourceVersion) return
    const body = { gracePeriodSeconds: graceSecs, preconditions: { uid, resourceVersion } }
    await this.#unlessMissing(() => this.#core.deleteNamespacedPod({ name, namespace, body }))
  }

  /** Changes labels and annotations if the Pod is still the version that the caller saw. Rejects with `conflict` if not. */
  claimPod(name: string, metadata: Readonly<Record<string, unknown>>): Promise<PodView> {
    const body = { metadata }
    const headers = this.#library.setHeaderOptions('Content-Type', this.#library.PatchStrategy.MergePatch)
    return this.#call(() => this.#core.patchNamespacedPod({ name, namespace: this.namespace, body }, headers))
  }

  /** Follows Pods from a version on. `onEnd` is called once, when the cluster closes the connection. */
  async watchPods(
    labelSelector: string,
    resourceVersion: string,
    onChange: (change: PodChange) => void,
    onEnd: (error: unknown) => void,
  ): Promise<() => void> {
    const path = `/api/v1/namespaces/${this.namespace}/pods`
    const heard = (type: string, pod: PodView): void => {
      if (type === 'ERROR') stop.abort()
      else if (type !== 'BOOKMARK') onChange({ kind: type === 'DELETED' ? 'gone' : 'seen', pod })
    }
    const query = { labelSelector, resourceVersion, allowWatchBookmarks: true, timeoutSeconds: 600 }
    const stop = await new this.#library.Watch(this.#config).watch(path, query, heard, onEnd)
    return () => stop.abort()
  }

  createSecret(body: Client.V1Secret): Promise<Client.V1Secret> {
    return this.#call(() => this.#core.createNamespacedSecret({ namespace: this.namespace, body }))
  }

  readSecret(name: string): Promise<Client.V1Secret | undefined> {
    return this.#unlessMissing(() => this.#core.readNamespacedSecret({ name, namespace: this.namespace }))
  }

  async deleteSecret(name: string): Promise<void> {
    await this.#unlessMissing(() => this.#core.deleteNamespacedSecret({ name, namespace: this.namespace }))
  }

  /** What the cluster's parts said about a Pod, the oldest first. */
  async eventsOf(pod: string): Promise<readonly Client.CoreV1Event[]> {
    const fieldSelector = `involvedObject.name=${pod}`
    const { items } = await this.#call(() =>
      this.#core.listNamespacedEvent({ namespace: this.namespace, fieldSelector }),
    )
    return items
  }

  /** Whether our namespace exists. */
  async hasNamespace(): Promise<boolean> {
    const found = await this.#unlessMissing(() => this.#core.readNamespace({ name: this.namespace }))
    return found !== undefined && found.status?.phase !== 'Terminating'
  }

  createNamespace(body: Client.V1Namespace): Promise<Client.V1Namespace> {
    return this.#call(() => this.#core.createNamespace({ body }))
  }

  createQuota(body: Client.V1ResourceQuota): Promise<Client.V1ResourceQuota> {
    return this.#call(() => this.#core.createNamespacedResourceQuota({ namespace: this.namespace, body }))
  }

  createLimits(body: Client.V1LimitRange): Promise<Client.V1LimitRange> {
    return this.#call(() => this.#core.createNamespacedLimitRange({ namespace: this.namespace, body }))
  }

  readPolicy(name: string): Promise<Client.V1NetworkPolicy | undefined> {
    const api = this.#config.makeApiClient(this.#library.NetworkingV1Api)
    return this.#unlessMissing(() => api.readNamespacedNetworkPolicy({ name, namespace: this.namespace }))
  }

  createPolicy(body: Client.V1NetworkPolicy): Promise<Client.V1NetworkPolicy> {
    const api = this.#config.makeApiClient(this.#library.NetworkingV1Api)
    return this.#call(() => api.createNamespacedNetworkPolicy({ namespace: this.namespace, body }))
  }

  /** Takes a lock that ends by itself. Resolves with whether it is ours now. */
  async lock(name: string, holder: string, secs: number): Promise<boolean> {
    const api = this.#config.makeApiClient(this.#library.CoordinationV1Api)
    const namespace = this.namespace
    const spec = {
      holderIdentity: holder,
      leaseDurationSeconds: secs,
      renewTime: new this.#library.V1MicroTime(),
    }
    try {
      const held = await this.#unlessMissing(() => api.readNamespacedLease({ name, namespace }))
      if (!held) {
        await this.#call(() => api.createNamespacedLease({ namespace, body: { metadata: { name }, spec } }))
        return true
      }
      if (!isOver(held.spec) && held.spec?.holderIdentity !== holder) return false
      const body = { metadata: { name, resourceVersion: held.metadata?.resourceVersion ?? '' }, spec }
      await this.#call(() => api.replaceNamespacedLease({ name, namespace, body }))
      return true
    } catch (error) {
      if (error instanceof SandboxError && error.code === 'conflict') return false
      throw error
    }
  }

  /** Gives a lock back, unless it is somebody else's by now. */
  async unlock(name: string, holder: string): Promise<void> {
    const api = this.#config.makeApiClient(this.#library.CoordinationV1Api)
    const namespace = this.namespace
    const held = await this.#unlessMissing(() => api.readNamespacedLease({ name, namespace }))
    if (held?.spec?.holderIdentity !== holder) return
    const spec = { ...held.spec, holderIdentity: '' }
    const body = { metadata: { name, resourceVersion: held.metadata?.resourceVersion ?? '' }, spec }
    await this.#call(() => api.replaceNamespacedLease({ name, namespace, body })).catch(() => {})
  }

  /** Which of these rights the cluster does not give us. */
  async missing(rights: readonly Right[]): Promise<readonly Right[]> {
    const api = this.#config.makeApiClient(this.#library.AuthorizationV1Api)
    const asked = rights.map(async (one) => {
      const resourceAttributes = { namespace: this.namespace, ...one }
      const body = { spec: { resourceAttributes } }
      const answer = await this.#call(() => api.createSelfSubjectAccessReview({ body }))
      return answer.status?.allowed === true ? [] : [one]
    })
    return (await Promise.all(asked)).flat()
  }

  async #unlessMissing<T>(call: () => Promise<T>): Promise<T | undefined> {
    try {
      return await this.#call(call)
    } catch (error) {
      if (error instanceof SandboxError && error.code === 'not-found') return undefined
      throw error
    }
  }

  async #call<T>(call: () => Promise<T>): Promise<T> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error('no answer')), CALL_MS)
    })
    try {
      return await Promise.race([call(), late])
    } catch (error) {
      throw refusalOf(error, this.server)
    } finally {
      clearTimeout(timer)
    }
  }
}

/** The selector of what has all of these labels. */
export const selectorOf = (labels: Readonly<Record<string, string>>): string =>
  Object.entries(labels)
    .map(([name, value]) => `${name}=${value}`)
    .join(',')

const isOver = (spec: Client.V1LeaseSpec | undefined): boolean =>
  !spec?.holderIdentity ||
  Date.now() > new Date(spec.renewTime ?? 0).getTime() + (spec.leaseDurationSeconds ?? 0) * 1000

function configOf(library: ClientLibrary, { kubeconfig, context }: KubernetesSettings): Client.KubeConfig {
  const config = new library.KubeConfig()
  try {
    if (kubeconfig === undefined) config.loadFromCluster()
    else config.loadFromFile(kubeconfig)
    if (context !== undefined) config.setCurrentContext(context)
  } catch (cause) {
    throw new SandboxError('invalid-config', 'the cluster’s configuration cannot be read', {
      hint: 'set `kubeconfig` in [kubernetes], or run the server in a Pod with a service account',
      cause,
    })
  }
  if (config.getCurrentCluster()) return config
  throw new SandboxError('invalid-config', 'the kubeconfig names no cluster', {
    hint: 'set `context` in [kubernetes]',
  })
}

const CODES = {
  401: 'backend-unavailable',
  403: 'backend-unavailable',
  404: 'not-found',
  409: 'conflict',
} as const

/** SECURITY: the library’s own message has all headers of the answer, so only the API’s sentence is shown. */
function refusalOf(error: unknown, server: string): SandboxError {
  if (error instanceof SandboxError) return error
  const { code, body } = (error ?? {}) as { readonly code?: unknown; readonly body?: unknown }
  if (typeof code !== 'number')
    return new SandboxError('unreachable', `the cluster at ${server} cannot be reached`, {
      hint: 'check that its API server runs, and `kubeconfig` in [kubernetes]',
      cause: error,
    })
  const said = messageIn(body)
  if (code === 403 && said.includes('exceeded quota'))
    return new SandboxError('too-many-requests', `the quota of the namespace is used up: ${said}`, {
      hint: 'end sandboxes, ask for less, or raise the ResourceQuota',
      retryAfterSecs: 10,
    })
  return new SandboxError(
    CODES[code as keyof typeof CODES] ?? 'launch-failed',
    `the cluster refused it (${code})${said ? `: ${said}` : ''}`,
    code === 403 ? { hint: 'give the service account the rights of deploy/kubernetes/sandboxes' } : {},
  )
}

function messageIn(body: unknown): string {
  try {
    const { message } = (typeof body === 'string' ? JSON.parse(body) : (body ?? {})) as { message?: unknown }
    return typeof message === 'string' ? message : ''
  } catch {
    return ''
  }
}
