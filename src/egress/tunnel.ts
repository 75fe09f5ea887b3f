import { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { SandboxError } from '../model/errors.ts'
import { type Hello, HelloReader } from './client-hello.ts'
import type { EgressConnection, Upstream } from './connection.ts'
import type { Core } from './core.ts'
import { GrowingBuffer, type Source, write } from './source.ts'

/** Joins the two sides until both have ended. `client` has been told that it is connected. */
export async function tunnel(
  core: Core,
  client: Source,
  upstream: Upstream,
  connection: EgressConnection,
): Promise<void> {
  const { target } = connection.judged
  const abort = (): void => {
    client.stream.destroy()
    upstream.socket.destroy()
  }
  const leave = connection.until.listen(abort)
  try {
    // A TLS server never speaks first; other servers do.
    const held = target.port === 443
    const inward = held ? undefined : pump(upstream.source, client.stream, connection.countIn)
    inward?.catch(() => undefined)
    await judgeFirstFlight(core, client, connection)
    const outward = pump(client, upstream.socket, connection.countOut)
    await bothEnded(
      core,
      [inward ?? pump(upstream.source, client.stream, connection.countIn), outward],
      connection,
    )
    connection.close()
  } catch (error) {
    connection.close(error)
    throw error
  } finally {
    leave()
    abort()
  }
}

/** After one side has ended, the other side has limited time to end. */
async function bothEnded(
  core: Core,
  sides: readonly Promise<void>[],
  connection: EgressConnection,
): Promise<void> {
  await Promise.race(sides)
  const timer = setTimeout(
    () => connection.cut(new SandboxError('timeout', 'one side has ended and the other does not')),
    core.limits.halfOpenMs,
  )
  try {
    await Promise.all(sides)
  } finally {
    clearTimeout(timer)
  }
}

/** Forwards all bytes from one side to the other, then ends it. */
function pump(from: Source, to: Duplex, count: (bytes: number) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    to.once('close', () => (from.over ? resolve() : reject(lost())))
    from.flow(
      (chunk, release) => {
        count(chunk.length)
        write(from, to, chunk, release)
      },
      () => {
        if (from.failed) return reject(lost())
        if (isDoneWith(to)) resolve()
        else to.end(() => resolve())
      },
    )
  })
}

/** A socket that both sides have ended is closed next: the peer sees the same as after `end`, for one system call less. */
const isDoneWith = (to: Duplex): boolean =>
  to instanceof Socket && to.readableEnded && to.writableLength === 0

const lost = (): SandboxError => new SandboxError('fetch-failed', 'the connection broke off')

/**
 * SECURITY: the TLS server name must match the host that the client requested; otherwise an allowed host would
 * give access to every other host at the same address.
 */
export async function judgeFirstFlight(
  core: Core,
  client: Source,
  connection: EgressConnection,
): Promise<void> {
  const { headerMs, idleMs } = core.limits
  const late = (): void => connection.cut(new SandboxError('timeout', 'the client does not begin'))
  const timers = [setTimeout(late, connection.judged.target.port === 443 ? headerMs : idleMs)]
  const seen = new GrowingBuffer()
  const reader = new HelloReader()
  try {
    for (;;) {
      const chunk = await client.next()
      if (chunk === undefined) break
      // A client that has begun with TLS must go on.
      const isFirst = seen.length === 0
      const hello = reader.read(seen.add(chunk))
      if (hello.kind === 'more' && isFirst) timers.push(setTimeout(late, headerMs))
      if (hello.kind === 'more') continue
      judgeHello(core, connection, hello)
      break
    }
  } finally {
    for (const timer of timers) clearTimeout(timer)
  }
  client.unshift(seen.all())
}

function judgeHello(core: Core, connection: EgressConnection, hello: Hello): void {
  const { host, port, literal } = connection.judged.target
  const refuse = (why: string): void => {
    throw new SandboxError('ssrf-blocked', why)
  }
  if (hello.kind === 'bad') refuse('the start of TLS cannot be read')
  else if (hello.kind !== 'hello') {
    if (port === 443) refuse('only TLS goes to port 443')
  } else if (literal !== undefined) {
    if (hello.name !== undefined && !core.allowsName(hello.name, port))
      refuse(`TLS names \`${hello.name}\`, which is not allowed`)
    // By its name its answers would be read; by its address they would not.
    if (hello.name !== undefined && core.broker?.guards(hello.name))
      refuse(`TLS names \`${hello.name}\`, which holds a secret and is reached by its name alone`)
  } else if (hello.name === undefined) {
    if (port === 443) refuse('TLS names no server')
  } else if (hello.name !== host) refuse(`TLS names \`${hello.name}\` in a connection to \`${host}\``)
}
