/**
 * Compares the proxy with no proxy and with the peer's proxy, in one run and as ratios: standalone, and for a client
 * inside a real sandbox. Server, proxy and client are separate processes; every round measures each route once, so that
 * a busy moment affects all of them alike; the table shows medians.
 */
import { execFile, fork } from 'node:child_process'
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { connect, createServer as createTcpServer } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { floor, goal } from './goals.mjs'

const here = dirname(fileURLToPath(import.meta.url))
const peerEntry = join(here, 'node_modules', '@anthropic-ai', 'sandbox-runtime', 'dist', 'sandbox')
const rounds = Number(process.env.ROUNDS ?? 5)
const requests = Number(process.env.REQUESTS ?? 1000)
const bulk = Number(process.env.BULK_MB ?? 256) * 1024 * 1024
const [, , role] = process.argv
const self = fileURLToPath(import.meta.url)
const PROXY_PORT = 3128

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
      allowHosts: ['localhost'],
      allowPrivate: ['localhost'],
      // One audit record per connection, as in production.
      admit: async () => undefined,
      onConnection: () => undefined,
    })
    return (await proxy.listen()).port
  },
  async peer() {
    const { createHttpProxyServer } = await import(join(peerEntry, 'http-proxy.js'))
    return listening(createHttpProxyServer({ filter: () => true }))
  },
  /** The minimum for any proxy written in Node: two sockets and `pipe`. */
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
  const child = fork(self, [name, ...args.map(String)], {
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  })
  return new Promise((resolve, reject) => {
    child.once('message', (port) => resolve({ port, stop: () => child.kill() }))
    child.once('exit', (code) => reject(new Error(`${name} ended with ${code}`)))
  })
}

/** Sends the request, after the proxy's handshake if there is one, and reads the response to its end. */
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

/** The forms of a request: the first bytes, which a proxy answers, and the request itself. */
const FORMS = {
  direct: (at) => (path) => ({ request: lines(path, at) }),
  absolute: (at) => (path) => ({ request: lines(`http://${at}${path}`, at) }),
  connect: (at) => (path) => ({
    hello: `CONNECT ${at} HTTP/1.1\r\nHost: ${at}\r\n${credentials()}\r\n`,
    request: lines(path, at),
  }),
  socks: (at) => {
    const [host, port] = at.split(':')
    const name = Buffer.from(host)
    const rest = Buffer.from([port >> 8, port & 255])
    const hello = Buffer.concat([Buffer.from([5, 1, 0, 5, 1, 0, 3, name.length]), name, rest])
    return (path) => ({ hello, request: lines(path, at) })
  },
}

const lines = (path, at) => `GET ${path} HTTP/1.1\r\nHost: ${at}\r\n${credentials()}Connection: close\r\n\r\n`

/** The peer's proxy requires credentials; a Ringfence proxy serves only its own sandbox. */
function credentials() {
  const { username, password } = new URL(process.env.HTTP_PROXY ?? 'http://none')
  if (!username) return ''
  const pair = Buffer.from(`${decodeURIComponent(username)}:${decodeURIComponent(password)}`)
  return `Proxy-Authorization: Basic ${pair.toString('base64')}\r\n`
}

const COLUMNS = ['req/s, c=1', 'req/s, c=16', 'MB/s']

async function measure(form, port, at) {
  const way = (path) => ({ port: Number(port), ...FORMS[form](at)(path) })
  await bulkRate(way)
  return [await requestRate(way, 1), await requestRate(way, 16), await bulkRate(way)]
}

const run = promisify(execFile)
const SIZES = { ROUNDS: String(rounds), REQUESTS: String(requests), BULK_MB: String(bulk >> 20) }
const outside = async (form, port, at) =>
  JSON.parse((await run(process.execPath, [self, 'client', form, port, at])).stdout)

/** A workspace that contains this file and what it imports, so that it can run as the client inside the sandbox. */
function workspace() {
  const home = mkdtempSync(join(tmpdir(), 'rf-bench-'))
  const dir = join(home, 'workspace')
  mkdirSync(dir)
  const client = join(dir, 'proxy.mjs')
  copyFileSync(self, client)
  copyFileSync(join(dirname(self), 'goals.mjs'), join(dir, 'goals.mjs'))
  return { home, dir, argv: (form, port, at) => [process.execPath, client, 'client', form, String(port), at] }
}

async function ourSandbox(at) {
  const { Sandbox } = await import('../dist/bench/library.js')
  const { home, dir, argv } = workspace()
  const config = join(home, 'ringfence.toml')
  writeFileSync(config, '[network]\nallow_private = ["localhost"]\n')
  const sandbox = await Sandbox.create(
    { workspace: dir, env: SIZES, network: { mode: 'fetch', allowHosts: [at] } },
    { config, env: { ...process.env, HOME: home, RINGFENCE_HOME: join(home, 'state') } },
  )
  const client = async (form) => {
    const { stdout, stderr } = await sandbox.exec(argv(form, PROXY_PORT, at))
    return JSON.parse(Buffer.from(stdout).toString() || Buffer.from(stderr).toString())
  }
  return { client, stop: () => sandbox.close().then(() => rmSync(home, { recursive: true })) }
}

function peerSandbox(at) {
  const { home, dir, argv } = workspace()
  const settings = join(home, 'srt.json')
  const [host] = at.split(':')
  const network = { allowedDomains: [host], deniedDomains: [] }
  const filesystem = { denyRead: [], allowWrite: [dir], denyWrite: [] }
  writeFileSync(settings, JSON.stringify({ network, filesystem }))
  const srt = join(here, 'node_modules', '.bin', 'srt')
  const client = async (form) =>
    JSON.parse((await run(srt, ['-s', settings, ...argv(form, PROXY_PORT, at)])).stdout)
  return { client, stop: () => rmSync(home, { recursive: true }) }
}

/** Progress is shown on a terminal only; redirected output contains only the results. */
function progress(text) {
  if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${text}`)
}

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1]

async function main() {
  const server = await start('server')
  const at = `localhost:${server.port}`
  const [ours, pipe, inside] = [await start('ours'), await start('pipe', server.port), await ourSandbox(at)]
  const hasPeer = existsSync(peerEntry)
  const peer = hasPeer ? await start('peer') : undefined
  const beside = hasPeer ? peerSandbox(at) : undefined
  if (!hasPeer) console.log('skipped: sandbox-runtime is not installed')
  const ways = [
    ['direct', () => outside('direct', server.port, at)],
    ['bare pipe in Node', () => outside('direct', pipe.port, at)],
    ['ringfence, absolute-form', () => outside('absolute', ours.port, at)],
    ['ringfence, CONNECT', () => outside('connect', ours.port, at)],
    ['ringfence, SOCKS5', () => outside('socks', ours.port, at)],
    ['ringfence sandbox, absolute-form', () => inside.client('absolute')],
    ['ringfence sandbox, CONNECT', () => inside.client('connect')],
    ['ringfence sandbox, SOCKS5', () => inside.client('socks')],
    ...(hasPeer
      ? [
          ['sandbox-runtime, absolute-form', () => outside('absolute', peer.port, at)],
          ['sandbox-runtime, CONNECT', () => outside('connect', peer.port, at)],
          ['sandbox-runtime sandbox, absolute', () => beside.client('absolute')],
          ['sandbox-runtime sandbox, CONNECT', () => beside.client('connect')],
        ]
      : []),
  ].filter(([name]) => !process.env.WAYS || new RegExp(process.env.WAYS).test(name))
  const results = ways.map(() => COLUMNS.map(() => []))
  // The first round is a warm-up and is not counted.
  for (let round = -1; round < rounds; round++)
    for (const [row, [name, way]] of ways.entries()) {
      progress(`round ${round + 1} of ${rounds}: ${name}`)
      for (const [column, value] of (await way()).entries()) if (round >= 0) results[row][column].push(value)
    }
  progress('')
  const base = results[0].map(median)
  const inSandbox = ways.findIndex(([name]) => name === 'ringfence sandbox, CONNECT')
  const slower = (column) => base[column] / median(results[inSandbox]?.[column] ?? [])
  goal('proxy from a sandbox: direct ÷ ours, new connections', slower(0))
  goal('proxy from a sandbox: direct ÷ ours, bulk', slower(COLUMNS.length - 1))
  const piped = results[ways.findIndex(([name]) => name === 'bare pipe in Node')] ?? []
  floor('proxy from a sandbox: direct ÷ ours, new connections', base[0] / median(piped[0] ?? []))
  floor('proxy from a sandbox: direct ÷ ours, bulk', base[2] / median(piped[2] ?? []))
  console.log(`${'1 KiB with a new connection per request; bulk over one'.padEnd(34)}`)
  console.log(`${''.padEnd(34)} ${COLUMNS.map((name) => `${name.padStart(12)}      ×`).join(' ')}`)
  for (const [row, [name]] of ways.entries())
    console.log(
      `${name.padEnd(34)} ${results[row].map((values, column) => `${median(values).toFixed(0).padStart(12)} ${(base[column] / median(values)).toFixed(2).padStart(6)}`).join(' ')}`,
    )
  for (const one of [server, ours, pipe, peer, inside, beside]) await one?.stop()
  process.exit(0)
}

if (role === 'client') console.log(JSON.stringify(await measure(...process.argv.slice(3))))
else if (role !== undefined) process.send(await ROLES[role]())
else await main()
