import type { Duplex } from 'node:stream'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect, test } from 'vitest'
import { PROTOCOL_VERSION } from './frames.ts'
import type { GuestProcess } from './process.ts'
import { Session } from './session.ts'
import { AgentSide, agentFrame, turn } from './testkit/agent-side.ts'

/**
 * A malicious agent: frames of every type for every id, with wrong sizes and contents, split and joined at random. The host
 * may end that sandbox; it must not throw, hang or grow.
 */

const FRAMES = process.env.RINGFENCE_FULL ? 1_000_000 : 20_000
const TUNNEL = 0x80000000
const SEED = Number(process.env.RINGFENCE_SEED ?? 4)

/** A small seeded generator, so that a failure can be reproduced. */
function randomFrom(seed: number): (below: number) => number {
  let state = seed >>> 0 || 1
  return (below) => {
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    return (state >>> 0) % below
  }
}

type Random = (below: number) => number
const pick = <T>(random: Random, items: readonly T[]): T => items[random(items.length)] as T

const TYPES = [...'ERVLXAFOPNDQUW']
const PAYLOADS: Readonly<Record<string, (random: Random) => Uint8Array | string>> = {
  R: () => `Version:\t${PROTOCOL_VERSION}\n`,
  V: (random) => `${pick(random, ['fs.write', 'net.offline', 'nothing'])}\0${random(1e6)}`,
  L: (random) => pick(random, ['memory', 'pids', 'disk', 'wall']),
  X: (random) => Uint8Array.of(random(3), random(256)),
  A: (random) => (random(2) ? '' : Uint8Array.of(random(256), 0, 0, 0)),
  F: () => 'refused',
  W: (random) => Uint8Array.of(random(256), random(256), random(256), random(256)),
  O: (random) => Buffer.alloc(random(4) ? random(64) : random(65_536)),
  P: (random) => Buffer.alloc(random(64)),
  D: (random) => Buffer.alloc(random(4) ? random(64) : random(65_536)),
}

function lie(random: Random, ids: readonly number[]): Buffer {
  // An error ends the channel, so few are enough.
  const type = random(40) ? pick(random, TYPES.slice(1)) : 'E'
  const id = random(12) ? pick(random, ids) : random(0xffffffff)
  const bytes = agentFrame(type, id, PAYLOADS[type]?.(random) ?? '')
  const damage = random(60)
  if (damage === 0) bytes[random(bytes.length)] = random(256)
  if (damage === 1) return bytes.subarray(0, random(bytes.length))
  if (damage === 2) return Buffer.concat([bytes, Buffer.from([random(256)])])
  if (damage === 3) bytes.writeUInt32LE(random(0xffffffff), 5)
  return bytes
}

type Actors = { readonly guests: GuestProcess[]; readonly streams: Duplex[] }

/** Some read quickly, some slowly, some never; some write more than the window allows. */
async function cast(session: Session, agent: AgentSide, actors: Actors): Promise<readonly number[]> {
  const takers = [() => undefined, () => turn(), () => new Promise(() => {})]
  for (const onOutput of takers) {
    const guest = session.start({ fields: ['argv', 'x'], onOutput })
    guest.write(Buffer.alloc(100_000)).catch(() => {})
    actors.guests.push(guest)
  }
  for (let port = 1; port <= 3; port++)
    session.connect(port).then(
      (stream) => adopt(stream, actors),
      () => {},
    )
  await turn()
  await turn()
  const known = agent.heard.filter(({ type }) => type === 'C' || type === 'T').map(({ id }) => id)
  return [...known, 0, TUNNEL, TUNNEL + 1, TUNNEL + 2]
}

function adopt(stream: Duplex, { streams }: Actors): void {
  streams.push(stream)
  if (streams.length % 3 > 0) stream.resume()
  if (streams.length % 2) stream.write(Buffer.alloc(300_000), () => {})
}

async function attack(random: Random, left: number): Promise<number> {
  const agent = new AgentSide()
  const actors: Actors = { guests: [], streams: [] }
  const session = new Session(agent.host, (stream) => adopt(stream, actors))
  agent.say('R', 0, `Version:\t${PROTOCOL_VERSION}\n`)
  await session.ready
  const ids = await cast(session, agent, actors)
  let over = false
  void session.ended.then(() => {
    over = true
  })
  let sent = 0
  for (; sent < left && !over; sent += 8) {
    const bytes = Buffer.concat(Array.from({ length: 8 }, () => lie(random, ids)))
    const cut = random(bytes.length + 1)
    agent.raw(bytes.subarray(0, cut)).raw(bytes.subarray(cut))
    if (random(4) === 0) await turn()
    if (sent > 4000) break
  }
  session.close()
  await Promise.all(actors.guests.map((guest) => guest.ended))
  // A properly ended stream may still hold unread data.
  for (const stream of actors.streams) stream.resume()
  for (let turns = 0; turns < 4; turns++) await turn()
  expect(actors.streams.every((stream) => stream.destroyed)).toBe(true)
  return sent
}

test(`${FRAMES} malicious frames (seed ${SEED}): no throw, no hang, bounded memory`, {
  timeout: 1_200_000,
}, async () => {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  const random = randomFrom(SEED)
  const failures: unknown[] = []
  const note = (error: unknown): void => void failures.push(error)
  process.on('unhandledRejection', note)
  collect()
  const used = (): number => process.memoryUsage().heapUsed + process.memoryUsage().arrayBuffers
  const before = used()
  let sessions = 0
  for (let sent = 0; sent < FRAMES; sessions++) sent += await attack(random, FRAMES - sent)
  await turn()
  collect()
  process.off('unhandledRejection', note)
  expect(failures).toEqual([])
  expect(sessions).toBeGreaterThan(10)
  expect(used() - before).toBeLessThan(64 * 1024 * 1024)
})
