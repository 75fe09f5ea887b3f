import { spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { cli } from '../cli/program.ts'

/** A signal to `ringfence run` reaches the command as that signal, on every backend that passes signals on. */

const base = mkdtempSync(join(tmpdir(), 'rf-signals-'))
mkdirSync(join(base, 'work'))
afterAll(() => rmSync(base, { recursive: true, force: true }))

const WAITS = `for s in INT TERM HUP QUIT USR1 USR2; do trap "echo got $s; exit 7" $s; done; echo ready; while :; do sleep 0.05; done`

test.each(
  ['native', 'bubblewrap'].flatMap((backend) =>
    (['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2'] as const).map(
      (signal) => [backend, signal] as const,
    ),
  ),
)('%s: %s to `ringfence run` reaches the command', async (backend, signal) => {
  const child = spawn(...cli(['run', '--backend', backend, '--yes', '-c', WAITS]), {
    cwd: join(base, 'work'),
    env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: join(base, 'state') },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let said = ''
  child.stderr.on('data', (chunk) => {
    said += String(chunk)
  })
  child.stdout.on('data', (chunk) => {
    if (!said.includes('ready') && String(chunk).includes('ready')) child.kill(signal)
    said += String(chunk)
  })
  const code = await new Promise((resolve) => child.on('close', resolve))
  expect(said).toContain(`got ${signal.slice(3)}`)
  expect(code).toBe(7)
})

test('SIGTERM ends a run whose output is not read', async () => {
  const child = spawn(...cli(['run', '--idle', '60', '--', 'yes']), {
    cwd: join(base, 'work'),
    env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: join(base, 'state') },
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  // The first chunk shows that the command runs; after it, nothing is read.
  await new Promise((resolve) => child.stdout.once('data', resolve))
  child.stdout.pause()
  await new Promise((resolve) => setTimeout(resolve, 500))
  child.kill('SIGTERM')
  expect(await new Promise((resolve) => child.on('exit', resolve))).toBe(143)
  child.stdout.destroy()
})
