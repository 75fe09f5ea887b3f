/**
 * Compares the proxy with no proxy and with the peer's proxy, in one run and as ratios: standalone, and for a client
 * inside a real sandbox. Server, proxy and client are separate processes; every round measures each route once, so that
 * a busy moment affects all of them alike; the table shows medians.
 */
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { connect, createServer as createTcpServer } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { newerNode, run, sandboxRuntime, startProcess, within } from './bounded.mjs'
import { floor, goal, skipped } from './goals.mjs'

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
  /** The same after CONNECT, which costs the client a round trip: answers any head and checks nothing. */
  async connectPipe() {
    const target = Number(process.argv[3])
    return listening(
      createTcpServer((socket) => {
        socket.on('error', () => undefined).setNoDelay(true)
        socket.once('data', () => {
          socket.pause()
          const out = connect(target, '127.0.0.1', () => {
            socket.write('HTTP/1.1 200 Connection established\r\n\r\n')
            socket.pipe(out).pipe(socket)
          })
          out.on('error', () => socket.destroy()).setNoDelay(true)
        })
      }),
    )
  },
}

/** Starts a role, or another module of the benchmarks, as a process that sends its port. */
async function start(name, args = [], module = self, execPath = process.execPath) {
  const { first, stop } = await startProcess(module, [name, ...args], { execPath })
  return { port: first, stop }
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

const SIZES = { ROUNDS: String(rounds), REQUESTS: String(requests), BULK_MB: String(bulk >> 20) }
const outside = async (form, port, at) =>
  JSON.parse(await run(process.execPath, [self, 'client', form, port, at]))

/** A workspace that contains this file and what it imports, so that it can run as the client inside the sandbox. */
function workspace() {
  const home = mkdtempSync(join(tmpdir(), 'rf-bench-'))
  const dir = join(home, 'workspace')
  mkdirSync(dir)
  const client = join(dir, 'proxy.mjs')
  for (const name of ['proxy.mjs', 'goals.mjs', 'bounded.mjs'])
    copyFileSync(join(dirname(self), name), join(dir, name))
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

function peerSandbox(dist, at) {
  const { home, dir, argv } = workspace()
  const settings = join(home, 'srt.json')
  const [host] = at.split(':')
  const network = { allowedDomains: [host], deniedDomains: [] }
  const filesystem = { denyRead: [], allowWrite: [dir], denyWrite: [] }
  writeFileSync(settings, JSON.stringify({ network, filesystem }))
  const srt = [join(dist, 'cli.js'), '-s', settings]
  const client = async (form) => JSON.parse(await run(newerNode(), [...srt, ...argv(form, PROXY_PORT, at)]))
  return { client, stop: () => rmSync(home, { recursive: true }) }
}

/** Progress is shown on a terminal only; redirected output contains only the results. */
function progress(text) {
  if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${text}`)
}

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1]

/** The ways through the peer's proxy, standalone and from its sandbox; none if it is not installed or does not start. */
async function peerWays(at) {
  const dist = sandboxRuntime()
  const none = (reason) => {
    skipped('sandbox-runtime', reason)
    console.log(`skipped: sandbox-runtime: ${reason}`)
    return { ways: [], stop: () => undefined }
  }
  if (!dist) return none('not installed')
  try {
    const module = join(dirname(self), 'sandbox-runtime.mjs')
    const peer = await start('sandbox-runtime', ['proxy'], module, newerNode())
    const beside = peerSandbox(dist, at)
    const ways = [
      ['sandbox-runtime, absolute-form', () => outside('absolute', peer.port, at)],
      ['sandbox-runtime, CONNECT', () => outside('connect', peer.port, at)],
      ['sandbox-runtime sandbox, absolute', () => beside.client('absolute')],
      ['sandbox-runtime sandbox, CONNECT', () => beside.client('connect')],
    ]
    const stop = () => [peer, beside].forEach((one) => void one.stop())
    return { ways, stop }
  } catch (error) {
    return none(error.message)
  }
}

/** Measures each way once in every round, after a warm-up; one of a peer that fails or hangs is named and left out. */
async function measureAll(ways) {
  const results = new Map(ways.map(([name]) => [name, COLUMNS.map(() => [])]))
  for (let round = -1; round < rounds; round++)
    for (const [name, way] of ways.filter(([name]) => results.has(name))) {
      progress(`round ${round + 1} of ${rounds}: ${name}`)
      try {
        const values = await within(name, way())
        if (round >= 0) for (const [column, value] of values.entries()) results.get(name)[column].push(value)
      } catch (error) {
        if (!name.startsWith('sandbox-runtime')) throw error
        skipped(name, error.message)
        results.delete(name)
      }
    }
  progress('')
  return results
}

async function main() {
  const server = await start('server')
  const at = `localhost:${server.port}`
  const [ours, inside] = [await start('ours'), await ourSandbox(at)]
  const [pipe, connectPipe] = [await start('pipe', [server.port]), await start('connectPipe', [server.port])]
  const peer = await peerWays(at)
  const ways = [
    ['direct', () => outside('direct', server.port, at)],
    ['bare pipe in Node', () => outside('direct', pipe.port, at)],
    ['bare pipe in Node, CONNECT', () => outside('connect', connectPipe.port, at)],
    ['ringfence, absolute-form', () => outside('absolute', ours.port, at)],
    ['ringfence, CONNECT', () => outside('connect', ours.port, at)],
    ['ringfence, SOCKS5', () => outside('socks', ours.port, at)],
    ['ringfence sandbox, absolute-form', () => inside.client('absolute')],
    ['ringfence sandbox, CONNECT', () => inside.client('connect')],
    ['ringfence sandbox, SOCKS5', () => inside.client('socks')],
    ...peer.ways,
  ].filter(([name]) => !process.env.WAYS || new RegExp(process.env.WAYS).test(name))
  const results = await measureAll(ways)
  const medianOf = (name, column) => median(results.get(name)?.[column] ?? [])
  const slower = (name, column) => medianOf('direct', column) / medianOf(name, column)
  for (const [name, column] of [
    ['proxy from a sandbox: direct ÷ ours, new connections', 0],
    ['proxy from a sandbox: direct ÷ ours, bulk', COLUMNS.length - 1],
  ]) {
    goal(name, slower('ringfence sandbox, CONNECT', column))
    floor(name, slower('bare pipe in Node, CONNECT', column))
  }
  console.log(`${'1 KiB with a new connection per request; bulk over one'.padEnd(34)}`)
  console.log(`${''.padEnd(34)} ${COLUMNS.map((name) => `${name.padStart(12)}      ×`).join(' ')}`)
  for (const name of results.keys())
    console.log(
      `${name.padEnd(34)} ${COLUMNS.map((_, column) => `${medianOf(name, column).toFixed(0).padStart(12)} ${slower(name, column).toFixed(2).padStart(6)}`).join(' ')}`,
    )
  for (const one of [server, ours, pipe, connectPipe, peer, inside]) await one.stop()
  process.exit(0)
}

if (role === 'client') console.log(JSON.stringify(await measure(...process.argv.slice(3))))
else if (role !== undefined) process.send(await ROLES[role]())
else await main()
