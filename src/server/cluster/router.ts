import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Duplex } from 'node:stream'
import type { ClusterNode, NodeRow } from '../../cluster/node.ts'
import type { Owner, Owners } from '../../cluster/owners.ts'
import { nodeFor } from '../../cluster/rendezvous.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Metrics } from '../../supervisor/telemetry/metrics.ts'
import { problem } from '../problem.ts'
import type { CreateRouter } from './create-router.ts'
import { askPeer, forwardUpgrade, isForwarded, passAnswer, unreachable } from './forward.ts'
import { archiveIn, sendArchive } from './peer-archives.ts'
import { carryOut, orderIn, type PeerOrder } from './peer-takeover.ts'
import type { PeerConnections } from './peers.ts'
import { type Subject, subjectOf } from './request-owner.ts'

/** What the router is made of. */
export type RouterParts = {
  readonly node: ClusterNode
  readonly peers: PeerConnections
  readonly owners: Owners
  readonly creates: CreateRouter
  readonly isLive: (sandboxId: string) => boolean
  readonly volumeOwner: (headers: IncomingMessage['headers'], idOrName: string) => Promise<string | undefined>
  /** The file of an archive that this node has. */
  readonly archivePath: (name: string) => string | undefined
  /** What another node asks of this one. */
  readonly carryOut: (order: PeerOrder) => Promise<boolean>
  readonly metrics: Metrics
  readonly log: (line: string) => void
}

/** Answers a request on this node. */
export type Local = {
  readonly request: (request: IncomingMessage, response: ServerResponse) => void
  readonly upgrade: (request: IncomingMessage, socket: Duplex, head: Buffer) => void
  /** Answers a request whose body was read already. */
  readonly replay: (request: IncomingMessage, response: ServerResponse, body: Buffer) => Promise<Response>
}

/** The answer of a node that does not own what it was asked about. */
const MISDIRECTED = 421

/** Brings every request to the node that owns what it is about. */
export class ClusterRouter {
  readonly #parts: RouterParts

  constructor(parts: RouterParts) {
    this.#parts = parts
  }

  /** A request of a client. */
  async request(request: IncomingMessage, response: ServerResponse, local: Local): Promise<void> {
    try {
      const subject = subjectOf(request)
      if (subject?.kind === 'create') return await this.#parts.creates.route(request, response, local)
      const node = subject && (await this.#elsewhere(request, subject))
      if (!node) return local.request(request, response)
      await this.#forward(request, response, { subject, node }).catch((error: unknown) => {
        // The record says as much as the node would have said.
        if (!isLook(request) || response.headersSent) throw error
        local.request(request, response)
      })
    } catch (error) {
      await this.#refuse(response, error)
    }
  }

  /** A client that wants another protocol. */
  async upgrade(request: IncomingMessage, socket: Duplex, head: Buffer, local: Local): Promise<void> {
    socket.on('error', () => socket.destroy())
    try {
      const subject = subjectOf(request)
      const node = subject && (await this.#elsewhere(request, subject))
      if (!node) return local.upgrade(request, socket, head)
      this.#count('upgrade')
      await forwardUpgrade(request, socket, head, { ...this.#base, node })
    } catch (error) {
      this.#refuseUpgrade(socket, error)
    }
  }

  /** A request that another node forwarded. INVARIANT: it is answered here or refused, never forwarded again. */
  async fromPeer(request: IncomingMessage, response: ServerResponse, local: Local): Promise<void> {
    try {
      if (!isForwarded(request) && (await this.#obey(request, response))) return
      const subject = subjectOf(request)
      if (subject?.kind === 'sandbox' && (await this.#isMisdirected(subject.id)))
        return void response.writeHead(MISDIRECTED).end()
      local.request(request, response)
    } catch (error) {
      await this.#refuse(response, error)
    }
  }

  /** What a node itself asks for; false: it is something else. */
  async #obey(request: IncomingMessage, response: ServerResponse): Promise<boolean> {
    const archive = archiveIn(request)
    const order = orderIn(request)
    if (archive !== undefined) sendArchive(response, this.#parts.archivePath(archive))
    else if (order) await carryOut(request, response, order, this.#parts.carryOut)
    return archive !== undefined || order !== undefined
  }

  /** The same for another protocol. */
  async upgradeFromPeer(request: IncomingMessage, socket: Duplex, head: Buffer, local: Local): Promise<void> {
    try {
      const subject = subjectOf(request)
      if (subject?.kind === 'sandbox' && (await this.#isMisdirected(subject.id)))
        return void socket.end(
          `HTTP/1.1 ${MISDIRECTED} Misdirected\r\nconnection: close\r\ncontent-length: 0\r\n\r\n`,
        )
      local.upgrade(request, socket, head)
    } catch (error) {
      this.#refuseUpgrade(socket, error)
    }
  }

  async #isMisdirected(id: string): Promise<boolean> {
    if (this.#parts.isLive(id)) return false
    this.#parts.owners.forget(id)
    const owner = await this.#parts.owners.ofSandbox(id)
    return owner !== undefined && !owner.isEnded && owner.node !== this.#parts.node.id
  }

  get #base() {
    return { self: this.#parts.node.id, peers: this.#parts.peers }
  }

  /** The other node that answers a request; undefined: this one does. */
  async #elsewhere(request: IncomingMessage, subject: Subject): Promise<NodeRow | undefined> {
    if (subject.kind === 'sandbox' && this.#parts.isLive(subject.id)) return undefined
    if (subject.kind === 'caller') return this.#rendezvous(subject.name)
    const { node, owners } = this.#parts
    let owner = await this.#ownerOf(request, subject)
    if (owner && owner.node !== node.id && !(await node.findPeer(owner.node)) && subject.kind === 'sandbox') {
      // What was remembered is old: the sandbox may have ended or moved.
      owners.forget(subject.id)
      owner = await owners.ofSandbox(subject.id)
    }
    if (!owner || owner.node === node.id) return undefined
    // Of an ended sandbox only its changes that wait for review are still with its node.
    if (owner.isEnded && !/\/review(\/|$|\?)/.test(request.url ?? '')) return undefined
    const other = await node.findPeer(owner.node)
    if (other) return other
    if (isLook(request)) return undefined
    throw gone()
  }

  async #ownerOf({ headers }: IncomingMessage, subject: Subject): Promise<Owner | undefined> {
    const { owners, volumeOwner } = this.#parts
    if (subject.kind === 'sandbox') return owners.ofSandbox(subject.id)
    if (subject.kind === 'approval') return owners.ofApproval(subject.id)
    if (subject.kind === 'session') return { node: subject.node, isEnded: false }
    const node = subject.kind === 'volume' ? await volumeOwner(headers, subject.id) : undefined
    return node === undefined ? undefined : { node, isEnded: false }
  }

  /** The node that all requests of one caller go to, until the fleet changes; undefined: this one. */
  #rendezvous(name: string): NodeRow | undefined {
    const open = this.#parts.node.nodes.filter(
      ({ state, role, schedule }) => state === 'up' && role !== 'api' && schedule === 'open',
    )
    const best = nodeFor(name, open)
    return best?.id === this.#parts.node.id ? undefined : best
  }

  async #forward(
    request: IncomingMessage,
    response: ServerResponse,
    { subject, node }: { readonly subject: Subject; readonly node: NodeRow },
  ): Promise<void> {
    this.#count('request')
    const answer = await askPeer(request, { ...this.#base, node, response }).catch((error: unknown) =>
      this.#explain(subject, error),
    )
    if (answer.statusCode !== MISDIRECTED) return passAnswer(answer, response)
    answer.resume()
    if (subject.kind === 'sandbox') this.#parts.owners.forget(subject.id)
    const moved = hasNoBody(request) ? await this.#elsewhere(request, subject) : undefined
    if (!moved || moved.id === node.id) throw unreachable(node)
    passAnswer(
      await askPeer(request, { ...this.#base, node: moved, response, body: Buffer.alloc(0) }),
      response,
    )
  }

  /** A node that does not answer may be lost already: then its sandbox has ended, and the record says why. */
  async #explain(subject: Subject, error: unknown): Promise<never> {
    if (subject.kind !== 'sandbox') throw error
    const { owners } = this.#parts
    owners.forget(subject.id)
    const owner = await owners.ofSandbox(subject.id)
    if (!owner?.isEnded) throw error
    throw new SandboxError('wrong-state', `sandbox ${subject.id} has ended (${owner.reason ?? 'failed'})`)
  }

  #count(kind: string): void {
    this.#parts.metrics.count('ringfence_forwarded_total', 'Requests passed on to another node.', { kind })
  }

  #refuseUpgrade(socket: Duplex, error: unknown): void {
    const answer = problem(error, 'cluster', this.#parts.log)
    socket.end(`HTTP/1.1 ${answer.status} Refused\r\nconnection: close\r\ncontent-length: 0\r\n\r\n`)
  }

  async #refuse(response: ServerResponse, error: unknown): Promise<void> {
    if (response.headersSent) return void response.destroy()
    const answer = problem(error, 'cluster', this.#parts.log)
    response.writeHead(answer.status, Object.fromEntries(answer.headers))
    response.end(Buffer.from(await answer.arrayBuffer()))
  }
}

/** Reading the record needs no node. */
const isLook = ({ method, url = '' }: IncomingMessage): boolean =>
  method === 'GET' && /^(\/v1|\/v2)?\/sandboxes\/[^/]+(\/logs)?(\?|$)/.test(url)

const hasNoBody = ({ method, headers }: IncomingMessage): boolean =>
  (method === 'GET' || method === 'DELETE' || method === 'HEAD') &&
  headers['content-length'] === undefined &&
  headers['transfer-encoding'] === undefined

const gone = (): SandboxError =>
  new SandboxError('unreachable', 'the node of this sandbox does not run at the moment', {
    hint: 'repeat the request later; a paused sandbox is available again when its node is back',
    retryAfterSecs: 5,
  })
