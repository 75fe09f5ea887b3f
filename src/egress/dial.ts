import { lookup } from 'node:dns/promises'
import { connect, type LookupFunction, type OnReadOpts, type Socket } from 'node:net'
import { connect as connectTls } from 'node:tls'
import { SandboxError } from '../model/errors.ts'
import { isSamePeer } from '../policy/network/network.ts'
import type { CancelSignal } from './cancel.ts'

/** Resolves all addresses of a name. A failure may throw; it blocks like an empty result. */
export type Resolve = (host: string) => Promise<readonly string[]> | readonly string[]

/** The host's own resolver: every address, in the resolver's order. */
export const hostResolve: Resolve = async (host) =>
  (await lookup(host, { all: true, verbatim: true })).map(({ address }) => address)

/** A connection to make: the checked address, and the name that the server must prove. */
export type Dial = {
  readonly address: string
  readonly port: number
  /** The TLS server name; absent for plain TCP. */
  readonly tls?: { readonly host: string; readonly literal: boolean; readonly ca?: string | undefined }
  readonly until: CancelSignal
  /** How the plain socket is read; absent: as a stream. */
  readonly onread?: OnReadOpts | undefined
}

/** Opens a socket to exactly this address. Nothing is written to it before it is returned. */
export async function dial({ address, port, tls, until, onread }: Dial): Promise<Socket> {
  const tcp = connect({
    host: address,
    port,
    lookup: refuseLookup,
    autoSelectFamily: false,
    noDelay: true,
    ...(onread === undefined ? {} : { onread, allowHalfOpen: true }),
  })
  try {
    await opened(tcp, 'connect', until)
    // SECURITY: the peer address is read from the kernel before the first byte is sent.
    if (!isSamePeer(address, tcp.remoteAddress))
      throw new SandboxError('ssrf-blocked', 'the connection leads to another address than the judged one')
    if (tls === undefined) return tcp
    const secure = connectTls({
      socket: tcp,
      host: tls.host,
      // PLATFORM: TLS knows no server name for an address; the certificate is then checked against `host`.
      servername: tls.literal ? '' : tls.host,
      ALPNProtocols: ['http/1.1'],
      ...(tls.ca === undefined ? {} : { ca: tls.ca }),
    })
    await opened(secure, 'secureConnect', until)
    return secure
  } catch (error) {
    tcp.destroy()
    throw error
  }
}

// SECURITY: the address is a literal, so no lookup is needed; an unexpected lookup must fail.
const refuseLookup: LookupFunction = (host, _options, done) =>
  done(new SandboxError('ssrf-blocked', `\`${host}\` is looked up a second time`), '')

function opened(socket: Socket, event: 'connect' | 'secureConnect', until: CancelSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    let leave = (): void => undefined
    const onError = (error: Error): void => done(error)
    const onClose = (): void => done(new Error('the connection was closed'))
    const onOpen = (): void => done(undefined)
    const done = (error: unknown): void => {
      leave()
      socket.off(event, onOpen).off('error', onError).off('close', onClose)
      if (error === undefined) resolve()
      else {
        // A destroyed socket may still report an error that nobody waits for.
        socket.on('error', () => undefined).destroy()
        reject(error)
      }
    }
    socket.on(event, onOpen).on('error', onError).on('close', onClose)
    leave = until.listen(() => done(until.reason))
  })
}
