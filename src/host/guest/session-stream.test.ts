import type { Duplex } from 'node:stream'
import { describe, expect, test } from 'vitest'
import { PROTOCOL_VERSION, STREAM_WINDOW, WINDOW } from './frames.ts'
import { Session } from './session.ts'
import { AgentSide, number32, settle } from './testkit/agent-side.ts'

/** Streams on a shared channel; the test plays the agent. */

const TUNNEL = 0x80000000

async function meet(
  onTunnel?: (stream: Duplex) => void,
): Promise<{ agent: AgentSide; session: Session; connect: () => Promise<{ stream: Duplex; id: number }> }> {
  const agent = new AgentSide()
  const session = new Session(agent.host, onTunnel)
  agent.say('R', 0, `Version:\t${PROTOCOL_VERSION}\n`)
  await session.ready
  const connect = async (): Promise<{ stream: Duplex; id: number }> => {
    const coming = session.connect(8080)
    await settle()
    const id = agent.of('T').at(-1)?.id as number
    agent.say('A', id)
    return { stream: await coming, id }
  }
  return { agent, session, connect }
}

const textOf = async (stream: Duplex): Promise<string> => {
  let text = ''
  for await (const chunk of stream) text += chunk
  return text
}

describe('a stream to a port of the sandbox', () => {
  test('transfers bytes both ways, half closed and closed', async () => {
    const { agent, connect } = await meet()
    const { stream, id } = await connect()
    expect([...(agent.of('T')[0]?.payload ?? [])]).toEqual([0x90, 0x1f])
    stream.end('request')
    agent.say('D', id, 'ans').say('D', id, 'wer').say('Q', id)
    expect(await textOf(stream)).toBe('answer')
    await settle()
    expect(agent.of('D').map(({ payload }) => payload.toString())).toEqual(['request'])
    expect(agent.of('Q')).toHaveLength(1)
    // Both sides have ended: the id is free.
    expect(stream.destroyed).toBe(true)
  })

  test('a refusal rejects with the agent’s message', async () => {
    const { agent, session } = await meet()
    const coming = session.connect(9)
    const told = expect(coming).rejects.toThrow('nothing listens on port 9')
    await settle()
    agent.say('F', agent.of('T')[0]?.id as number, 'nothing listens on port 9')
    await told
  })

  test('a write completes when the channel has copied its bytes, so that the buffer can be reused', async () => {
    const { agent, connect } = await meet()
    const { stream } = await connect()
    const memory = Buffer.alloc(200_000, 'a')
    await new Promise<void>((resolve) => stream.write(memory, () => resolve()))
    memory.fill('b')
    await settle()
    const sent = Buffer.concat(agent.of('D').map(({ payload }) => payload))
    expect(sent.equals(Buffer.alloc(200_000, 'a'))).toBe(true)
  })

  test('writing waits for credit and never passes the window', async () => {
    const { agent, connect } = await meet()
    const { stream, id } = await connect()
    let done = false
    stream.write(Buffer.alloc(STREAM_WINDOW * 2 + 5), () => {
      done = true
    })
    await settle()
    const sent = (): number => agent.of('D').reduce((sum, { payload }) => sum + payload.length, 0)
    expect(sent()).toBe(STREAM_WINDOW)
    agent.say('W', id, number32(0xffffffff))
    await settle()
    expect(sent()).toBe(STREAM_WINDOW * 2)
    expect(done).toBe(false)
    agent.say('W', id, number32(5))
    await settle()
    expect(done).toBe(true)
  })

  test('a reader that does not read grants no credit; one that does returns it', async () => {
    const { agent, connect } = await meet()
    const { stream, id } = await connect()
    for (let sent = 0; sent < WINDOW; sent += 32_768) agent.say('D', id, Buffer.alloc(32_768))
    await settle()
    const given = (): number => agent.of('W').reduce((sum, { payload }) => sum + payload.readUInt32LE(0), 0)
    const before = given()
    expect(before).toBeLessThan(WINDOW)
    stream.resume()
    await settle()
    expect(given()).toBe(WINDOW)
  })

  test.each([
    [
      'more data than the window allows',
      (agent: AgentSide, id: number) => {
        for (let sent = 0; sent <= WINDOW * 2; sent += 65_536) agent.say('D', id, Buffer.alloc(65_536))
      },
    ],
    [
      'data after the end',
      (agent: AgentSide, id: number) => agent.say('D', id, 'a').say('Q', id).say('D', id, 'b'),
    ],
    ['a repeated end', (agent: AgentSide, id: number) => agent.say('Q', id).say('Q', id).say('D', id, 'b')],
  ])('%s ends the stream and nothing else', async (_, attack) => {
    const { agent, session, connect } = await meet()
    const { stream, id } = await connect()
    attack(agent, id)
    await settle()
    expect(stream.destroyed).toBe(true)
    expect(session.start({ fields: ['argv', 'x'], onOutput: () => {} })).toBeDefined()
  })

  test('closed by the agent, closed by the host, lost with the channel', async () => {
    const { agent, connect } = await meet()
    const first = await connect()
    agent.say('U', first.id)
    await settle()
    expect(first.stream.destroyed).toBe(true)
    const second = await connect()
    second.stream.destroy()
    await settle()
    expect(agent.of('U')).toMatchObject([{ id: second.id }])
    const third = await connect()
    const errors: Error[] = []
    third.stream.on('error', (error) => errors.push(error))
    agent.die()
    await settle()
    expect(errors[0]?.message).toContain('the sandbox is gone')
  })

  test('data sent before the end is read, even if the agent closes at once', async () => {
    const { agent, connect } = await meet()
    const { stream, id } = await connect()
    agent.say('D', id, 'all of ').say('D', id, 'it').say('Q', id).say('U', id)
    await settle()
    const written = new Promise((resolve) => stream.write('into the void', resolve))
    expect(await textOf(stream)).toBe('all of it')
    expect(await written).toBeFalsy()
    await settle()
    // The writer must be told that the stream has ended.
    expect(stream.destroyed).toBe(true)
  })

  test('a writer that waits for credit is told when the stream ends', async () => {
    const { agent, connect } = await meet()
    const { stream, id } = await connect()
    stream.on('error', () => {})
    const told = new Promise((resolve) => stream.write(Buffer.alloc(STREAM_WINDOW * 2), resolve))
    await settle()
    agent.say('U', id)
    expect(await told).toBeInstanceOf(Error)
  })
})

describe('a stream from the sandbox to its proxy', () => {
  test('arrives with its first bytes and can be answered', async () => {
    const { agent } = await meet((stream) => {
      stream.on('data', (chunk: Buffer) => stream.end(`echo ${chunk}`))
    })
    agent.say('N', TUNNEL).say('D', TUNNEL, 'hi')
    await settle()
    expect(agent.of('D')[0]).toMatchObject({ id: TUNNEL, payload: Buffer.from('echo hi') })
  })

  test.each([
    ['if the host has no handler', undefined, TUNNEL],
    ['with an id reserved for the host', () => {}, 5],
  ])('is refused %s', async (_, taker, id) => {
    const { agent } = await meet(taker)
    agent.say('N', id)
    await settle()
    expect(agent.of('U')).toMatchObject([{ id }])
  })

  test('is refused if its id is in use, and above the limit', async () => {
    const taken: Duplex[] = []
    const { agent } = await meet((stream) => taken.push(stream))
    agent.say('N', TUNNEL).say('N', TUNNEL)
    for (let more = 1; more <= 5000; more++) agent.say('N', TUNNEL + more)
    await settle()
    expect(taken).toHaveLength(4096)
    expect(agent.of('U')).toHaveLength(5002 - 4096)
    for (const stream of taken.splice(0)) stream.destroy()
    agent.say('N', TUNNEL + 9000)
    await settle()
    expect(taken).toHaveLength(1)
  })

  test('a handler that fails ends its own sandbox', async () => {
    const { agent, session } = await meet(() => {
      throw new Error('no proxy')
    })
    agent.say('N', TUNNEL)
    expect(await session.ended).toContain('no proxy')
  })

  test('whose bytes nobody takes is closed if too many wait in all streams, and others go on', async () => {
    const streams: Duplex[] = []
    const { agent } = await meet((stream) => void streams.push(stream.on('error', () => {})))
    const fill = (id: number): void => {
      agent.say('N', id)
      for (let at = 0; at < 4; at++) agent.say('D', id, new Uint8Array(WINDOW / 4))
    }
    for (let at = 0; at < 300; at++) {
      fill(TUNNEL + at)
      await settle()
    }
    expect(streams.filter(({ destroyed }) => !destroyed).length).toBe(256)
    expect(agent.of('U').length).toBe(44)
    // What is read makes room for another one.
    streams[0]?.resume()
    await settle()
    fill(TUNNEL + 300)
    await settle()
    expect([streams[0]?.destroyed, streams.at(-1)?.destroyed]).toEqual([false, false])
    streams[1]?.destroy()
    await settle()
    fill(TUNNEL + 301)
    await settle()
    expect(streams.at(-1)?.destroyed).toBe(false)
  })

  test('an agent that opens streams and never reads is disconnected, with bounded memory', async () => {
    const { agent, session } = await meet()
    agent.deaf()
    const flood = Buffer.concat(
      Array.from({ length: 1000 }, (_, i) => Buffer.from([0x4e, i, i >> 8, 0, 0x80, 0, 0, 0, 0])),
    )
    const before = process.memoryUsage().rss
    for (let sent = 0; sent < 400; sent++) {
      agent.raw(flood)
      await settle(1)
    }
    expect(await session.ended).toBe('the guest agent does not read')
    expect(process.memoryUsage().rss - before).toBeLessThan(256 * 1024 * 1024)
  })
})
