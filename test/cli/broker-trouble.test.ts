import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { BrokerKit, type Ran, until } from './broker-kit.ts'

/** Output that cannot be written, a broker that hangs, and requests of unusual size: same result as Node, and never an `allow`. */

const FULL = process.env.RINGFENCE_FULL === '1'
const kit = new BrokerKit()
beforeAll(() => kit.start())
afterAll(() => kit.remove())

const CALL = JSON.stringify({
  session_id: 's',
  hook_event_name: 'PreToolUse',
  tool_name: 'Bash',
  tool_input: { command: 'git push' },
  cwd: kit.workspace,
})

/** Runs with standard output on a device that is always full. */
async function onFullDevice(args: readonly string[], env: Record<string, string>): Promise<Ran> {
  const full = openSync('/dev/full', 'w')
  const child = spawn(kit.front, args, {
    cwd: kit.workspace,
    env: { ...kit.env, ...env },
    stdio: ['pipe', full, 'pipe'],
  })
  closeSync(full)
  let stderr = ''
  child.stderr?.on('data', (chunk) => {
    stderr += chunk
  })
  child.stdin?.on('error', () => {})
  child.stdin?.end(CALL)
  const [code] = (await once(child, 'close')) as [number | null]
  return { code, stdout: '', stderr }
}

/** Runs with a standard output whose reader is closed. */
async function withoutReader(args: readonly string[], env: Record<string, string>): Promise<number | null> {
  const child = kit.spawn(args, env)
  child.stdout.destroy()
  child.stdin.on('error', () => {})
  child.stdin.end(CALL)
  const [code] = (await once(child, 'close')) as [number | null]
  return code
}

const WAYS = [{}, { RINGFENCE_BROKER: '0' }]

describe('if standard output cannot be written', () => {
  test.each<[string, readonly string[], number]>([
    ['a hook blocks', ['hook', 'claude-code'], 2],
    ['a check fails', ['check', 'command', 'true'], 1],
    ['a result fails', ['run', '--json', '--', 'true'], 1],
  ])('because the device is full, %s', async (_, args, code) => {
    const [byBroker, byNode] = await Promise.all(WAYS.map((env) => onFullDevice(args, env)))
    expect(byBroker).toEqual({ code, stdout: '', stderr: 'ringfence: cannot write to standard output\n' })
    expect(byBroker).toEqual(byNode)
  })

  test.each<[string, readonly string[], number]>([
    ['a hook blocks', ['hook', 'claude-code'], 2],
    ['a result ends like a command that was stopped by SIGPIPE', ['run', '--json', '--', 'true'], 141],
  ])('because the pipe is closed, %s', async (_, args, code) => {
    expect(await Promise.all(WAYS.map((env) => withoutReader(args, env)))).toEqual([code, code])
  })
})

describe('a broker that hangs', () => {
  const stopped = async <T>(work: () => Promise<T> | T): Promise<T> => {
    process.kill(kit.pid, 'SIGSTOP')
    try {
      return await work()
    } finally {
      process.kill(kit.pid, 'SIGCONT')
    }
  }

  test('before it has read a large request is replaced by Node', async () => {
    const words = Array.from({ length: 8 }, () => 'a'.repeat(100_000))
    const args = ['check', 'command', 'echo', ...words]
    const byNode = kit.run(args, { env: { RINGFENCE_BROKER: '0' } })
    expect(await stopped(() => kit.run(args))).toEqual(byNode)
  })

  test.runIf(FULL)('does not keep a second SIGINT from ending the command', { timeout: 30_000 }, async () => {
    const child = kit.spawn(['run', '--', 'sh', '-c', 'trap "" INT TERM; echo up; sleep 77'])
    await once(child.stdout, 'data')
    const code = await stopped(async () => {
      child.kill('SIGINT')
      await new Promise((resolve) => setTimeout(resolve, 200))
      child.kill('SIGINT')
      return (await once(child, 'close'))[0] as number
    })
    expect(code).toBe(125)
  })

  test.runIf(FULL)('while a hook sends input makes the hook block in time', { timeout: 60_000 }, async () => {
    const child = kit.spawn(['hook', 'claude-code'])
    child.stdin.on('error', () => {})
    child.stdin.write('{')
    // By then the broker has accepted the request.
    await new Promise((resolve) => setTimeout(resolve, 1000))
    const code = await stopped(async () => {
      child.stdin.write(' '.repeat(4_000_000))
      return (await once(child, 'close'))[0] as number
    })
    expect(code).toBe(2)
  })
})

describe('large requests and results', () => {
  test('a result larger than a frame is complete', () => {
    // Each byte becomes six characters of JSON.
    const args = ['run', '--json', '--output', '12000000', '--', 'head', '-c', '11500000', '/dev/zero']
    const { code, stdout } = kit.withoutNode(() => kit.run(args))
    expect([code, stdout.length > 64 * 1024 * 1024]).toEqual([0, true])
    expect((JSON.parse(stdout) as { stdout: string }).stdout.length).toBe(11_500_000)
  })

  test('20,000 arguments give the same result as Node', () => {
    const args = ['run', '--', 'echo', ...Array.from({ length: 20_000 }, () => 'a')]
    const byBroker = kit.withoutNode(() => kit.run(args))
    expect(byBroker).toEqual(kit.run(args, { env: { RINGFENCE_BROKER: '0' } }))
  })

  test('an environment entry without `=` is not a variable', () => {
    const script = `
import ctypes, os
env = [k + b'=' + v for k, v in os.environb.items()] + [b'A_NAME']
args = [b'${kit.front}', b'run', b'-e', b'A_NAME', b'--', b'env']
array = lambda items: (ctypes.c_char_p * (len(items) + 1))(*items, None)
ctypes.CDLL(None).execve(args[0], array(args), array(env))`
    const [byBroker, byNode] = WAYS.map((env) =>
      kit.run([], { env, before: ['/usr/bin/python3', '-c', script] }),
    )
    expect([byBroker?.code, byBroker]).toEqual([2, byNode])
  })
})

test.each(['SIGTERM', 'SIGINT'] as const)('%s ends a run whose output is not read', async (signal) => {
  const own = new BrokerKit()
  try {
    await own.start()
    const child = own.spawn(['run', '--idle', '60', '--', 'yes'])
    const ended = new Promise((resolve) => child.on('exit', resolve))
    await until('it has written', () => child.stdout.readableLength > 0)
    await new Promise((resolve) => setTimeout(resolve, 300))
    child.kill(signal)
    expect(await ended).toBe(signal === 'SIGTERM' ? 143 : 130)
    child.stdout.destroy()
  } finally {
    own.remove()
  }
})

test('what a command prints after a signal is complete for a slow reader', async () => {
  const own = new BrokerKit()
  try {
    await own.start()
    const script = `trap 'seq 60000; exit 5' TERM; echo ready; while :; do sleep 0.05; done`
    const child = own.spawn(['run', '--idle', '60', '-c', script])
    const ended = new Promise((resolve) => child.on('close', resolve))
    let text = ''
    let isSignaled = false
    child.stdout.on('data', (chunk) => {
      text += String(chunk)
      child.stdout.pause()
      setTimeout(() => child.stdout.resume(), 20)
      if (!isSignaled) isSignaled = child.kill('SIGTERM')
    })
    expect(await ended).toBe(5)
    expect(text.endsWith('\n60000\n')).toBe(true)
  } finally {
    own.remove()
  }
})

test('killing a front whose output is blocked leaves nothing behind in the broker', async () => {
  const own = new BrokerKit({ RINGFENCE_BROKER_IDLE: '0.5' })
  try {
    await own.start()
    const child = own.spawn(['run', '--idle', '60', '--', 'yes'])
    await until('it has written', () => child.stdout.readableLength > 0)
    await new Promise((resolve) => setTimeout(resolve, 300))
    child.kill('SIGKILL')
    // The broker exits when it has no request left.
    await until('the broker has ended', () => !own.isAlive)
  } finally {
    own.remove()
  }
})
