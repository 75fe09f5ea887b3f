import { readFileSync, statSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { createServer as createSecureServer, Server as SecureServer } from 'node:https'
import { type AddressInfo, isIP, type Socket } from 'node:net'
import { createSecureContext } from 'node:tls'
import { getRequestListener } from '@hono/node-server'
import { SandboxError } from '../model/errors.ts'
import { assertPrivateFile } from '../model/files/private-file.ts'
import { createApp, type Mount } from './app.ts'
import type { PeerListener } from './cluster/peers.ts'
import type { ClusterRouter, Local } from './cluster/router.ts'
import type { ServerParts } from './parts.ts'
import { headersOf, type UpgradeTaker, upgradeHandler } from './upgrade.ts'

/** A certificate chain and its key, as PEM. */
export type Tls = { readonly cert: Buffer; readonly key: Buffer }

/** Reads a certificate and its key; throws unless they can be used together. */
export function readTls(cert: string, key: string): Tls {
  try {
    const { mode, uid } = statSync(key)
    assertPrivateFile('the TLS key', { file: key, mode, uid, reader: process.geteuid?.() })
    const tls = { cert: readFileSync(cert), key: readFileSync(key) }
    createSecureContext(tls)
    return tls
  } catch (cause) {
    if (cause instanceof SandboxError) throw cause
    throw new SandboxError(
      'invalid-config',
      `the certificate \`${cert}\` cannot be used: ${(cause as Error).message}`,
      { hint: 'tls_cert and tls_key are PEM files that belong together', cause },
    )
  }
}

/** Where a server listens, and with which certificate. */
export type ListenOptions = {
  readonly host: string
  readonly port: number
  readonly tls?: Tls | undefined
  /** The operator knows that keys would cross the network in the clear. */
  readonly insecureBind?: boolean | undefined
  readonly version: string
  readonly mounts?: readonly Mount[]
  readonly upgrades?: readonly UpgradeTaker[]
  /** In a cluster: brings requests to the nodes that own what they are about. */
  readonly cluster?: ClusterListening | undefined
}

/** How a server listens that is one of several. */
type ClusterListening = {
  readonly router: ClusterRouter
  readonly peers: PeerListener
  readonly admits: (id: string, fingerprint: string) => Promise<boolean>
}

/** A server that listens. */
export type Listening = {
  readonly url: string
  readonly port: number
  /** Takes no new connections; idle ones are closed, busy ones finish. */
  readonly stop: () => void
  readonly close: () => Promise<void>
  /** Uses another certificate for new connections; open ones stay. */
  readonly useTls: (tls: Tls) => void
}

const HEADER_BYTES = 16 * 1024
const HEADERS_MS = 10_000
const CHECK_MS = 1000
const CONNECTIONS = 4096

const isLoopback = (host: string): boolean =>
  host === 'localhost' || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'))

/** Starts listening. */
export async function listen(parts: ServerParts, options: ListenOptions): Promise<Listening> {
  if (!isLoopback(options.host) && !options.tls && !options.insecureBind)
    throw new SandboxError('invalid-config', `refusing to serve keys in the clear on \`${options.host}\``, {
      hint: 'give --tls-cert and --tls-key, or --insecure-bind behind a proxy of your own',
    })
  const server = serverOf(parts, options)
  const sockets = new Set<Socket>()
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', (cause: NodeJS.ErrnoException) => reject(cannotListen(options, cause)))
    server.listen(options.port, options.host, resolve)
  })
  server.on('error', () => {})
  const { port } = server.address() as AddressInfo
  const host = options.host.includes(':') ? `[${options.host}]` : options.host
  return {
    url: `${options.tls ? 'https' : 'http'}://${host}:${port}`,
    port,
    useTls: (tls) => {
      if (server instanceof SecureServer) server.setSecureContext({ ...tls, minVersion: 'TLSv1.2' })
    },
    stop: () => {
      server.close()
      server.closeIdleConnections()
    },
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        for (const socket of sockets) socket.destroy()
      }),
  }
}

/** What this server answers itself. */
function localOf(parts: ServerParts, { version, mounts, upgrades, tls }: ListenOptions): Local {
  const app = createApp(parts, version, mounts)
  const listener = getRequestListener(app.fetch as Parameters<typeof getRequestListener>[0], {
    overrideGlobalObjects: false,
  })
  const upgrade = upgradeHandler(parts, upgrades)
  return {
    request: (request, response) => void listener(request, response),
    upgrade: (request, socket, head) => void upgrade(request, socket, head),
    replay: async (request, response, body) => {
      const url = `${tls ? 'https' : 'http'}://${request.headers.host ?? 'localhost'}${request.url}`
      const { method = 'POST' } = request
      return app.fetch(
        new Request(url, { method, headers: headersOf(request), body: new Uint8Array(body) }),
        {
          incoming: request,
          outgoing: response,
        },
      )
    },
  }
}

/** The same, where another node may be the one to answer. */
function routedOf(local: Local, cluster: ClusterListening | undefined): Pick<Local, 'request' | 'upgrade'> {
  if (!cluster) return local
  const { router, peers, admits } = cluster
  peers.serve({
    request: (request, response) => void router.fromPeer(request, response, local),
    upgrade: (request, socket, head) => void router.upgradeFromPeer(request, socket, head, local),
    admits,
  })
  return {
    request: (request, response) => void router.request(request, response, local),
    upgrade: (request, socket, head) => void router.upgrade(request, socket, head, local),
  }
}

function serverOf(parts: ServerParts, options: ListenOptions): Server {
  const { request: onRequest, upgrade } = routedOf(localOf(parts, options), options.cluster)
  // Slow or silent clients cost a socket and nothing else, and not for long. Bodies may take their time: files are large.
  const limits = {
    maxHeaderSize: HEADER_BYTES,
    headersTimeout: HEADERS_MS,
    requestTimeout: 0,
    connectionsCheckingInterval: CHECK_MS,
    keepAliveTimeout: 60_000,
    noDelay: true,
  }
  const server = options.tls
    ? createSecureServer({ ...limits, ...options.tls, minVersion: 'TLSv1.2' }, onRequest)
    : createServer(limits, onRequest)
  server.maxConnections = CONNECTIONS
  server.on('upgrade', upgrade)
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    const status =
      error.code === 'HPE_HEADER_OVERFLOW' ? '431 Request Header Fields Too Large' : '400 Bad Request'
    if (socket.writable) socket.end(`HTTP/1.1 ${status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n`)
    else socket.destroy()
  })
  return server
}

const cannotListen = ({ host, port }: ListenOptions, cause: NodeJS.ErrnoException): SandboxError =>
  new SandboxError('invalid-config', `cannot listen on ${host}:${port}: ${cause.code}`, {
    hint: cause.code === 'EADDRINUSE' ? 'choose another --port' : 'choose another --host or --port',
    cause,
  })
