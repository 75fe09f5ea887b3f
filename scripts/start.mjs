/**
 * `npm start`: sets everything up and starts the server; prints its address, a key, and a first command to try.
 * Arguments are passed on to `ringfence serve`. Ctrl-C ends it and everything in it.
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
// The terminal sends Ctrl-C to both of us; the server drains and we wait for it.
for (const signal of ['SIGINT', 'SIGTERM'])
  process.on(signal, () => signal === 'SIGTERM' && server.kill(signal))
server.on('exit', (code) => {
  process.exitCode = code ?? 1
})

createInterface({ input: server.stdout }).once('line', (line) => {
  const { url, key, console: page } = JSON.parse(line)
  process.stdout.write(`
  ringfence is at  ${url}
  a key for you    ${key}
  the console      ${page}   (signs you in once)

  try it, in another terminal:

    export RINGFENCE_URL=${url} RINGFENCE_API_KEY=${key}
    alias ringfence='node ${ringfence}'
    id=$(ringfence sandbox create)
    ringfence sandbox exec $id -c 'echo "hello from $(hostname), $(ls /proc | grep -c "^[0-9]") processes in sight"; cat /etc/shadow'
    ringfence sandbox rm $id

  without a server:  ringfence run -- <your command>      what this host can do:  ringfence doctor
`)
})
