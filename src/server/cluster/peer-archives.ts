import { createReadStream, statSync } from 'node:fs'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { request as httpsRequest } from 'node:https'
import type { NodeRow } from '../../cluster/node.ts'
import { SandboxError } from '../../model/errors.ts'
import { unreachable } from './forward.ts'
import type { PeerConnections } from './peers.ts'

/** Archives of snapshots and templates between nodes: one asks by name, the other sends the file. */

const PATH = /^\/peer\/archives\/([\w.-]{1,128})$/

/** The archive that a request of another node asks for; undefined if it asks for something else. */
export const archiveIn = ({ url, method }: IncomingMessage): string | undefined =>
  method === 'GET' ? PATH.exec(url ?? '')?.[1] : undefined

/** Sends a file to another node. */
export function sendArchive(response: ServerResponse, path: string | undefined): void {
  if (path === undefined) return void response.writeHead(404).end()
  response.writeHead(200, { 'content-length': statSync(path).size })
  createReadStream(path)
    .on('error', () => response.destroy())
    .pipe(response)
}

/** The bytes of an archive that another node has. */
export function fetchArchive(
  peers: PeerConnections,
  node: NodeRow,
  name: string,
): Promise<AsyncIterable<Uint8Array>> {
  return new Promise((resolve, reject) => {
    const outgoing = httpsRequest(peers.optionsTo(node, `/peer/archives/${name}`), (answer) => {
      if (answer.statusCode === 200) return resolve(answer)
      answer.resume()
      reject(
        new SandboxError(
          'launch-failed',
          `node ${node.name} does not have the archive \`${name}\` any more`,
          {
            hint: 'take the snapshot again, or build the template again',
          },
        ),
      )
    })
    peers.follow(node, outgoing)
    outgoing.on('error', (cause) => reject(unreachable(node, cause))).end()
  })
}
