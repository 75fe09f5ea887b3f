import { existsSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, test } from 'vitest'
import { SandboxError } from '../../model/errors.ts'
import { startChannelProcess } from './channel-process.ts'
import { type RunIo, type RunResult, run } from './run.ts'

/** Real processes without an agent (the agent is tested in test/conformance). */
const ENV = { PATH: '/usr/bin:/bin', LANG: 'C' }
type Limits = Parameters<typeof run>[1]

const sh = (script: string, limits: Limits = {}, io: RunIo = {}): Promise<RunResult> =>
  run({ file: '/bin/sh', args: ['-c', script], env: ENV, control: false }, limits, io)

const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString('utf8')
const MINUTE = 60

/** Whether the process exists and is not a zombie. */
function alive(pid: string): boolean {
  const path = `/proc/${pid.trim()}/stat`
  return existsSync(path) && !/\) Z /.test(readFileSync(path, 'utf8'))
}

async function gone(pid: string): Promise<boolean> {
  for (let tries = 0; tries < 100 && alive(pid); tries++) await sleep(20)
  return !alive(pid)
}

describe('an ordinary end', () => {
  test.each<[string, string, RunResult['exit']]>([
    ['an exit code', 'exit 7', { code: 7, signal: null }],
    ['a signal', 'kill -KILL $$', { code: null, signal: 'SIGKILL' }],
    ['nothing at all', ':', { code: 0, signal: null }],
  ])('%s', async (_, script, exit) => {
    const result = await sh(script)
    expect(result).toMatchObject({ exit, stopped: undefined, truncated: false, frames: [] })
    expect(result.durationMs).toBeGreaterThan(0)
  })

  test('collects both streams, each in order', async () => {
    const result = await sh('for i in $(seq 500); do echo o$i; echo e$i >&2; done')
    const lines = (prefix: string): string =>
      Array.from({ length: 500 }, (_, index) => `${prefix}${index + 1}\n`).join('')
    expect(text(result.stdout)).toBe(lines('o'))
    expect(text(result.stderr)).toBe(lines('e'))
  })

  test('a listener gets each chunk, and nothing is collected', async () => {
    const pieces: string[] = []
    const result = await sh(
      'echo a; sleep 0.05; echo b >&2; sleep 0.05; echo c',
      {},
      {
        output: (stream, chunk) => pieces.push(`${stream} ${text(chunk)}`),
      },
    )
    expect(pieces).toEqual(['stdout a\n', 'stderr b\n', 'stdout c\n'])
    expect([result.stdout.length, result.stderr.length]).toEqual([0, 0])
  })

  test('the environment and the directory are exactly the given ones', async () => {
    const launch = { file: '/usr/bin/env', args: [], env: { ONLY: 'this' }, cwd: '/usr', control: false }
    expect(text((await run(launch, {})).stdout)).toBe('ONLY=this\n')
    expect(text((await run({ ...launch, file: '/bin/pwd' }, {})).stdout)).toBe('/usr\n')
  })
})

describe('input', () => {
  test('is empty by default', async () => {
    expect(text((await sh('wc -c')).stdout).trim()).toBe('0')
  })

  test('of any size is passed completely', async () => {
    const data = Buffer.alloc(8 * 1024 * 1024, 'abcdefgh\n')
    const result = await sh('cat', {}, { stdin: data })
    expect(Buffer.compare(Buffer.from(result.stdout), data)).toBe(0)
  })

  test('that is not read does no harm', async () => {
    const result = await sh('exec 0<&-; exit 3', {}, { stdin: Buffer.alloc(4 * 1024 * 1024) })
    expect(result.exit).toEqual({ code: 3, signal: null })
  })
})

describe('limits', () => {
  test.each([
    ['exactly the limit', 'printf aaaaaaaaaa', 10, 'aaaaaaaaaa', undefined],
    ['one byte above the limit', 'printf aaaaaaaaaab; sleep 60', 10, 'aaaaaaaaaa', 'output'],
    ['far above the limit', 'printf aaaaaa; printf bbbbbbbbbb >&2; sleep 60', 6, 'aaaaaa', 'output'],
  ])('output: %s', async (_, script, outputBytes, stdout, stopped) => {
    const result = await sh(script, { outputBytes })
    expect(result.stopped).toBe(stopped)
    expect(text(result.stdout) + text(result.stderr)).toBe(stdout)
    expect(result.truncated).toBe(stopped === 'output')
  })

  test('endless output is truncated while it is read', async () => {
    let seen = 0
    const result = await sh(
      'exec yes',
      { outputBytes: 100_000 },
      { output: (_, chunk) => (seen += chunk.length) },
    )
    expect(result).toMatchObject({ stopped: 'output', truncated: true })
    expect(seen).toBe(100_000)
  })

  test('output counts even if it is passed on', async () => {
    const result = await sh("printf '\\n\\n'; sleep 0.2", { outputBytes: 1 }, { output: 'inherit' })
    expect(result.stopped).toBe('output')
  })

  test('wall: a process that handles SIGTERM ends by itself', async () => {
    const result = await sh('trap "echo bye; exit 0" TERM; sleep 60 & wait', { wallMs: 700 })
    expect(result.stopped).toBe('wall')
    expect(text(result.stdout)).toBe('bye\n')
    expect(result.exit).toEqual({ code: 0, signal: null })
  })

  test('wall: a process that ignores it is killed, with all its children', async () => {
    const result = await sh('trap "" TERM; sleep 61 & echo $!; while :; do sleep 1; done', { wallMs: 700 })
    expect(result).toMatchObject({ stopped: 'wall', exit: { code: null, signal: 'SIGKILL' } })
    expect(await gone(text(result.stdout))).toBe(true)
  })

  test('idle: a silent process is ended', async () => {
    const result = await sh('echo a; sleep 60', { idleMs: 200 })
    expect(result.stopped).toBe('idle')
    expect(text(result.stdout)).toBe('a\n')
  })

  test('idle: occasional output is enough', async () => {
    const result = await sh('for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done', {
      idleMs: 1000,
      wallMs: MINUTE * 1000,
    })
    expect(result).toMatchObject({ stopped: undefined, exit: { code: 0 } })
  })

  test('the first reason is reported', async () => {
    const result = await sh('trap "yes" TERM; sleep 60 & wait', { wallMs: 600, outputBytes: 10 })
    expect(result.stopped).toBe('wall')
  })
})

describe('an abort', () => {
  test('ends a running process', async () => {
    const controller = new AbortController()
    const result = sh(
      'echo $$; sleep 60',
      {},
      { signal: controller.signal, output: () => controller.abort() },
    )
    expect((await result).stopped).toBe('cancelled')
  })

  test('before the start ends it at once', async () => {
    const result = await sh('sleep 60', {}, { signal: AbortSignal.abort() })
    expect(result.stopped).toBe('cancelled')
  })

  test('after the end changes nothing', async () => {
    const controller = new AbortController()
    const result = await sh('exit 4', {}, { signal: controller.signal })
    controller.abort()
    expect(result).toMatchObject({ stopped: undefined, exit: { code: 4 } })
  })
})

describe('commands that cannot be started', () => {
  const launch = { file: '/bin/true', args: [] as string[], env: ENV, control: false }
  test.each([
    ['no such program', { ...launch, file: '/nonexistent/program' }, 'ENOENT'],
    ['no program', { ...launch, file: '/etc/passwd' }, 'EACCES'],
    ['no such directory', { ...launch, cwd: '/nonexistent' }, 'ENOENT'],
    ['an argument too long for the kernel', { ...launch, args: ['a'.repeat(200_000)] }, 'E2BIG'],
    ['a NUL in an argument', { ...launch, args: ['a\0b'] }, 'ERR_INVALID_ARG_VALUE'],
  ])('%s', async (_, bad, code) => {
    const error = await run(bad, { wallMs: 5000, idleMs: 5000 }, { stdin: Buffer.from('x') }).catch(
      (thrown: unknown) => thrown,
    )
    expect(error).toBeInstanceOf(SandboxError)
    expect(error).toMatchObject({ code: 'launch-failed', cause: { code } })
  })
})

describe('nothing is left', () => {
  const descriptors = (): string[] =>
    readdirSync('/proc/self/fd').flatMap((fd) => {
      try {
        return [readlinkSync(`/proc/self/fd/${fd}`).replace(/\d+/g, 'n')]
      } catch {
        return []
      }
    })
  const timers = (): number => process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length

  async function settled(open: number): Promise<number> {
    for (let tries = 0; tries < 50 && descriptors().length > open; tries++) await sleep(20)
    return descriptors().length
  }

  test('no descriptor, timer or listener after 50 runs', async () => {
    const controller = new AbortController()
    await sh('true')
    const [open, ticking] = [descriptors().length, timers()]
    for (let count = 0; count < 50; count++) {
      const limits = { wallMs: MINUTE * 1000, idleMs: MINUTE * 1000, outputBytes: 10 }
      const script = ['echo hello', 'exit 1', 'yes', 'kill -9 $$', 'exec /nonexistent'][count % 5] as string
      await sh(script, limits, { stdin: Buffer.from('x'), signal: controller.signal })
    }
    expect(await settled(open)).toBeLessThanOrEqual(open)
    expect(timers()).toBeLessThanOrEqual(ticking)
  })

  test('nor when a process left the process group and holds the pipes', async () => {
    const place = mkdtempSync(join(tmpdir(), 'rf-spawn-'))
    await sh('true')
    const [open, ticking] = [descriptors().length, timers()]
    const result = await sh(
      `setsid sh -c 'echo $$ > ${place}/pid; sleep 62' & while ! [ -s ${place}/pid ]; do :; done; echo done`,
      { idleMs: 5000 },
    )
    const stray = readFileSync(join(place, 'pid'), 'utf8')
    try {
      expect(result).toMatchObject({ stopped: undefined, exit: { code: 0 } })
      expect(text(result.stdout)).toBe('done\n')
      expect(alive(stray)).toBe(true)
      expect(await settled(open)).toBeLessThanOrEqual(open)
      expect(timers()).toBeLessThanOrEqual(ticking)
    } finally {
      process.kill(-Number(stray), 'SIGKILL')
      rmSync(place, { recursive: true })
    }
  })
})

describe('a child that is to hand over its listening socket', () => {
  const LETTER = '{"cmd":"NODE_HANDLE","type":"net.Native","msg":"proxy"}'
  const child = (script: string) => ({ file: '/bin/sh', args: ['-c', script], env: ENV, control: true })
  const listening = (): number =>
    process.getActiveResourcesInfo().filter((kind) => kind === 'TCPServerWrap').length

  test('a message without the socket, as sent when descriptors are exhausted, is answered with a refusal', async () => {
    const before = listening()
    const asks = child(
      `printf '%s\\n' '${LETTER}' >&4; read answer <&4; case $answer in *_NACK*) exit 3; esac`,
    )
    expect(await startChannelProcess(asks, () => {}).exited).toMatchObject({ code: 3 })
    expect(listening()).toBe(before)
  })

  test('other messages do not start listening', async () => {
    const before = listening()
    const says = child(`printf '%s\\n' '"proxy"' >&4; exec sleep 5`)
    const companion = startChannelProcess(says, () => {})
    await expect(companion.exited).rejects.toMatchObject({ code: 'launch-failed' })
    companion.kill()
    expect(listening()).toBe(before)
  })
})
