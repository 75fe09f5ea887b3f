import type { IncomingMessage, ServerResponse } from 'node:http'
import type { ClusterNode, NodeRow } from '../../cluster/node.ts'
import { choose, describeRefusals, mayPass, type Need, type Refusal } from '../../cluster/placement.ts'
import type { Reservations } from '../../cluster/reservations.ts'
import { Admission } from '../../model/admission.ts'
import { SandboxError } from '../../model/errors.ts'
import { CollectedBytes } from '../../model/files/collected-bytes.ts'
import type { Principal } from '../../supervisor/access/keys.ts'
import type { Metrics } from '../../supervisor/telemetry/metrics.ts'
import { NO_ROOM } from '../problem.ts'
import { headersOf } from '../upgrade.ts'
import { needIn } from './create-need.ts'
import { askPeer, passAnswer } from './forward.ts'
import type { PeerConnections } from './peers.ts'
import type { Local } from './router.ts'

/** What finds nodes for creates. */
export type CreateRouterParts = {
  readonly node: ClusterNode
  readonly peers: PeerConnections
  readonly reservations: Reservations
  /** What this node has and uses now. */
  readonly facts: () => NodeRow['facts']
  readonly volumeOwner: (headers: IncomingMessage['headers'], idOrName: string) => Promise<string | undefined>
  /** The only node that has what a template needs; undefined: every node can get it. */
  readonly templateOwner: (
    headers: IncomingMessage['headers'],
    idOrName: string,
  ) => Promise<string | undefined>
  readonly principalOf: (headers: Headers) => Promise<Principal | undefined>
  /** How many creates may wait for room, and how long. */
  readonly waiting: number
  readonly waitMs: number
  readonly metrics: Metrics
}

/** What a create needs, and why it fits on one node only. */
type PinnedNeed = Need & { readonly pinned?: string }

/** As large as the body of a create may be. */
const BODY_BYTES = 1024 * 1024
/** How many creates look for room at a time; the others wait for their turn, fairly by caller. */
const LOOKING = 8
const LOOK_MS = 150

/** Finds a node for each create, and passes the request on to it. */
export class CreateRouter {
  readonly #parts: CreateRouterParts
  readonly #queue: Admission

  constructor(parts: CreateRouterParts) {
    this.#parts = parts
    this.#queue = new Admission('creates without room', { running: LOOKING, waiting: parts.waiting })
    parts.metrics.onRead(() =>
      parts.metrics.gauge(
        'ringfence_cluster_creates_waiting',
        'Creates that wait for room on any node.',
        {},
        this.#queue.waiting + this.#queue.running,
      ),
    )
  }

  async route(request: IncomingMessage, response: ServerResponse, local: Local): Promise<void> {
    if (this.#isAlone) return local.request(request, response)
    // SECURITY: nothing is read or looked up for callers without a key; this node refuses them.
    const who = await this.#parts.principalOf(headersOf(request))
    if (!who) return local.request(request, response)
    const body = await bodyOf(request)
    const need = await this.#needOf(request, body)
    const refused = await this.#place(request, response, { need, body, local })
    if (!refused) return
    const again = () => this.#place(request, response, { need, body, local })
    await this.#wait({ request, who, refused, need }, again)
  }

  /** Whether this node is the only one that runs sandboxes: then there is nothing to choose. */
  get #isAlone(): boolean {
    const { node } = this.#parts
    return (
      node.role !== 'api' &&
      node.nodes.every((one) => one.id === node.id || one.state !== 'up' || one.role === 'api')
    )
  }

  async #needOf({ headers }: IncomingMessage, body: Buffer): Promise<PinnedNeed> {
    const { reservations, volumeOwner } = this.#parts
    const { volumes, template, ...need } = needIn(body, reservations.needOf({}))
    const pins = await Promise.all([
      ...volumes.map(async (name) => ({
        what: `volume \`${name}\``,
        node: await volumeOwner(headers, name),
      })),
      ...(template === undefined
        ? []
        : [{ what: 'the image of the template', node: await this.#parts.templateOwner(headers, template) }]),
    ])
    const [first, ...rest] = pins.filter(({ node }) => node !== undefined)
    if (!first) return need
    const where = ({ what, node }: (typeof pins)[number]): string =>
      `${what.slice(0, 140)} is on node ${this.#nameOf(node)}`
    const other = rest.find(({ node }) => node !== first.node)
    if (other)
      throw new SandboxError('invalid-input', `${where(first)}, ${where(other)}`, {
        hint: 'use volumes of one node; volumes that one key creates are together until one of them moves',
      })
    const { node: asked } = need
    if (asked !== undefined && asked !== first.node && asked !== this.#nameOf(first.node))
      throw new SandboxError('invalid-input', `${where(first)}, and \`placement\` asks for another one`, {
        hint: 'leave `placement.node` out: a sandbox goes to the node of its volumes',
      })
    return { ...need, node: first.node, pinned: where(first) }
  }

  #nameOf(id: string | undefined): string | undefined {
    return this.#parts.node.nodes.find((one) => one.id === id)?.name ?? id
  }

  /** Tries the best nodes; returns why none took it, or nothing when the answer is on its way. */
  async #place(
    request: IncomingMessage,
    response: ServerResponse,
    { need, body, local }: { readonly need: Need; readonly body: Buffer; readonly local: Local },
  ): Promise<ReadonlyMap<Refusal, number> | undefined> {
    const { node } = this.#parts
    const choice = choose(this.#candidates, need)
    if ('refused' in choice) return choice.refused
    const refused = new Map<Refusal, number>()
    for (const one of choice.nodes) {
      const why =
        one.id === node.id
          ? await this.#here(request, response, { body, local })
          : await this.#there(request, response, { body, node: one })
      if (why === undefined) return undefined
      refused.set(why, (refused.get(why) ?? 0) + 1)
    }
    await node.refresh()
    return refused
  }

  /** The nodes as they said last; of this one as it is now. */
  get #candidates(): readonly NodeRow[] {
    const { node, facts } = this.#parts
    return node.nodes.map((one) => (one.id === node.id ? { ...one, facts: facts() } : one))
  }

  async #here(
    request: IncomingMessage,
    response: ServerResponse,
    { body, local }: { readonly body: Buffer; readonly local: Local },
  ): Promise<Refusal | undefined> {
    const answer = await local.replay(request, response, body)
    const why = answer.headers.get(NO_ROOM)
    if (why !== null) return why as Refusal
    response.writeHead(answer.status, Object.fromEntries(answer.headers))
    response.end(Buffer.from(await answer.arrayBuffer()))
    return undefined
  }

  async #there(
    request: IncomingMessage,
    response: ServerResponse,
    { body, node }: { readonly body: Buffer; readonly node: NodeRow },
  ): Promise<Refusal | undefined> {
    const { peers, metrics } = this.#parts
    const sent = { self: this.#parts.node.id, peers, node, body, response }
    const answer = await askPeer(request, sent).catch((error: unknown) => {
      if (isRefusedConnection(error)) return undefined
      throw error
    })
    if (!answer) return 'lost'
    const why = answer.headers[NO_ROOM]
    if (typeof why === 'string') {
      answer.resume()
      return why as Refusal
    }
    metrics.count('ringfence_forwarded_total', 'Requests passed on to another node.', { kind: 'create' })
    passAnswer(answer, response)
    return undefined
  }

  /** Tries again until there is room, in a queue that is fair by caller and bounded in length and time. */
  async #wait(
    {
      request,
      who,
      refused: first,
      need,
    }: {
      readonly request: IncomingMessage
      readonly who: Principal
      readonly refused: ReadonlyMap<Refusal, number>
      readonly need: PinnedNeed
    },
    again: () => Promise<ReadonlyMap<Refusal, number> | undefined>,
  ): Promise<void> {
    const until = performance.now() + this.#parts.waitMs
    let refused: ReadonlyMap<Refusal, number> | undefined = first
    const look = async (): Promise<void> => {
      while (refused && mayPass(refused) && performance.now() < until && !request.socket.destroyed) {
        await new Promise((resolve) => setTimeout(resolve, LOOK_MS))
        refused = await again()
      }
    }
    if (mayPass(first)) await this.#queue.run(look, who)
    if (refused) throw this.#noRoom(refused, need)
  }

  #noRoom(all: ReadonlyMap<Refusal, number>, { pinned }: PinnedNeed): SandboxError {
    // Of a sandbox that fits on one node only, that node's reason is the answer.
    const refused = pinned === undefined ? all : new Map([...all].filter(([why]) => why !== 'node'))
    for (const reason of refused.keys())
      this.#parts.metrics.count('ringfence_placement_refused_total', 'Creates without a node, by reason.', {
        reason,
      })
    // Its node can be removed while the create looks for it.
    const isRemoved = pinned !== undefined && refused.size === 0
    const because = pinned === undefined ? '' : `${pinned}: `
    const reasons = isRemoved ? 'that node does not run' : describeRefusals(refused)
    const message = `no node takes this sandbox: ${because}${reasons}`
    if (isRemoved || (pinned !== undefined && refused.has('lost')))
      return new SandboxError('unreachable', message, {
        hint: 'repeat the request: the node comes back, or what is on it is available elsewhere',
        retryAfterSecs: 5,
      })
    return mayPass(refused)
      ? new SandboxError('too-many-requests', message, {
          hint: 'end some sandboxes, ask for less, add a node, or try again later',
          retryAfterSecs: 5,
        })
      : new SandboxError('unsupported', message, { hint: 'see `ringfence node ls`' })
  }
}

/** Whether a node refused the connection, so that it cannot have begun with the request. */
const isRefusedConnection = (error: unknown): boolean =>
  ['ECONNREFUSED', 'EHOSTUNREACH', 'ENETUNREACH'].includes(
    String(((error as { cause?: unknown }).cause as { code?: unknown } | undefined)?.code),
  )

function bodyOf(request: IncomingMessage): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const body = new CollectedBytes(BODY_BYTES)
    request.on('data', (chunk: Buffer) => {
      if (body.size + chunk.length <= BODY_BYTES) body.add(chunk)
      else reject(new SandboxError('too-large', `the body is larger than ${BODY_BYTES} bytes`))
    })
    request.once('end', () => resolve(Buffer.from(body.all())))
    request.once('error', reject)
  })
}
