/**
 * `npm start`: installs and builds, starts the server, prints its URL, a key, and a command to try.
 * Arguments are passed on to `ringfence serve`. Ctrl-C stops the server and every sandbox.
 */
import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { root, setup } from './setup.mjs'

setup({ tests: false })

const ringfence = join(root, 'dist', 'cli', 'ringfence.cjs')
const server = spawn(
  process.execPath,
  [ringfence, 'serve', '--json', '--print-key', ...process.argv.slice(2)],
  {
    stdio: ['ignore', 'pipe', 'inherit'],
  },
)
// The terminal sends Ctrl-C to both processes; the server drains and this process waits for it.
for (const signal of ['SIGINT', 'SIGTERM'])
  process.on(signal, () => signal === 'SIGTERM' && server.kill(signal))
server.on('exit', (code) => {
  process.exitCode = code ?? 1
})

createInterface({ input: server.stdout }).once('line', (line) => {
  const { url, key, console: page } = JSON.parse(line)
  process.stdout.write(`
  server    ${url}
  API key   ${key}
  console   ${page}   (signs you in once)

  try it in another terminal:

    export RINGFENCE_URL=${url} RINGFENCE_API_KEY=${key}
    alias ringfence='node ${ringfence}'
    id=$(ringfence sandbox create)
    ringfence sandbox exec $id -c 'echo "hello from $(hostname), $(ls /proc | grep -c "^[0-9]") processes visible"'
    ringfence sandbox rm $id

  without a server:    ringfence run -- <command>
  available backends:  ringfence doctor
`)
})
