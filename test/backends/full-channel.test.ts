import { readdirSync, readFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { makeTestHost, sleep, type TestHost, until } from './persistent-sandbox.ts'

/** More output than the channel between host and agent can buffer. */

let testHost: TestHost
beforeAll(() => {
  testHost = makeTestHost('channel')
})
afterAll(() => testHost.drop())

const readProc = (pid: string, file: string): string => {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'utf8')
  } catch {
    return ''
  }
}

const pidsWith = (marker: string): string[] =>
  readdirSync('/proc').filter(
    (pid) =>
      /^\d+$/.test(pid) && pid !== String(process.pid) && readProc(pid, 'cmdline').includes(`\0${marker}\0`),
  )

const parentOf = (pid: string): string => /^PPid:\t(\d+)/m.exec(readProc(pid, 'status'))?.[1] ?? '0'

/** PID 1 of the sandbox of a process, by its host PID. */
function agentOf(pid: string): number {
  for (let at = pid; at !== '0'; at = parentOf(at))
    if (/^NSpid:.*\t1$/m.test(readProc(at, 'status'))) return Number(at)
  throw new Error('no agent found')
}

/** Stops this thread, and so all reading from the channel. */
const block = (ms: number): void => {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)
}

test('output blocked by a full channel continues after the exit of another command empties the channel', async () => {
  await using sandbox = await testHost.open()
  // Together slightly more than the queue of the agent and the socket hold; later output does not fill them again.
  const filling = Array.from({ length: 6 }, () => sandbox.exec('sleep 0.5; head -c 250000 /dev/zero'))
  const late = sandbox.exec('sleep 0.9; head -c 200000 /dev/zero')
  const ends = sandbox.exec(['sleep', '1.712'])
  await until(() => pidsWith('1.712').length > 0)
  const agent = agentOf(pidsWith('1.712')[0] as string)
  block(1200)
  process.kill(agent, 'SIGSTOP')
  block(1500)
  // Now the agent learns of the exit of `sleep` before it learns that the channel is writable.
  await sleep(500)
  process.kill(agent, 'SIGCONT')
  await ends
  const first = await Promise.race([late, sleep(10_000)])
  expect(first?.stdout.length).toBe(200_000)
  await Promise.all(filling)
}, 40_000)
