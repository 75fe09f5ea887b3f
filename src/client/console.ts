import { RingfenceClient } from './client.ts'
import type {
  ConsoleEvent,
  Doctor,
  EgressView,
  ExecView,
  Inspected,
  PolicyCheck,
  Session,
  SignedHead,
  SignInLink,
  SkillUsage,
  SkillView,
  Suggestion,
  TrailProof,
  UsageView,
  Verdict,
  Wall,
  Who,
} from './console-types.ts'
import { readEvents } from './sse.ts'
import { Transport } from './transport.ts'
import type { Page, TrailRecord } from './types.ts'

/** The header that carries the page's half of a session. */
const PAGE_HEADER = 'x-ringfence-console'

/** Signs in with the secret of a one-time link or with a key; the answer holds the page's half. */
export function signIn(url: string, by: { readonly link: string } | { readonly key: string }) {
  return new Transport({ url }).json<Session>({
    method: 'POST',
    path: '/v1/console/session',
    json: by,
  })
}

/** What the console's page needs beside the ordinary client; the browser sends the cookie by itself. */
export class ConsoleClient extends RingfenceClient {
  readonly #transport: Transport
  readonly page: string

  constructor(url: string, page: string) {
    const options = { url, headers: { [PAGE_HEADER]: page }, retries: 1 }
    super(options)
    this.#transport = new Transport(options)
    this.page = page
  }

  who(): Promise<Who> {
    return this.#get('/v1/console/session')
  }

  async signOut(): Promise<void> {
    await this.#transport.json({ method: 'DELETE', path: '/v1/console/session' })
  }

  newLink(keyId?: string): Promise<SignInLink> {
    const json = keyId === undefined ? {} : { key_id: keyId }
    return this.#transport.json({ method: 'POST', path: '/v1/console/links', json })
  }

  /** One connection of the stream; it ends when the server does. */
  async *stream(after: number | undefined, signal: AbortSignal): AsyncGenerator<ConsoleEvent, void> {
    const response = await this.#transport.send({
      method: 'GET',
      path: '/v1/console/events',
      query: { after },
      signal,
    })
    for await (const { event, data } of readEvents(response))
      yield { type: event, data: JSON.parse(data) } as ConsoleEvent
  }

  execs(id: string): Promise<Page<ExecView>> {
    return this.#get(`/v1/sandboxes/${encodeURIComponent(id)}/execs`)
  }

  wall(id: string): Promise<Wall> {
    return this.#get(`/v1/sandboxes/${encodeURIComponent(id)}/wall`)
  }

  /** CPU and memory from the start of a sandbox until now, or until it ended. */
  usage(id: string): Promise<Page<UsageView>> {
    return this.#get(`/v1/sandboxes/${encodeURIComponent(id)}/usage`)
  }

  egress(id: string): Promise<Page<EgressView>> {
    return this.#get(`/v1/sandboxes/${encodeURIComponent(id)}/egress`)
  }

  /** A request to a port inside; the answer is as the program there gave it. */
  port(id: string, port: number, path: string): Promise<Response> {
    return fetch(`${this.#transport.url}/v1/sandboxes/${encodeURIComponent(id)}/ports/${port}${path}`, {
      headers: { [PAGE_HEADER]: this.page },
      redirect: 'manual',
    })
  }

  tryCommand(command: string, workspace?: string, cwd?: string): Promise<Inspected> {
    return this.#post('/v1/policy/try', { command, workspace, cwd })
  }

  tryPath(path: string, op: string, workspace?: string): Promise<Verdict> {
    return this.#post('/v1/policy/try', { path, op, workspace })
  }

  tryUrl(url: string): Promise<Verdict> {
    return this.#post('/v1/policy/try', { url })
  }

  checkPolicy(text: string): Promise<PolicyCheck> {
    return this.#post('/v1/policy/check', { text })
  }

  async suggestions(): Promise<readonly Suggestion[]> {
    return (await this.#get<Page<Suggestion>>('/v1/policy/suggestions')).items
  }

  trail(query: Readonly<Record<string, string | number | undefined>>): Promise<Page<TrailRecord>> {
    return this.#get('/v1/audit', query)
  }

  trailHead(): Promise<SignedHead> {
    return this.#get('/v1/audit/head')
  }

  /** Canonical lines, as they were hashed. */
  async trailLines(after: number, limit: number): Promise<readonly string[]> {
    const query = { after: after < 0 ? undefined : after, limit }
    const response = await this.#transport.send({
      method: 'GET',
      path: '/v1/audit/lines',
      query,
      repeatable: true,
    })
    return (await response.text()).split('\n').filter((line) => line !== '')
  }

  async trailExport(): Promise<Blob> {
    return (await this.#transport.send({ method: 'GET', path: '/v1/audit/export' })).blob()
  }

  proof(seq: number): Promise<TrailProof> {
    return this.#get(`/v1/audit/proof/${seq}`)
  }

  doctor(): Promise<Doctor> {
    return this.#get('/v1/doctor')
  }

  async skills(): Promise<readonly SkillView[]> {
    return (await this.#get<Page<SkillView>>('/v1/skills')).items
  }

  skillUsage(): Promise<readonly SkillUsage[]> {
    return this.#get('/api/skills/usage')
  }

  #get<T>(path: string, query: Readonly<Record<string, string | number | undefined>> = {}): Promise<T> {
    return this.#transport.json({ method: 'GET', path, query, repeatable: true })
  }

  #post<T>(path: string, json: unknown): Promise<T> {
    return this.#transport.json({ method: 'POST', path, json, repeatable: true })
  }
}
