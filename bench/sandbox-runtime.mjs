/**
 * sandbox-runtime's library in a process of its own, because it needs a newer Node than Ringfence: `library SETTINGS` answers
 * each message with the time of one command in a sandbox; `proxy` starts its proxy and sends the port.
 */
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { sandboxRuntime } from './bounded.mjs'

const [, , , role, settings] = process.argv
const dist = sandboxRuntime()

const ended = (line, cwd) =>
  new Promise((resolve, reject) => {
    const child = spawn('/bin/sh', ['-c', line], { cwd, stdio: ['ignore', 'pipe', 'pipe'] })
    for (const stream of [child.stdout, child.stderr]) stream.resume()
    child.on('error', reject)
    child.on('close', (code) => (code === 0 ? resolve() : reject(new Error(`exited ${code}`))))
  })

async function library() {
  const { SandboxManager } = await import(join(dist, 'index.js'))
  await SandboxManager.initialize(JSON.parse(readFileSync(settings, 'utf8')))
  process.on('message', async ({ cwd }) => {
    const start = performance.now()
    try {
      await ended(await SandboxManager.wrapWithSandbox('true'), cwd)
      SandboxManager.cleanupAfterCommand?.()
      process.send({ ms: performance.now() - start })
    } catch (error) {
      process.send({ error: error.message })
    }
  })
  process.send({ ready: true })
}

async function proxy() {
  const { createHttpProxyServer } = await import(join(dist, 'sandbox', 'http-proxy.js'))
  const server = createHttpProxyServer({ filter: () => true })
  server.listen(0, '127.0.0.1', () => process.send(server.address().port))
}

if (role === 'library') await library()
else await proxy()
