/**
 * The proxy beside no proxy and beside the peer's, in one run and as ratios. Server, proxy and client are processes of
 * their own; each round measures every way once, so that a busy moment hits all of them alike; medians count.
 * The peer is measured without the two relays that it has in a real sandbox, which is kind to it.
 */
import { fork } from 'node:child_process'
import { existsSync } from 'node:fs'
import { createServer } from 'node:http'
import { connect, createServer as createTcpServer } from 'node:net'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const here = dirname(fileURLToPath(import.meta.url))
const peerEntry = join(here, 'node_modules', '@anthropic-ai', 'sandbox-runtime', 'dist', 'sandbox')
const rounds = Number(process.env.ROUNDS ?? 7)
const requests = Number(process.env.REQUESTS ?? 1500)
const bulk = Number(process.env.BULK_MB ?? 256) * 1024 * 1024
const [, , role] = process.argv

const listening = (server) =>
  new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server.address().port)))

const ROLES = {
  async server() {
    const small = Buffer.alloc(1024, 'x')
    const block = Buffer.alloc(1 << 20)
    return listening(
      createServer((request, response) => {
        if (request.url !== '/bulk') return response.end(small)
        response.setHeader('content-length', bulk)
        let left = bulk
        const more = () => {
          while (left > 0) {
            left -= block.length
            if (!response.write(block)) return response.once('drain', more)
          }
          response.end()
        }
        more()
      }),
    )
  },
  async ours() {
    const { EgressProxy } = await import('../dist/bench/library.js')
    const proxy = new EgressProxy({
      allowHosts: ['target.example'],
      allowPrivate: ['127.0.0.1/32'],
      resolve: () => ['127.0.0.1'],
      // A record for each connection, as an owner writes it.
      admit: async () => undefined,
      onConnection: () => undefined,
    })
    return (await proxy.listen()).port
  },
  async peer() {
    const { createHttpProxyServer } = await import(join(peerEntry, 'http-proxy.js'))
    return listening(createHttpProxyServer({ filter: () => true }))
  },
  /** The least that any proxy written for Node has to do: two sockets and `pipe`. */
  async pipe() {
    const target = Number(process.argv[3])
    return listening(
      createTcpServer((socket) => {
        const out = connect(target, '127.0.0.1')
        for (const side of [socket, out]) side.on('error', () => undefined).setNoDelay(true)
        socket.pipe(out).pipe(socket)
      }),
    )
  },
}

function start(name, ...args) {
  const child = fork(fileURLToPath(import.meta.url), [name, ...args.map(String)], {
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  })
  return new Promise((resolve, reject) => {
    child.once('message', (port) => resolve({ port, stop: () => child.kill() }))
    child.once('exit', (code) => reject(new Error(`${name} ended with ${code}`)))
  })
}

/** Sends, answers the proxy's own handshake if there is one, and reads to the end. */
function fetchOnce({ port, hello, request }) {
  return new Promise((resolve, reject) => {
    let bytes = 0
    let greeted = hello === undefined
    const socket = connect({
      port,
      host: '127.0.0.1',
      noDelay: true,
      onread: {
        buffer: Buffer.allocUnsafe(1 << 18),
        callback: (size) => {
          if (greeted) bytes += size
          else {
            greeted = true
            socket.write(request)
          }
          return true
        },
      },
    })
    socket.on('error', reject).on('close', () => resolve(bytes))
    socket.write(hello ?? request)
  })
}

const seconds = async (work) => {
  const begin = process.hrtime.bigint()
  await work()
  return Number(process.hrtime.bigint() - begin) / 1e9
}

async function requestRate(way, concurrency) {
  let left = requests
  const worker = async () => {
    while (left-- > 0) if ((await fetchOnce(way('/'))) < 1024) throw new Error('a short answer')
  }
  return requests / (await seconds(() => Promise.all(Array.from({ length: concurrency }, worker))))
}

async function bulkRate(way) {
  let got = 0
  const took = await seconds(async () => {
    got = await fetchOnce(way('/bulk'))
  })
  if (got < bulk) throw new Error(`only ${got} bytes`)
  return bulk / took / 1e6
}

function waysOf(server, ours, pipe, peer) {
  const host = `target.example:${server}`
  const lines = (path, at) => `GET ${path} HTTP/1.1\r\nHost: ${at}\r\nConnection: close\r\n\r\n`
  const tunnel = (port, at) => (path) => ({
    port,
    hello: `CONNECT ${at} HTTP/1.1\r\nHost: ${at}\r\n\r\n`,
    request: lines(path, at),
  })
  const absolute = (port, at) => (path) => ({ port, request: lines(`http://${at}${path}`, at) })
  const name = Buffer.from('target.example')
  const socks = Buffer.concat([
    Buffer.from([5, 1, 0, 5, 1, 0, 3, name.length]),
    name,
    Buffer.from([server >> 8, server & 255]),
  ])
  const local = `127.0.0.1:${server}`
  return [
    ['direct', (path) => ({ port: server, request: lines(path, host) })],
    ['bare pipe in Node', (path) => ({ port: pipe, request: lines(path, host) })],
    ['ringfence, absolute-form', absolute(ours, host)],
    ['ringfence, CONNECT', tunnel(ours, host)],
    ['ringfence, SOCKS5', (path) => ({ port: ours, hello: socks, request: lines(path, host) })],
    ...(peer
      ? [
          ['sandbox-runtime, absolute-form', absolute(peer, local)],
          ['sandbox-runtime, CONNECT', tunnel(peer, local)],
        ]
      : []),
  ]
}

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1]

async function main() {
  const server = await start('server')
  const [ours, pipe] = [await start('ours'), await start('pipe', server.port)]
  const peer = existsSync(peerEntry) ? await start('peer') : undefined
  if (!peer) console.log('left out: sandbox-runtime is not installed')
  const ways = waysOf(server.port, ours.port, pipe.port, peer?.port)
  const columns = [
    ['req/s, c=1', (way) => requestRate(way, 1)],
    ['req/s, c=16', (way) => requestRate(way, 16)],
    ['MB/s', (way) => bulkRate(way)],
  ]
  const results = ways.map(() => columns.map(() => []))
  // One round to warm everything up does not count.
  for (let round = -1; round < rounds; round++)
    for (const [column, [, measure]] of columns.entries())
      for (const [row, [, way]] of ways.entries()) {
        const value = await measure(way)
        if (round >= 0) results[row][column].push(value)
      }
  const base = results[0].map(median)
  console.log(`${'new connection for each request, 1 KiB; bulk in one'.padEnd(34)}`)
  console.log(`${''.padEnd(34)} ${columns.map(([name]) => `${name.padStart(12)}      ×`).join(' ')}`)
  for (const [row, [name]] of ways.entries())
    console.log(
      `${name.padEnd(34)} ${results[row].map((values, column) => `${median(values).toFixed(0).padStart(12)} ${(base[column] / median(values)).toFixed(2).padStart(6)}`).join(' ')}`,
    )
  for (const one of [server, ours, pipe, peer]) one?.stop()
  process.exit(0)
}

if (role !== undefined) process.send(await ROLES[role]())
else await main()
