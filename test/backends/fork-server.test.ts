import { execFile, spawn } from 'node:child_process'
import { readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs'
import { Socket } from 'node:net'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LateStream } from '../../src/host/broker/late-stream.ts'
import { startChannelProcess } from '../../src/host/process/channel-process.ts'
import { packageRoot } from '../conformance/world.ts'
import { countOf, FULL, makeTestHost, sleep, type TestHost, text, until } from './persistent-sandbox.ts'

/** The process that forks launchers for a program that opens more than one sandbox. */

const AGENT = join(packageRoot(), 'dist', 'guest', 'ringfence-agent')

let testHost: TestHost
beforeAll(async () => {
  testHost = makeTestHost('fork-server')
  // The first sandbox of a process is started without the fork server.
  await using first = await testHost.open()
  await first.exec(['true'])
})
afterAll(() => testHost.drop())

const parentOf = (pid: string): string | undefined => {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1')
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]
  } catch {
    return undefined
  }
}

const argumentsOf = (pid: string): string => {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'latin1')
  } catch {
    return ''
  }
}

const processes = (): string[] => readdirSync('/proc').filter((name) => /^\d+$/.test(name))

/** The fork servers of a process. */
const serversOf = (owner: number): string[] =>
  processes().filter((pid) => parentOf(pid) === String(owner) && argumentsOf(pid).endsWith('\0fork-server\0'))

const server = (): string => {
  const [one, ...others] = serversOf(process.pid)
  expect(others).toEqual([])
  return one as string
}

const childrenOf = (parent: string): string[] => processes().filter((pid) => parentOf(pid) === parent)

describe('sandboxes that the fork server starts', () => {
  test('are its children, named after our process, and are gone when they are closed', async () => {
    const sandboxes = await Promise.all(Array.from({ length: 5 }, () => testHost.open()))
    for (const sandbox of sandboxes) await sandbox.exec(['true'])
    const started = childrenOf(server())
    expect(started).toHaveLength(5)
    for (const pid of started)
      expect(argumentsOf(pid)).toMatch(new RegExp(`^ringfence-bwrap-\\d+-${process.pid}-\\d+\\0`))
    await Promise.all(sandboxes.map((sandbox) => sandbox.close()))
    expect(childrenOf(server())).toEqual([])
  })

  test('see no descriptor of ours, and nothing of our environment', async () => {
    process.env.FORK_SERVER_TEST = 'visible'
    await using sandbox = await testHost.open()
    const { stdout } = await sandbox.exec(['bash', '-c', 'ls /proc/self/fd; env'])
    expect(text(stdout)).toMatch(/^0\n1\n2\n3\n/)
    expect(text(stdout)).not.toMatch(/^4$|FORK_SERVER_TEST|NODE_CHANNEL|RINGFENCE_LAUNCH/m)
    delete process.env.FORK_SERVER_TEST
  })

  test('have control channels that our process reads without waiting', async () => {
    const O_NONBLOCK = 0o4000
    const flagsOf = (fd: string): number =>
      Number.parseInt(/flags:\s+(\d+)/.exec(readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8'))?.[1] ?? '', 8)
    const sockets = (): string[] =>
      readdirSync('/proc/self/fd').filter((fd) => {
        try {
          return readlinkSync(`/proc/self/fd/${fd}`).startsWith('socket:')
        } catch {
          return false
        }
      })
    const before = sockets()
    await using sandbox = await testHost.open()
    await sandbox.exec(['true'])
    const added = sockets().filter((fd) => !before.includes(fd))
    expect(added).not.toEqual([])
    for (const fd of added) expect(flagsOf(fd) & O_NONBLOCK).toBe(O_NONBLOCK)
  })

  test('have no blocked signal, and ignore only the one that the agent ignores', async () => {
    await using sandbox = await testHost.open()
    const { stdout } = await sandbox.exec(['grep', '-E', '^Sig(Blk|Ign)', '/proc/self/status'])
    // SIGIO: the agent ignores it wherever it runs.
    expect(text(stdout)).toBe('SigBlk:\t0000000000000000\nSigIgn:\t0000000010000000\n')
  })

  test('say why they could not be set up', async () => {
    const launch = {
      file: AGENT,
      args: ['launch'],
      env: { RINGFENCE_LAUNCH: '1', RINGFENCE_LAUNCH_0: 'nonsense' },
      control: true,
      isLauncher: true,
    }
    const { exited } = startChannelProcess(launch)
    expect(await exited).toMatchObject({ code: 125, said: expect.stringContaining('bad operation nonsense') })
  })
})

describe('when it is killed', () => {
  test('its sandboxes end, and the next one gets a new fork server', async () => {
    const sandbox = await testHost.open()
    await sandbox.exec(['true'])
    const running = sandbox.exec(['sleep', '4211'])
    expect(await until(() => countOf('sleep\x004211') === 1)).toBe(true)
    const before = server()
    process.kill(Number(before), 'SIGKILL')
    await expect(running).rejects.toThrow()
    expect(await until(() => countOf('sleep\x004211') === 0)).toBe(true)
    await sandbox.close()
    await using next = await testHost.open()
    expect((await next.exec(['true'])).outcome).toEqual({ kind: 'exited', code: 0 })
    expect(server()).not.toBe(before)
  })

  test('while sandboxes start, each of them starts or fails, and none waits for ever', async () => {
    let killed: readonly string[] = []
    for (let round = 0; round < (FULL ? 20 : 4); round++) {
      const starting = Array.from({ length: 12 }, async (_, index) => {
        await sleep(index * 5)
        const sandbox = await testHost.open()
        try {
          return await sandbox.exec(['true']).catch(() => 'ended')
        } finally {
          await sandbox.close()
        }
      })
      for (let kill = 0; kill < 3; kill++) {
        await sleep(15 + 7 * round)
        killed = serversOf(process.pid)
        for (const pid of killed) process.kill(Number(pid), 'SIGKILL')
      }
      await Promise.allSettled(starting)
    }
    // What starts before the exit is known fails, as above.
    expect(await until(() => !serversOf(process.pid).some((pid) => killed.includes(pid)))).toBe(true)
    await using next = await testHost.open()
    expect((await next.exec(['true'])).outcome).toEqual({ kind: 'exited', code: 0 })
  }, 60_000)
})

describe('a stream that is connected late', () => {
  test('closes when its connection is reset, which has no end', async () => {
    const stream = new LateStream()
    const socket = new Socket()
    stream.attach(socket, Buffer.from('heard'))
    socket.on('error', () => {})
    socket.destroy(new Error('reset'))
    const heard = await stream.toArray()
    expect(Buffer.concat(heard).toString()).toBe('heard')
    expect(stream.destroyed).toBe(true)
  })
})

/** A program that opens two sandboxes; the second is started by the fork server. */
const program = (last: string): string => `
  import { Sandbox } from ${JSON.stringify(join(packageRoot(), 'dist', 'index.js'))}
  const spec = { workspace: ${JSON.stringify(testHost.workspace)} }
  const options = ${JSON.stringify(testHost.options)}
  for (let round = 0; round < 2; round++) {
    const sandbox = await Sandbox.create(spec, options)
    await sandbox.exec(['true'])
    await sandbox.close()
  }
  ${last}
`

const write = (name: string, last: string): string => {
  const file = join(testHost.base, name)
  writeFileSync(file, program(last))
  return file
}

describe('the process that it works for', () => {
  test('exits by itself, and the fork server with it', async () => {
    const file = write('two.mjs', `console.log(process.pid)`)
    const { stdout } = await promisify(execFile)(process.execPath, [file])
    expect(await until(() => serversOf(Number(stdout)).length === 0)).toBe(true)
  })

  test('is kept alive by an open sandbox', async () => {
    const file = write(
      'open.mjs',
      `const open = await Sandbox.create(spec, options)
       const { stdout } = await open.exec(['sh', '-c', 'sleep 0.3; echo done'])
       console.log(stdout.trim())
       await open.close()`,
    )
    expect((await promisify(execFile)(process.execPath, [file])).stdout).toBe('done\n')
  })

  test('has no fork server of its worker threads, which would never reap it', async () => {
    const file = write('worker.mjs', '')
    const main = `
      const { Worker } = require('node:worker_threads')
      new Worker(${JSON.stringify(file)}).once('exit', (code) => {
        const ended = require('node:child_process').execFileSync('ps', ['-o', 'stat=', '--ppid', String(process.pid)])
        console.log(code, String(ended).includes('Z'))
      })`
    const { stdout } = await promisify(execFile)(process.execPath, ['-e', main])
    expect(stdout).toBe('0 false\n')
  })

  test('takes the fork server and every sandbox with it when it is killed', async () => {
    const file = write(
      'killed.mjs',
      `const open = await Sandbox.create(spec, options)
       console.log(process.pid)
       await open.exec(['sleep', '4212'])`,
    )
    const child = spawn(process.execPath, [file], { stdio: ['ignore', 'pipe', 'inherit'] })
    expect(await until(() => countOf('sleep\x004212') === 1)).toBe(true)
    const servers = serversOf(child.pid as number)
    expect(servers).toHaveLength(1)
    child.kill('SIGKILL')
    expect(await until(() => countOf('sleep\x004212') === 0)).toBe(true)
    expect(await until(() => argumentsOf(servers[0] as string) === '')).toBe(true)
  })
})
