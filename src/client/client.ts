import type { Decision } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import type { HostScope } from '../model/host-question.ts'
import { isAuthenticationLost, type StreamEnd } from '../model/stream-end.ts'
import { RemoteSandbox } from './sandbox.ts'
import { errorOfStreamEnd, readEvents, streamEndIn } from './sse.ts'
import { Transport, type TransportOptions } from './transport.ts'
import type {
  Approval,
  Backends,
  CreatedKey,
  CreatedWebhook,
  KeyInfo,
  NodeInfo,
  Page,
  PolicyHash,
  PolicyView,
  ReviewPage,
  SandboxInfo,
  SandboxSpec,
  SandboxState,
  SettingList,
  SnapshotInfo,
  TemplateBuild,
  TemplateInfo,
  TemplateSpec,
  TenantInfo,
  Traffic,
  TrailProof,
  TrailRecord,
  Verification,
  VolumeInfo,
  WebhookInfo,
} from './types.ts'

/**
 * A Ringfence server, from Node or a browser:
 *
 *     const ringfence = new RingfenceClient({ url: 'http://127.0.0.1:4200', apiKey })
 *     const sandbox = await ringfence.create({ agent_id: 'me' })
 *     console.log((await sandbox.exec('echo hello')).stdout)
 *     await sandbox.close()
 */
export class RingfenceClient {
  readonly #transport: Transport

  constructor(options: TransportOptions) {
    this.#transport = new Transport(options)
  }

  get url(): string {
    return this.#transport.url
  }

  /** Makes a sandbox. A repeat after a broken connection does not make a second one. */
  async create(
    spec: SandboxSpec = {},
    options: { readonly idempotencyKey?: string } = {},
  ): Promise<RemoteSandbox> {
    const info = await this.#transport.json<SandboxInfo>({
      method: 'POST',
      path: '/v1/sandboxes',
      json: spec,
      headers: { 'idempotency-key': options.idempotencyKey ?? crypto.randomUUID() },
      repeatable: true,
    })
    return new RemoteSandbox(this.#transport, info)
  }

  async get(id: string): Promise<RemoteSandbox> {
    return new RemoteSandbox(this.#transport, await this.#get(`/v1/sandboxes/${encodeURIComponent(id)}`))
  }

  list(
    query: {
      /** `live`: all that have not ended. */
      readonly state?: SandboxState | 'live'
      readonly agent_id?: string
      readonly cursor?: string
      readonly limit?: number
    } = {},
  ): Promise<Page<SandboxInfo>> {
    return this.#get('/v1/sandboxes', query)
  }

  /** Judges a command without running it: for the host, or as a command of a sandbox. */
  evaluate(
    command: string | readonly string[],
    workspace?: string,
    { sandboxId, cwd }: { readonly sandboxId?: string; readonly cwd?: string | undefined } = {},
  ): Promise<Decision> {
    const asked = typeof command === 'string' ? { command } : { argv: command }
    const json = {
      ...asked,
      ...(workspace === undefined ? {} : { workspace }),
      ...(sandboxId === undefined ? {} : { sandbox_id: sandboxId }),
      ...(cwd === undefined ? {} : { cwd }),
    }
    return this.#transport.json({ method: 'POST', path: '/v1/policy/evaluate', json, repeatable: true })
  }

  approvals(state?: Approval['state']): Promise<Page<Approval>> {
    return this.#get('/v1/approvals', { state })
  }

  /** One approval. */
  approval(id: string): Promise<Approval> {
    return this.#get(`/v1/approvals/${encodeURIComponent(id)}`)
  }

  /** The policy; with the scope `admin` also its file, its text and the `base` that a change names. */
  policy(): Promise<PolicyView> {
    return this.#get('/v1/policy')
  }

  /** Replaces the text of the policy file; refused if it has changed since `base` was read. */
  savePolicy(text: string, base: string): Promise<PolicyHash> {
    return this.#transport.json({ method: 'PUT', path: '/v1/policy', json: { text, base } })
  }

  /** The sandboxes that have ended and whose changes wait, latest first. */
  reviews(): Promise<ReviewPage> {
    return this.#get('/v1/reviews')
  }

  /** The reason is sent to the caller and recorded. `scope` is for a host: how far a yes reaches. */
  answer(id: string, approve: boolean, reason?: string, scope?: HostScope): Promise<Approval> {
    const path = `/v1/approvals/${encodeURIComponent(id)}`
    return this.#transport.json({
      method: 'POST',
      path,
      json: { approve, ...(reason === undefined ? {} : { reason }), ...(scope && { scope }) },
    })
  }

  audit(
    query: {
      readonly event?: string
      readonly event_type?: 'sandbox'
      readonly agent_id?: string
      readonly sandbox_id?: string
      readonly exec_id?: string
      readonly since?: string
      readonly limit?: number
      readonly cursor?: string
      readonly order?: 'asc' | 'desc'
    } = {},
  ): Promise<Page<TrailRecord>> {
    return this.#get('/v1/audit', query)
  }

  /** The canonical lines of the audit log after a record. */
  async auditLines(after: number): Promise<string> {
    const query = after < 0 ? {} : { after }
    const response = await this.#transport.send({
      method: 'GET',
      path: '/v1/audit/lines',
      query,
      repeatable: true,
    })
    return response.text()
  }

  /** A proof that a record is in the audit log. */
  auditProof(seq: number): Promise<TrailProof> {
    return this.#get(`/v1/audit/proof/${seq}`)
  }

  verifyAudit(): Promise<Verification> {
    return this.#get('/v1/audit/verify')
  }

  /** The trail as it grows. Comes back after a break; throws the reason when the server will not have us back. */
  async *events(
    options: { readonly after?: number; readonly signal?: AbortSignal } = {},
  ): AsyncGenerator<TrailRecord, void> {
    let { after } = options
    // Until something else was heard.
    let cut: StreamEnd | undefined
    while (!options.signal?.aborted) {
      const response = await this.#eventsAfter(after, cut, options.signal)
      try {
        for await (const incoming of readEvents(response)) {
          after = incoming.id ?? after
          cut = streamEndIn(incoming)
          if (cut && isAuthenticationLost(cut)) throw errorOfStreamEnd(cut)
          if (!cut) yield JSON.parse(incoming.data) as TrailRecord
        }
      } catch (error) {
        if (options.signal?.aborted) return
        if (error instanceof SandboxError || (after === undefined && !cut)) throw error
      }
    }
  }

  /** A server that said why it goes, and is gone, is not just unreachable. */
  async #eventsAfter(
    after: number | undefined,
    cut: StreamEnd | undefined,
    signal: AbortSignal | undefined,
  ): Promise<Response> {
    const call = { method: 'GET', path: '/v1/events', query: { after }, repeatable: true, signal } as const
    return this.#transport.send(call).catch((error: unknown) => {
      throw cut && error instanceof SandboxError && error.code === 'unreachable'
        ? errorOfStreamEnd(cut)
        : error
    })
  }

  /** Creates a volume: a named directory that outlives sandboxes. */
  createVolume(options: { readonly name: string; readonly size_mb?: number }): Promise<VolumeInfo> {
    return this.#transport.json({ method: 'POST', path: '/v1/volumes', json: options })
  }

  volumes(): Promise<Page<VolumeInfo>> {
    return this.#get('/v1/volumes')
  }

  /** One volume, by id or name. */
  volume(idOrName: string): Promise<VolumeInfo> {
    return this.#get(`/v1/volumes/${encodeURIComponent(idOrName)}`)
  }

  /** Copies a volume; with `read_only` the copy is a snapshot. */
  copyVolume(
    idOrName: string,
    options: { readonly name: string; readonly read_only?: boolean },
  ): Promise<VolumeInfo> {
    const path = `/v1/volumes/${encodeURIComponent(idOrName)}/copy`
    return this.#transport.json({ method: 'POST', path, json: options })
  }

  async removeVolume(idOrName: string): Promise<void> {
    await this.#transport.json({ method: 'DELETE', path: `/v1/volumes/${encodeURIComponent(idOrName)}` })
  }

  /** The tenants with what each may have and what it uses. */
  tenants(): Promise<Page<TenantInfo>> {
    return this.#get('/v1/tenants')
  }

  /** Every setting of the server's configuration. */
  settings(): Promise<SettingList> {
    return this.#get('/v1/settings')
  }

  /** Connections of all sandboxes by host. */
  traffic(): Promise<Traffic> {
    return this.#get('/v1/egress')
  }

  /** The nodes of the cluster; none if the server is alone. */
  nodes(): Promise<Page<NodeInfo>> {
    return this.#get('/v1/nodes')
  }

  /** Sets whether a node takes new sandboxes. */
  scheduleNode(idOrName: string, verb: 'cordon' | 'drain' | 'uncordon'): Promise<NodeInfo> {
    const path = `/v1/nodes/${encodeURIComponent(idOrName)}/${verb}`
    return this.#transport.json({ method: 'POST', path, json: {} })
  }

  /** Forgets a node that does not run any more. */
  removeNode(idOrName: string): Promise<NodeInfo> {
    return this.#transport.json({ method: 'DELETE', path: `/v1/nodes/${encodeURIComponent(idOrName)}` })
  }

  snapshots(): Promise<Page<SnapshotInfo>> {
    return this.#get('/v1/snapshots')
  }

  async removeSnapshot(idOrName: string): Promise<void> {
    await this.#transport.json({ method: 'DELETE', path: `/v1/snapshots/${encodeURIComponent(idOrName)}` })
  }

  /** Uploads the files of a build; its `context` is the hash. */
  async uploadBuildFiles(hash: string, archive: Uint8Array | ReadableStream<Uint8Array>): Promise<void> {
    await this.#transport.send({ method: 'PUT', path: `/v1/templates/files/${hash}`, bytes: archive })
  }

  /** Starts the build of a template. */
  buildTemplate(options: TemplateSpec): Promise<TemplateBuild> {
    return this.#transport.json({ method: 'POST', path: '/v1/templates', json: options })
  }

  /** A build with the lines of its log after a position. */
  templateBuild(id: string, after = 0): Promise<TemplateBuild> {
    return this.#get(`/v1/templates/builds/${encodeURIComponent(id)}`, { after })
  }

  templates(): Promise<Page<TemplateInfo>> {
    return this.#get('/v1/templates')
  }

  async removeTemplate(idOrName: string): Promise<void> {
    await this.#transport.json({ method: 'DELETE', path: `/v1/templates/${encodeURIComponent(idOrName)}` })
  }

  /** Sends records of the audit log to a URL; the secret that signs them is in this answer only. */
  createWebhook(options: {
    readonly url: string
    readonly events?: readonly string[]
  }): Promise<CreatedWebhook> {
    return this.#transport.json({ method: 'POST', path: '/v1/webhooks', json: options })
  }

  webhooks(): Promise<Page<WebhookInfo>> {
    return this.#get('/v1/webhooks')
  }

  async removeWebhook(id: string): Promise<void> {
    await this.#transport.json({ method: 'DELETE', path: `/v1/webhooks/${encodeURIComponent(id)}` })
  }

  backends(): Promise<Backends> {
    return this.#get('/v1/backends')
  }

  /** The secret is in the answer, and only there. */
  createKey(options: {
    readonly name?: string
    readonly scopes?: readonly string[]
    readonly tenant?: string
    readonly e2b?: boolean
  }): Promise<CreatedKey> {
    return this.#transport.json({ method: 'POST', path: '/v1/keys', json: options })
  }

  keys(): Promise<Page<KeyInfo>> {
    return this.#get('/v1/keys')
  }

  async revokeKey(id: string): Promise<void> {
    await this.#transport.json({ method: 'DELETE', path: `/v1/keys/${encodeURIComponent(id)}` })
  }

  /** An address for Codex's `CODEX_EXEC_SERVER_URL`; it stands for this key. */
  execServer(): Promise<{ readonly path: string; readonly expires_at: string }> {
    return this.#transport.json({ method: 'POST', path: '/v1/exec-server' })
  }

  reload(): Promise<PolicyHash> {
    return this.#transport.json({ method: 'POST', path: '/v1/reload', json: {} })
  }

  #get<T>(path: string, query: Readonly<Record<string, string | number | undefined>> = {}): Promise<T> {
    return this.#transport.json({ method: 'GET', path, query, repeatable: true })
  }
}
