import type { Duplex } from 'node:stream'
import { describe, expect, test, vi } from 'vitest'
import { INPUT_WINDOW, PROTOCOL_VERSION, WINDOW } from './frames.ts'
import type { GuestProcess, Pace } from './process.ts'
import { Session } from './session.ts'
import { AgentSide, number32, settle } from './testkit/agent-side.ts'

/** The host's side of the channel; the test plays the agent. */

const TUNNEL = 0x80000000
const HELLO = `Version:\t${PROTOCOL_VERSION}\nSeccomp:\t2\n`

function meet(onTunnel?: (stream: Duplex) => void): { agent: AgentSide; session: Session } {
  const agent = new AgentSide()
  return { agent, session: new Session(agent.host, onTunnel) }
}

type Output = { stdout: string; stderr: string }
async function started(
  onOutput?: (stream: 'stdout' | 'stderr', chunk: Uint8Array) => unknown,
  pace?: Pace,
): Promise<{ agent: AgentSide; session: Session; guest: GuestProcess; id: number; out: Output }> {
  const { agent, session } = meet()
  agent.say('R', 0, HELLO)
  await session.ready
  const out: Output = { stdout: '', stderr: '' }
  const take = (stream: 'stdout' | 'stderr', chunk: Uint8Array): void => {
    out[stream] += Buffer.from(chunk).toString()
  }
  const guest = session.start({ fields: ['argv', 'x'], onOutput: onOutput ?? take, ...(pace && { pace }) })
  await settle()
  const id = agent.of('C')[0]?.id as number
  agent.say('A', id, number32(77))
  await guest.started
  return { agent, session, guest, id, out }
}

describe('the greeting', () => {
  test('reports the isolation layers', async () => {
    const { agent, session } = meet()
    agent.say('R', 0, HELLO)
    expect((await session.ready).get('Seccomp')).toBe('2')
  })

  test.each(['1', '22', '', '2.0'])('another version (%j) is refused with what to do', async (version) => {
    const { agent, session } = meet()
    agent.say('R', 0, `Version:\t${version}\n`)
    await expect(session.ready).rejects.toMatchObject({ code: 'launch-failed' })
    expect(await session.ended).toContain('npm run setup')
  })

  test('an agent that reports an error, or just exits', async () => {
    const first = meet()
    first.agent.say('E', 0, 'no mounts here')
    await expect(first.session.ready).rejects.toThrow('no mounts here')
    const second = meet()
    second.agent.die()
    await expect(second.session.ready).rejects.toThrow('the sandbox ended')
  })
})

describe('a command', () => {
  test('starts with its fields, has a pid, prints output, exits', async () => {
    const { agent, guest, id, out } = await started()
    expect(agent.of('C')[0]?.payload.toString()).toBe('argv\0x\0')
    expect(guest.pid).toBe(77)
    agent.say('O', id, 'out').say('P', id, 'err').say('O', id, 'more').say('X', id, Uint8Array.of(0, 3))
    expect(await guest.ended).toEqual({
      exit: { signaled: false, code: 3 },
      limit: undefined,
      violations: [],
      lost: undefined,
      refused: undefined,
    })
    expect(out).toEqual({ stdout: 'outmore', stderr: 'err' })
  })

  test('reports violations and a limit, up to a maximum', async () => {
    const { agent, guest, id } = await started()
    for (let told = 0; told < 3000; told++) agent.say('V', id, `fs.write\0${told}`)
    agent.say('L', id, 'memory').say('X', id, Uint8Array.of(1, 9))
    const end = await guest.ended
    expect(end.limit).toBe('memory')
    expect(end.violations).toHaveLength(1024)
  })

  test('a refusal rejects the start and leaves nothing', async () => {
    const { agent, session } = meet()
    agent.say('R', 0, HELLO)
    await session.ready
    const guest = session.start({ fields: ['argv', 'x'], onOutput: () => {} })
    await settle()
    agent.say('F', agent.of('C')[0]?.id as number, 'too many commands at once')
    await expect(guest.started).rejects.toThrow('too many commands')
    expect(await guest.ended).toMatchObject({ exit: undefined, refused: 'too many commands at once' })
    await expect(guest.write(Buffer.from('x'))).rejects.toMatchObject({ code: 'wrong-state' })
  })

  test('output of a long result is throttled while other commands run; a stream is not', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout'] })
    try {
      const roomAfter = async (
        ms: number,
        { agent, id }: { agent: AgentSide; id: number },
      ): Promise<number> => {
        const before = agent.of('W').length
        for (let sent = 0; sent < WINDOW; sent += 65_536) agent.say('O', id, new Uint8Array(65_536))
        await settle()
        await vi.advanceTimersByTimeAsync(ms)
        await settle()
        return agent.of('W').length - before
      }
      const result = await started(() => {}, 'result')
      expect(await roomAfter(4, result), 'the first window').toBe(1)
      expect(await roomAfter(4, result), 'alone').toBe(1)
      const stream = await started(() => {}, 'stream')
      expect(await roomAfter(4, result), 'beside another').toBe(0)
      await vi.advanceTimersByTimeAsync(28)
      expect(await roomAfter(4, stream)).toBe(1)
      expect(await roomAfter(4, stream)).toBe(1)
      for (const { agent, id } of [result, stream]) agent.say('X', id, Uint8Array.of(0, 0))
      await Promise.all([result.guest.ended, stream.guest.ended])
    } finally {
      vi.useRealTimers()
    }
  })

  test('receives only frames with its own id, and none after the end', async () => {
    const { agent, guest, id, out } = await started()
    agent
      .say('O', id + 1, 'not mine')
      .say('O', TUNNEL + 5, 'nor this')
      .say('X', id + 1, Uint8Array.of(0, 9))
    agent.say('O', id, 'mine').say('X', id, Uint8Array.of(0, 0)).say('X', id, Uint8Array.of(0, 9))
    agent.say('O', id, 'late')
    expect((await guest.ended).exit?.code).toBe(0)
    await settle()
    expect(out.stdout).toBe('mine')
  })

  test('signals, terminal sizes, detach and kill reach the agent; none after the end', async () => {
    const { agent, guest, id } = await started()
    guest.signal('SIGINT')
    guest.resize(120, 40)
    guest.release()
    guest.kill()
    guest.endInput()
    await settle()
    expect(agent.of('S')[0]).toMatchObject({ id, payload: number32(2) })
    expect([...(agent.of('Z')[0]?.payload ?? [])]).toEqual([120, 0, 40, 0])
    expect(agent.of('G')).toHaveLength(1)
    expect(agent.of('K')).toHaveLength(1)
    expect(agent.of('I')[0]?.payload.length).toBe(0)
    agent.say('X', id, Uint8Array.of(1, 9))
    await guest.ended
    const before = agent.heard.length
    guest.signal('SIGTERM')
    guest.kill()
    guest.resize(1, 1)
    await settle()
    expect(agent.heard.length).toBe(before)
  })

  test('input waits for credit and never exceeds the window', async () => {
    const { agent, guest, id } = await started()
    const all = Buffer.alloc(INPUT_WINDOW * 3 + 17, 0x61)
    let over = false
    const writing = guest.write(all).then(() => {
      over = true
    })
    await settle()
    const sent = (): number => agent.of('I').reduce((sum, { payload }) => sum + payload.length, 0)
    expect(sent()).toBe(INPUT_WINDOW)
    // Excess credit does not widen the window.
    agent.say('W', id, number32(0xffffffff))
    await settle()
    expect(sent()).toBe(INPUT_WINDOW * 2)
    expect(over).toBe(false)
    for (let round = 0; round < 3; round++) agent.say('W', id, number32(INPUT_WINDOW))
    await writing
    expect(sent()).toBe(all.length)
  })

  test('a waiting writer is told when the command ends or the sandbox is lost', async () => {
    for (const finish of ['exit', 'die'] as const) {
      const { agent, guest, id } = await started()
      const writing = guest.write(Buffer.alloc(INPUT_WINDOW * 2))
      const told = expect(writing).rejects.toMatchObject({ code: 'wrong-state' })
      await settle()
      if (finish === 'exit') agent.say('X', id, Uint8Array.of(0, 0))
      else agent.die()
      await told
    }
  })

  test('a slow reader throttles the agent, and the exit waits for the reader', async () => {
    const held: (() => void)[] = []
    const { agent, guest, id } = await started(() => new Promise<void>((resolve) => held.push(resolve)))
    const chunk = Buffer.alloc(WINDOW / 4)
    for (let sent = 0; sent < 4; sent++) agent.say('O', id, chunk)
    agent.say('X', id, Uint8Array.of(0, 0))
    await settle()
    expect(agent.of('W')).toEqual([])
    let over = false
    void guest.ended.then(() => {
      over = true
    })
    await settle()
    expect(over).toBe(false)
    for (const release of held) release()
    await settle()
    expect(over).toBe(true)
  })

  test('credit is returned as output is consumed', async () => {
    const { agent, id } = await started()
    for (let sent = 0; sent < 64; sent++) {
      agent.say('O', id, Buffer.alloc(60_000))
      if (sent % 4 === 3) await settle()
    }
    const given = agent.of('W').reduce((sum, { payload }) => sum + payload.readUInt32LE(0), 0)
    expect(given).toBeGreaterThan(64 * 60_000 - WINDOW)
    expect(given).toBeLessThanOrEqual(64 * 60_000)
  })

  test.each([
    [
      'throws',
      () => {
        throw new Error('no')
      },
    ],
    ['rejects', () => Promise.reject(new Error('no'))],
  ])('a taker that %s ends the command and nothing else', async (_, taker) => {
    const { agent, session, guest, id } = await started(taker)
    agent.say('O', id, 'x')
    await settle()
    expect(agent.of('K')).toHaveLength(1)
    agent.say('X', id, Uint8Array.of(1, 9))
    await guest.ended
    expect(session.start({ fields: ['argv', 'y'], onOutput: () => {} })).toBeDefined()
  })

  test('output beyond the window ends the command', async () => {
    const { agent, guest, id } = await started(() => new Promise(() => {}))
    for (let sent = 0; sent < WINDOW; sent += 65_536) agent.say('O', id, Buffer.alloc(65_536))
    agent.say('O', id, 'x')
    expect((await guest.ended).lost).toContain('more output than the window allows')
  })

  test('a flood of empty frames is not buffered for a slow reader', async () => {
    let calls = 0
    const { agent, id } = await started(() => {
      calls++
      return new Promise(() => {})
    })
    for (let sent = 0; sent < 10_000; sent++) agent.say('O', id)
    await settle()
    expect(calls).toBe(0)
  })

  test('when the channel is lost, each command gets the reason, and no new one starts', async () => {
    const { agent, session, guest } = await started()
    agent.die()
    expect((await guest.ended).lost).toBe('the sandbox ended')
    expect(() => session.start({ fields: ['argv', 'x'], onOutput: () => {} })).toThrow('the sandbox is gone')
    await expect(session.connect(80)).rejects.toMatchObject({ code: 'wrong-state' })
  })
})
