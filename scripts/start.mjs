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

  try it in another terminal, in this directory:

    export RINGFENCE_URL=${url} RINGFENCE_API_KEY=${key}

    npx ringfence sandbox create --name hello
    npx ringfence sandbox exec hello -c 'echo "hello from $(hostname), $(ls /proc | grep -c "^[0-9]") processes visible"'
        prints: hello from sandbox, and a handful of processes instead of all of this machine's
    npx ringfence sandbox exec hello curl https://example.com
        fails: the sandbox has no network; a hint names the option that opens a host
    npx ringfence run -c 'echo ./x > .git/hooks/pre-commit'
        is refused before it runs, with exit code 126: the file would run outside of the sandbox later
    npx ringfence sandbox rm hello

  which backends work here:   npx ringfence doctor
  configuration file:         ~/.config/ringfence/ringfence.toml, or npm start -- --config FILE
      (a ringfence.toml in the working directory is never read: an agent could have written it)
`)
})
