import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { constants } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { PROTOCOL_VERSION } from '../../src/host/guest/frames.ts'
import { agentFrame, number32 } from '../../src/host/guest/testkit/agent-side.ts'
import {
  dropRig,
  makeRig,
  REPORTED,
  type Rig,
  reportsOf,
  sandboxOn,
  serve,
  whyNot,
} from './sanitized-agent.ts'

/** The agent's own code under the address and undefined-behaviour sanitizers: real work, then malformed messages of the host. */

const reason = whyNot()
const FULL = Boolean(process.env.RINGFENCE_FULL)
let rig: Rig

describe.skipIf(reason)(`the agent under sanitizers${reason ? ` (skipped: ${reason})` : ''}`, () => {
  beforeAll(() => {
    rig = makeRig()
  }, 180_000)
  afterAll(() => {
    if (rig) dropRig(rig)
  })

  const bytes = (size: number): Buffer => Buffer.from(Array.from({ length: size }, (_, i) => (i * 7) % 256))

  test('runs commands, input, terminals, signals and the guard', { timeout: 120_000 }, async () => {
    const { sandbox, served } = sandboxOn(rig)
    const text = async (script: string): Promise<string> =>
      Buffer.from((await sandbox.exec({ argv: ['bash', '-c', script] })).stdout).toString()
    expect(await text('echo $((6*7)); echo err >&2')).toBe('42\n')
    const input = bytes(700_000)
    const { stdout } = await sandbox.exec({ argv: ['cat'] }, { stdin: input })
    expect(Buffer.compare(stdout, input)).toBe(0)
    const many = await Promise.all(Array.from({ length: 30 }, (_, i) => text(`echo ${i}; echo ${i}`)))
    expect(many).toEqual(Array.from({ length: 30 }, (_, i) => `${i}\n${i}\n`))
    let seen = ''
    const shell = await sandbox.start(
      { argv: ['bash', '--norc', '-i'] },
      {
        stdin: true,
        terminal: { cols: 80, rows: 24 },
        output: (_, chunk) => {
          seen += Buffer.from(chunk)
        },
      },
    )
    shell.resize({ cols: 132, rows: 50 })
    await shell.write(Buffer.from('stty size\nexit\n'))
    await shell.result
    expect(seen).toContain('50 132')
    const sleeper = await sandbox.start({ argv: ['sleep', '60'] })
    sleeper.signal('SIGUSR1')
    expect((await sleeper.result).outcome).toEqual({ kind: 'signaled', signal: 'SIGUSR1' })
    const stuck = await sandbox.exec(
      { argv: ['bash', '-c', 'trap "" TERM; setsid sleep 60 & sleep 60'] },
      { limits: { wallMs: 100 } },
    )
    expect(stuck.outcome).toEqual({ kind: 'stopped', limit: 'wall' })
    const guarded = await sandbox.exec({
      argv: [
        'bash',
        '-c',
        "mkdir .git; mkdir -p a/b; echo x > a/b/.envrc; ln -s a l; mv a c; rm -rf c l; echo x > ok; touch -d @5 ok; chown $(id -u) ok; mkdir -p r/objects r/refs; echo x > r/HEAD; python3 -c \"import os,socket;os.setxattr('ok','user.a',b'1');os.removexattr('ok','user.a');socket.socket(socket.AF_UNIX).bind('s');os.open('.',os.O_TMPFILE|os.O_RDWR,384);os.open('/proc/1/comm',os.O_CREAT)\"",
      ],
    })
    expect(guarded.violations.map(({ guarantee }) => guarantee)).toContain('fs.protect')
    expect(await text('kill -9 $PPID; sleep 5')).toBe('')
    await expect(sandbox.exec({ argv: ['x'], cwd: '/nowhere' })).rejects.toThrow('cannot enter')
    expect(await text('exit 0; ')).toBe('')
    await sandbox.close()
    expect({ ...(await served.exited), reports: reportsOf(rig) }).toMatchObject({ said: '', reports: '' })
  })

  test('reads and writes files and archives', { timeout: 120_000 }, async () => {
    const { sandbox } = sandboxOn(rig)
    const at = (...names: string[]): string => join(rig.workspace, ...names)
    const { files } = sandbox
    await files.write(at('deep', 'er', 'f'), [bytes(300_000)])
    const read = async (source: AsyncIterable<Uint8Array>): Promise<Buffer> => {
      const parts: Uint8Array[] = []
      for await (const part of source) parts.push(part)
      return Buffer.concat(parts)
    }
    expect(await read(files.read(at('deep', 'er', 'f'), { offset: 5, length: 9 }))).toEqual(
      bytes(14).subarray(5),
    )
    expect((await files.list(rig.workspace, 3)).map(({ path }) => path)).toContain(at('deep', 'er', 'f'))
    await files.move(at('deep', 'er', 'f'), at('deep', 'g'))
    symlinkSync('g', at('deep', 'link'))
    mkdirSync(at('deep', 'n'.repeat(120), 'm'.repeat(120)), { recursive: true })
    writeFileSync(at('deep', 'n'.repeat(120), 'm'.repeat(120), 'long'), 'long')
    const tar = await read(files.pack(at('deep')))
    await files.unpack(at('copy'), [tar])
    expect((await files.stat(at('copy', 'link'))).target).toBe('g')
    const stop = new AbortController()
    const changes: string[] = []
    await files.watch(rig.workspace, {
      recursive: true,
      signal: stop.signal,
      onReady: () => writeFileSync(at('copy', 'new'), 'x'),
      onChange: ({ name }) => {
        changes.push(name)
        stop.abort()
      },
    })
    expect(changes).toContain('copy/new')
    // Malformed archives: every byte of the first blocks changed, and impossible sizes.
    const tries = FULL ? 1500 : 60
    for (let round = 0; round < tries; round++) {
      const bad = Buffer.from(tar.subarray(0, 8192))
      for (let flips = 0; flips < 1 + (round % 5); flips++)
        bad[(round * 131 + flips * 57) % 2048] = (round * 31 + flips) % 256
      await files.unpack(at(`bad`), [bad]).catch(() => {})
    }
    for (const record of [
      '9223372036854775807 path=x\n',
      '30 size=9223372036854775807\n',
      '20 size=-5\n',
      '1 \n',
      '0 x',
    ])
      await files.unpack(at('bad'), [paxOf(record)]).catch(() => {})
    await files.remove(at('copy'))
    await sandbox.close()
    expect(reportsOf(rig)).toBe('')
  })

  test('streams in both directions', { timeout: 60_000 }, async () => {
    const heard: string[] = []
    const { sandbox } = sandboxOn(rig, (stream) => {
      stream.on('data', (chunk: Buffer) => {
        heard.push(chunk.toString())
        stream.end('from the host')
      })
    })
    const out = await sandbox.exec({
      argv: ['bash', '-c', 'exec 3<>/dev/tcp/127.0.0.1/3128; echo to the host >&3; cat <&3'],
    })
    expect(Buffer.from(out.stdout).toString()).toBe('from the host')
    const server = await sandbox.start({
      argv: [
        'python3',
        '-c',
        'import socket;s=socket.create_server(("127.0.0.1",8000));\nwhile 1:\n c,_=s.accept()\n while 1:\n  b=c.recv(65536)\n  if not b: break\n  c.sendall(b)\n c.close()',
      ],
    })
    let stream = await sandbox.connect(8000).catch(() => undefined)
    for (let tries = 0; tries < 100 && !stream; tries++) {
      await new Promise((resolve) => setTimeout(resolve, 50))
      stream = await sandbox.connect(8000).catch(() => undefined)
    }
    const sent = bytes(1_000_000)
    stream?.end(sent)
    const back: Buffer[] = []
    for await (const chunk of stream ?? []) back.push(chunk as Buffer)
    expect(Buffer.compare(Buffer.concat(back), sent)).toBe(0)
    server.signal('SIGKILL')
    await server.result
    await expect(sandbox.connect(9)).rejects.toThrow('nothing listens')
    await sandbox.close()
    expect(reportsOf(rig)).toBe('')
  })

  test('rejects or exits on malformed messages of the host, without a memory error', {
    timeout: 1_200_000,
  }, async () => {
    const rounds = FULL ? 300 : 8
    let frames = 0
    for (let round = 1; round <= rounds; round++) {
      const { channel, child, exited } = serve(rig)
      await new Promise((resolve) => channel.once('data', resolve))
      channel.resume()
      const random = randomFrom(round)
      let over = false
      void exited.then(() => {
        over = true
      })
      for (let sent = 0; sent < 400 && !over; sent++, frames++) {
        channel.write(hostLie(random), () => {})
        if (sent % 16 === 0) await new Promise((resolve) => setTimeout(resolve, 2))
      }
      channel.destroy()
      const { code, signal, said } = await exited
      child.kill('SIGKILL')
      expect({ round, code, signal, said, reports: reportsOf(rig) }).toMatchObject({ said: '', reports: '' })
      expect(code).not.toBe(REPORTED)
      expect(['SIGSEGV', 'SIGABRT', 'SIGBUS', 'SIGILL']).not.toContain(signal)
    }
    // Most of the messages were received by an agent that was still running.
    expect(frames).toBeGreaterThan(rounds * 50)
  })
})

function randomFrom(seed: number): (below: number) => number {
  let state = (seed * 2654435761) >>> 0 || 1
  return (below) => {
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    return (state >>> 0) % below
  }
}

const FIELDS = [
  ['argv', 'cat', 'input'],
  ['argv', 'cat', 'input', 'terminal', '80', '24'],
  ['argv', 'sh', 'argv', '-c', 'argv', 'echo hi; sleep 0.05; echo there >&2'],
  ['argv', 'sleep', 'argv', '1', 'wait-for-start'],
  ['argv', 'list', 'argv', '/usr', 'argv', '2', 'builtin'],
  ['argv', 'unpack', 'argv', '/tmp/u', 'builtin', 'input'],
  ['argv', 'read', 'argv', '/proc/self/status', 'argv', '0', 'argv', '', 'builtin'],
  ['argv', 'x', 'env', 'A=b', 'rlimit', 'nofile', '40', 'cwd', '/tmp'],
]

function hostLie(random: (below: number) => number): Buffer {
  const pick = <T>(items: readonly T[]): T => items[random(items.length)] as T
  const id = random(20) ? 1 + random(6) : pick([0, 0x80000000, 0x80000001, random(0xffffffff)])
  const type = pick([...'CCCCIIIWWSKZGTQUX', ...(random(30) ? [] : ['D'])])
  const body = {
    C: () =>
      Buffer.from(
        pick(FIELDS)
          .map((field) => `${field}\0`)
          .join(''),
      ),
    I: () => Buffer.alloc(pick([0, 1, 512, 900])),
    D: () => Buffer.alloc(pick([0, 1, 512, 4000])),
    W: () => number32(pick([0, 1, 65_536, 0xffffffff])),
    S: () => number32(pick([0, 1, 2, 15, 18, 19, 64, 65, 0xffffffff])),
    Z: () => number32(random(0xffffffff)),
    T: () => Buffer.from([pick([0, 9, 0x38]), pick([0, 0x0c, 255])]),
  }[type]
  const bytes = agentFrame(type, id, body?.() ?? '')
  const damage = random(200)
  if (damage === 0) bytes[random(bytes.length)] = random(256)
  if (damage > 190 && bytes.length > 9) bytes[9 + random(bytes.length - 9)] = random(256)
  return sendsFault(bytes) ? agentFrame('S', id, number32(15)) : bytes
}

/**
 * Signals that the sanitizers report as faults of the program, also when another process sent them:
 * a command that has not started yet is still the agent's own code.
 */
const FAULTS = ['SIGILL', 'SIGTRAP', 'SIGABRT', 'SIGBUS', 'SIGFPE', 'SIGSEGV'].map(
  (name) => constants.signals[name as NodeJS.Signals],
)
const sendsFault = (frame: Buffer): boolean =>
  frame[0] === 'S'.charCodeAt(0) && frame.length >= 13 && FAULTS.includes(frame.readUInt32LE(9))

/** An archive of one extended header and an empty file. */
function paxOf(record: string): Buffer {
  const header = (type: string, size: number): Buffer => {
    const block = Buffer.alloc(512)
    block.write('name', 0)
    block.write('0000644\0', 100)
    block.write(`${size.toString(8).padStart(11, '0')}\0`, 124)
    block.write(type, 156)
    block.write('ustar\x0000', 257)
    return block
  }
  const body = Buffer.alloc(512)
  body.write(record)
  return Buffer.concat([header('x', record.length), body, header('0', 0), Buffer.alloc(1024)])
}

test('the test rig uses the protocol version of the host', () => expect(PROTOCOL_VERSION).toBe('10'))
