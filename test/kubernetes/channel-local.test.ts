import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { type AddressInfo, connect as connectPlain, createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { connect as connectTls } from 'node:tls'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { ChannelAuthority, podHost } from '../../src/backends/kubernetes/authority.ts'
import { openChannel } from '../../src/host/net/pod-channel.ts'
import { packageRoot } from '../conformance/world.ts'
import { secrets } from './lab.ts'

/** Strangers at the end of the channel in a Pod: the real program, with the sanitizers of the compiler, without a cluster. */

const FULL = process.env.RINGFENCE_FULL === '1'
const canBuild = existsSync('/usr/include/mbedtls/ssl.h')
const POD = 'rf-here'

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  server.close()
  return port
}

describe.runIf(FULL && canBuild)('connections to the Pod channel', { timeout: 60_000 }, () => {
  const base = mkdtempSync(join(tmpdir(), 'rf-channel-'))
  const program = join(base, 'channel')
  let authority: ChannelAuthority
  let child: ChildProcess
  let port: number
  let said = ''
  const open: Socket[] = []

  beforeAll(async () => {
    const source = join(packageRoot(), 'guest', 'channel')
    const files = ['channel.c', 'fill.c', 'secure.c'].map((name) => join(source, name))
    const flags = ['-std=gnu11', '-D_GNU_SOURCE', '-g', '-fsanitize=address,undefined', `-I${source}`]
    execFileSync('gcc', [...flags, '-o', program, ...files, '-lmbedtls', '-lmbedx509', '-lmbedcrypto'])
    authority = await ChannelAuthority.of(secrets())
  })
  beforeEach(async () => {
    port = await freePort()
    said = ''
    const { certificate, key, authority: signer } = authority.forPod(POD, 60)
    const env = { RINGFENCE_CERTIFICATE: certificate, RINGFENCE_KEY: key, RINGFENCE_AUTHORITY: signer }
    child = spawn(program, [String(port), join(base, 'agent'), '60', '0'], {
      env,
      stdio: ['ignore', 'ignore', 'pipe'],
    })
    child.stderr?.on('data', (chunk) => {
      said += chunk
    })
    for (let tries = 0; tries < 200 && !(await isListening()); tries++) await sleep(25)
  })
  afterEach(() => {
    for (const socket of open.splice(0)) socket.destroy()
    child.kill('SIGKILL')
    expect(said).not.toMatch(/ERROR|runtime error/)
  })
  afterAll(() => rmSync(base, { recursive: true, force: true }))

  const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))
  const target = () => ({ pod: POD, host: podHost(POD), address: '127.0.0.1', port, timeoutMs: 3000 })
  const stranger = (): Socket => {
    const socket = connectPlain(port, '127.0.0.1').on('error', () => {})
    open.push(socket)
    return socket
  }
  async function isListening(): Promise<boolean> {
    const socket = stranger()
    const isOpen = await new Promise<boolean>((resolve) => {
      socket.once('connect', () => resolve(true)).once('close', () => resolve(false))
    })
    socket.destroy()
    return isOpen
  }
  const agent = (): Socket => {
    const socket = connectPlain(join(base, 'agent'))
    open.push(socket)
    return socket
  }
  const controlPlane = async (epoch = 1n) => {
    const socket = await openChannel({ ...target(), epoch, identity: authority.forControlPlane() })
    open.push(socket)
    return socket
  }

  test('that stay silent do not block the control plane', async () => {
    for (let n = 0; n < 40; n++) stranger()
    await sleep(200)
    agent()
    const socket = await controlPlane()
    expect(socket.destroyed).toBe(false)
  })

  test('with garbage, a wrong certificate or none are refused; the control plane is still served', async () => {
    const other = await ChannelAuthority.of(secrets())
    for (let n = 0; n < 30; n++) stranger().end(randomBytes(1 + n * 997))
    const as = (identity: ReturnType<ChannelAuthority['forPod']>) =>
      openChannel({ ...target(), epoch: 9n, identity })
    await expect(as(authority.forPod('rf-other', 60))).rejects.toThrow('cannot be reached')
    const forged = { ...other.forControlPlane(), authority: authority.certificate }
    await expect(as(forged)).rejects.toThrow('cannot be reached')
    const bare = connectTls({ host: '127.0.0.1', port, rejectUnauthorized: false }).on('error', () => {})
    bare.write('rfchan1\n12345678')
    await new Promise((resolve) => bare.once('close', resolve))
    agent()
    const socket = await controlPlane()
    expect(socket.destroyed).toBe(false)
  })

  test('with a malformed message of the control plane end only this sandbox', async () => {
    agent()
    const socket = await controlPlane()
    socket.write(Buffer.concat([Buffer.from('F\0'), Buffer.from([0xff, 0xff, 0xff, 0x7f])]))
    await once(child, 'close')
    expect(said).toContain('a piece is too long')
  })

  test('pass bytes both ways for one control plane, and refuse a second', async () => {
    const guest = agent()
    const socket = await controlPlane(5n)
    socket.write('G')
    const data = randomBytes(3_000_000)
    const echoed: Buffer[] = []
    guest.on('data', (chunk) => guest.write(chunk))
    socket.on('data', (chunk: Buffer) => echoed.push(chunk))
    socket.write(data)
    for (let tries = 0; tries < 400 && Buffer.concat(echoed).length < data.length; tries++) await sleep(25)
    expect(Buffer.concat(echoed).equals(data)).toBe(true)
    await expect(controlPlane(6n)).rejects.toMatchObject({ code: 'conflict' })
    expect(socket.destroyed).toBe(false)
  })
})
