import { connect, type LookupFunction, type OnReadOpts, type Socket } from 'node:net'
import { connect as connectTls } from 'node:tls'
import { SandboxError } from '../../model/errors.ts'
import { isSamePeer } from '../../policy/network/network.ts'
import { type CancelSignal, orCancelled } from '../cancel.ts'
import { hostResolve } from './names.ts'
import { connectThrough, type SocksUpstream } from './socks-upstream.ts'

/** A connection to make: the checked address, and the name that the server must prove. */
export type Dial = {
  readonly address: string
  readonly port: number
  /** The TLS server name; absent for plain TCP. */
  readonly tls?: { readonly host: string; readonly literal: boolean; readonly ca?: string | undefined }
  readonly until: CancelSignal
  /** The operator's proxy through which the connection goes; absent: directly. */
  readonly via?: SocksUpstream | undefined
  /** How the plain socket is read; absent: as a stream. */
  readonly onread?: OnReadOpts | undefined
}

/** Opens a socket to exactly this address. Nothing is written to it before it is returned. */
export async function dial({ address, port, tls, until, onread, via }: Dial): Promise<Socket> {
  const first = via ? { address: await upstreamAddress(via, until), port: via.port } : { address, port }
  const tcp = connect({
    host: first.address,
    port: first.port,
    lookup: refuseLookup,
    autoSelectFamily: false,
    noDelay: true,
    ...(onread === undefined ? {} : { onread, allowHalfOpen: true }),
  })
  try {
    await opened(tcp, 'connect', until)
    // SECURITY: the peer address is read from the kernel before the first byte is sent.
    if (!isSamePeer(first.address, tcp.remoteAddress))
      throw new SandboxError('ssrf-blocked', 'the connection leads to another address than the judged one')
    if (via) await orCancelled(connectThrough(tcp, via, { address, port }), until)
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

/** The operator named it, so that its address may be private. */
async function upstreamAddress({ host }: SocksUpstream, until: CancelSignal): Promise<string> {
  const [address] = await hostResolve(host, until)
  if (address === undefined) throw new SandboxError('fetch-failed', 'the upstream proxy has no address')
  return address
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
