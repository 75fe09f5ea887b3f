import type { IncomingMessage, ServerResponse } from 'node:http'
import { request as httpsRequest } from 'node:https'
import type { NodeRow } from '../../cluster/node.ts'
import type { Refusal } from '../../cluster/placement.ts'
import { NoRoom } from '../../cluster/reservations.ts'
import { NO_ROOM } from '../problem.ts'
import type { PeerConnections } from './peers.ts'

/** Orders between nodes: take a sandbox over, keep a copy of an archive, take a volume. SECURITY: only a node of the cluster may send them. */

const TAKE = /^\/peer\/sandboxes\/(sb_[0-9a-f]{1,64})\/take$/
const COPY = /^\/peer\/copies\/([a-z]+_?[0-9a-z]{1,64})$/
const VOLUME = /^\/peer\/volumes\/(vol_[0-9a-f]{1,64})\/take$/
const BODY_BYTES = 4096

/** The sandbox as the sender knows it, and why it moves. */
export type TakeOrder = {
  readonly kind: 'take'
  readonly id: string
  readonly instance: string
  readonly epoch: number
  readonly reason: string
  /** The files that it moves with; absent: those of its last snapshot. */
  readonly snapshot?: string | undefined
}
/** The template or snapshot to copy. */
type CopyOrder = { readonly kind: 'copy'; readonly id: string; readonly tenant: string }
/** The volume as its node knows it, and the run of that node. */
type VolumeOrder = {
  readonly kind: 'volume'
  readonly id: string
  readonly instance: string
  readonly epoch: number
  readonly version: number
}
/** What another node asks of this one. */
export type PeerOrder = TakeOrder | CopyOrder | VolumeOrder

/** The order in a request of another node; undefined if it is something else. */
export function orderIn({ url = '', method }: IncomingMessage): Pick<PeerOrder, 'kind' | 'id'> | undefined {
  if (method !== 'POST') return undefined
  const take = TAKE.exec(url)?.[1]
  if (take !== undefined) return { kind: 'take', id: take }
  const volume = VOLUME.exec(url)?.[1]
  if (volume !== undefined) return { kind: 'volume', id: volume }
  const copy = COPY.exec(url)?.[1]
  return copy === undefined ? undefined : { kind: 'copy', id: copy }
}

/** Carries an order out and answers it. */
export async function carryOut(
  request: IncomingMessage,
  response: ServerResponse,
  order: Pick<PeerOrder, 'kind' | 'id'>,
  handler: (order: PeerOrder) => Promise<boolean>,
): Promise<void> {
  try {
    const isDone = await handler({ ...(await bodyOf(request)), ...order } as PeerOrder)
    response.writeHead(isDone ? 204 : 409).end()
  } catch (error) {
    const why: Refusal = error instanceof NoRoom ? error.refusal : 'failing'
    response.writeHead(503, { [NO_ROOM]: why }).end()
  }
}

async function bodyOf(request: IncomingMessage): Promise<object> {
  let text = ''
  for await (const chunk of request) {
    text += chunk
    if (text.length > BODY_BYTES) throw new Error('too large')
  }
  return JSON.parse(text) as object
}

/** How long a node may take to carry an order out; it may have to fetch an archive first. */
const ORDER_MS = 120_000

const PATHS: Readonly<Record<PeerOrder['kind'], (id: string) => string>> = {
  take: (id) => `/peer/sandboxes/${id}/take`,
  copy: (id) => `/peer/copies/${id}`,
  volume: (id) => `/peer/volumes/${id}/take`,
}

/** Sends an order to a node. */
export function sendOrder(
  peers: PeerConnections,
  node: NodeRow,
  { kind, id, ...body }: PeerOrder,
): Promise<'taken' | 'gone' | Refusal> {
  const path = PATHS[kind](id)
  return new Promise((resolve) => {
    const outgoing = httpsRequest(
      { ...peers.optionsTo(node, path), method: 'POST', timeout: ORDER_MS },
      (answer) => {
        answer.resume()
        const why = answer.headers[NO_ROOM]
        if (answer.statusCode === 204) resolve('taken')
        else if (answer.statusCode === 409) resolve('gone')
        else resolve(typeof why === 'string' ? (why as Refusal) : 'failing')
      },
    )
    peers.follow(node, outgoing)
    outgoing.on('timeout', () => outgoing.destroy())
    outgoing.on('error', () => resolve('lost'))
    outgoing.end(JSON.stringify(body))
  })
}
