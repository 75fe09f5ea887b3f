import { duplexPair } from 'node:stream'
import { afterEach, describe, expect, it } from 'vitest'
import { networkPolicyOf } from '../../policy/network/network.ts'
import { Cancellation, type CancelSignal } from '../cancel.ts'
import { talk, World } from '../testkit/world.ts'
import { rememberAnswers, resolveJudged } from './resolve.ts'

let world = new World()
afterEach(async () => {
  await world.end()
  world = new World()
})

const CONNECT = 'CONNECT slow.example:443 HTTP/1.1\r\nHost: slow.example:443\r\n\r\n'

/** A resolver that never answers, and the lookups that it was asked for. */
function neverAnswering() {
  const lookups: (CancelSignal | undefined)[] = []
  const resolve = (_: string, until?: CancelSignal): Promise<string[]> => {
    lookups.push(until)
    return new Promise((_, reject) => until?.listen(() => reject(until.reason)))
  }
  return { lookups, resolve }
}

const until = async (isTrue: () => boolean): Promise<void> => {
  while (!isTrue()) await new Promise((next) => setTimeout(next, 5))
}

describe('a name that is not answered', () => {
  it('is refused in time', async () => {
    const { lookups, resolve } = neverAnswering()
    const { port } = await world.proxy({ resolve, limits: { connectMs: 50 } })
    expect(await talk(port, CONNECT)).toMatch(
      /^HTTP\/1.1 504 [\s\S]*`slow.example` is not resolved within 50 ms/,
    )
    expect(lookups.map((one) => one?.reason !== undefined)).toEqual([true])
    expect(world.events.map(({ verdict }) => verdict)).toEqual(['deny'])
  })

  it('is refused in time by a resolver that cannot be stopped', async () => {
    const { port } = await world.proxy({ resolve: () => new Promise(() => {}), limits: { connectMs: 50 } })
    const socks = Buffer.from([5, 1, 0, 5, 1, 0, 3, 12, ...Buffer.from('slow.example'), 1, 187])
    expect(await talk(port, CONNECT)).toMatch(/^HTTP\/1.1 504 /)
    expect(Buffer.from(await talk(port, socks), 'latin1')[3]).not.toBe(0)
  })

  it('is looked up no longer than a client waits', async () => {
    const { lookups, resolve } = neverAnswering()
    const { proxy } = await world.proxy({ resolve })
    const clients = [duplexPair(), duplexPair()]
    for (const [client, seen] of clients) {
      void proxy.handle(seen)
      client.write(CONNECT)
    }
    await until(() => lookups.length > 0)
    clients[0]?.[1].destroy()
    await until(() => world.events.length === 1)
    expect(lookups.map((one) => one?.reason)).toEqual([undefined])
    clients[1]?.[1].destroy()
    await until(() => world.events.length === 2)
    expect(lookups.map((one) => String(one?.reason))).toEqual([
      expect.stringContaining('the client has disconnected'),
    ])
  })
})

describe('remembered answers', () => {
  it('of a lookup under way are waited for, however long it takes', async () => {
    const { lookups, resolve } = neverAnswering()
    const remembered = rememberAnswers(resolve, 0)
    const [one, two] = [new Cancellation(), new Cancellation()]
    const waiting = [remembered('a.example', one), remembered('a.example', two)]
    expect(lookups.length).toBe(1)
    one.cancel(new Error('one'))
    expect(lookups[0]?.reason).toBeUndefined()
    two.cancel(new Error('two'))
    await Promise.all(waiting.map((answers) => expect(answers).rejects.toThrow('two')))
    void Promise.resolve(remembered('a.example')).catch(() => undefined)
    expect(lookups.length).toBe(2)
  })
})

describe('every address is judged', () => {
  const policy = networkPolicyOf({ allowHosts: ['*.example'] })

  it('and one private address of many refuses the name', async () => {
    const resolve = () => ['192.0.2.1', '203.0.114.1', '10.0.0.1']
    await expect(resolveJudged(policy, 'a.example:443', 'proxy-target', { resolve })).rejects.toThrow()
  })

  it('and those that were judged are the ones to connect to', async () => {
    const resolve = () => ['8.8.8.8', '2606:4700::1']
    const judged = await resolveJudged(policy, 'a.example:443', 'proxy-target', { resolve })
    expect(judged.addresses).toEqual(['8.8.8.8', '2606:4700::1'])
  })
})
