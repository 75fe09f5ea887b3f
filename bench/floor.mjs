/**
 * The least that any control plane in Node needs: a server without keys, policy, records or an agent, which starts plain
 * bubblewrap with the same mounts for each request and stores a request's body in a file. Measured beside ours, it shows
 * which part of a time is Ringfence's own.
 */
import { fork, spawn } from 'node:child_process'
import { createReadStream, createWriteStream, mkdirSync } from 'node:fs'
import { createServer } from 'node:http'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { fileURLToPath } from 'node:url'
import { PEER_MS } from './bounded.mjs'
import { rawBwrap } from './raw-bwrap.mjs'

const self = fileURLToPath(import.meta.url)

function ended(args) {
  return new Promise((resolve) => spawn('/usr/bin/bwrap', args, { stdio: 'ignore' }).on('close', resolve))
}

const ANSWERS = {
  '/create': (_, response) => response.end(),
  async '/run'(_, response, { args }) {
    response.statusCode = (await ended(args)) === 0 ? 200 : 500
    response.end()
  },
  async '/write'(request, response, { file }) {
    await pipeline(request, createWriteStream(file))
    response.end()
  },
  '/read': (_, response, { file }) => pipeline(createReadStream(file), response),
}

function serve(settings) {
  const server = createServer((request, response) => ANSWERS[request.url](request, response, settings))
  server.listen(0, '127.0.0.1', () => process.send(server.address().port))
}

/** Starts the server as a process of its own, as ours is; each request to run starts `command` in a new bubblewrap. */
async function startFloor(base, command) {
  const workspace = join(base, 'floor')
  mkdirSync(workspace, { recursive: true })
  const env = { PATH: process.env.PATH, HOME: base, RINGFENCE_HOME: join(base, 'floor-state') }
  const bwrap = await rawBwrap(workspace, { env, cwd: workspace })
  const settings = { args: [...bwrap, '--', ...command], file: join(workspace, 'large') }
  const child = fork(self, [JSON.stringify(settings)])
  const port = await new Promise((resolve) => child.once('message', resolve))
  const send = async (path, init) => {
    const response = await fetch(`http://127.0.0.1:${port}${path}`, {
      ...init,
      signal: AbortSignal.timeout(PEER_MS),
    })
    if (!response.ok) throw new Error(`the floor’s ${path} failed`)
    for await (const _ of response.body ?? []);
  }
  return { send, stop: () => child.kill('SIGKILL') }
}

/** Runs `work` with the ways to use such a server. */
export async function withFloor(base, command, work) {
  const { send, stop } = await startFloor(base, command)
  const first = async () => {
    await send('/create', { method: 'POST' })
    await send('/run', { method: 'POST' })
  }
  const write = (body) => send('/write', { method: 'PUT', body })
  const read = () => send('/read')
  try {
    await first()
    return await work({ first, write, read })
  } finally {
    stop()
  }
}

if (process.argv[1] === self) serve(JSON.parse(process.argv[2]))
