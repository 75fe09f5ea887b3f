import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync, readlinkSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import { endOrphanProcesses, groupName } from './orphans.ts'

const space = /\d+/.exec(readlinkSync('/proc/self/ns/pid'))?.[0]
const startOf = (pid: number): string =>
  readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ')[19] as string

/** A process with the name of some owner's sandbox. */
const called = (name: string) => spawn('/bin/sleep', ['60'], { argv0: name, stdio: 'ignore' })

describe.runIf(process.platform === 'linux')('orphans of exited processes', () => {
  test('are killed by the owner in their name, and nothing else is', async () => {
    const own = `ringfence-bwrap-${space}-${process.pid}-${startOf(process.pid)}`
    const orphan = called(`ringfence-bwrap-${space}-${process.pid}-1`)
    const others = [
      called(own),
      called(`ringfence-bwrap-1-4194303-1`),
      called('ringfence-bwrap'),
      called('bwrap'),
    ]
    await new Promise((resolve) => setTimeout(resolve, 100))
    const ended = new Promise((resolve) => orphan.once('exit', (_, signal) => resolve(signal)))
    expect(endOrphanProcesses()).toBeGreaterThanOrEqual(1)
    expect(await ended).toBe('SIGKILL')
    expect(others.map(({ exitCode, signalCode }) => exitCode ?? signalCode)).toEqual([null, null, null, null])
    for (const other of others) other.kill('SIGKILL')
  })

  test('are killed when the leader of their group has exited, although their owner runs', async () => {
    const own = `ringfence-bwrap-${space}-${process.pid}-${startOf(process.pid)}`
    const shell = spawn('/bin/bash', ['-c', `(exec -a ${own} sleep 60) & echo $!; wait`], {
      detached: true,
      stdio: ['ignore', 'pipe', 'ignore'],
    })
    const [line] = (await once(shell.stdout, 'data')) as [Buffer]
    const orphan = Number(line)
    const isRunning = (): boolean => readFileSync(`/proc/${orphan}/cmdline`, 'utf8').startsWith(own)
    await expect.poll(isRunning).toBe(true)
    endOrphanProcesses()
    expect(isRunning()).toBe(true)
    shell.kill('SIGKILL')
    await once(shell, 'exit')
    expect(endOrphanProcesses()).toBe(1)
    await expect.poll(() => existsSync(`/proc/${orphan}/exe`)).toBe(false)
  })

  test('cgroup names contain this process', () => {
    expect(groupName()).toMatch(
      new RegExp(`^ringfence-${space}-${process.pid}-${startOf(process.pid)}-[0-9a-f]{16}$`),
    )
  })
})
