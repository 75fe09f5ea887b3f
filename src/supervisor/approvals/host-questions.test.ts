import { Duplex } from 'node:stream'
import { beforeEach, describe, expect, it, vi } from 'vitest'
import type { AskedHost } from '../../model/host-question.ts'
import { type HostAnswer, HostQuestions } from './host-questions.ts'

type Asked = AskedHost & { readonly signal: AbortSignal; readonly answer: (answer: HostAnswer) => void }

let asked: Asked[]
let log: string[]
let allowed: string[]
let questions: HostQuestions
beforeEach(() => {
  asked = []
  log = []
  allowed = []
  questions = new HostQuestions({
    ask: (question) => new Promise((answer) => asked.push({ ...question, answer })),
    allow: (entry) => void allowed.push(entry),
    asked: async ({ host }) => void log.push(`asked ${host}`),
    answered: async ({ host }, { state }) => void log.push(`${state} ${host}`),
  })
})

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))
const admit = (host = 'a.example', client?: Duplex): Promise<string> =>
  questions.admit({ host, port: 443, protocol: 'connect', client }).then(
    () => 'admitted',
    (error: Error) => error.message,
  )
const stream = (): Duplex => new Duplex({ read() {}, write: (_chunk, _encoding, done) => done() })

describe('approval requests for hosts', () => {
  it('are recorded when created and when settled, before the connection continues', async () => {
    const admitted = admit()
    await turn()
    expect(log).toEqual(['asked a.example'])
    asked[0]?.answer({ state: 'approved' })
    expect(await admitted).toBe('admitted')
    expect(log).toEqual(['asked a.example', 'approved a.example'])
    expect(allowed).toEqual([])
  })

  it('are shared by connections that wait for the same host and port', async () => {
    const both = [admit(), admit()]
    await turn()
    expect(asked).toHaveLength(1)
    asked[0]?.answer({ state: 'approved', scope: 'once' })
    expect(await Promise.all(both)).toEqual(['admitted', 'admitted'])
    void admit()
    await turn()
    expect(asked).toHaveLength(2)
  })

  it.each(['sandbox', 'always'] as const)(
    'add the host to the allow list with the scope %s',
    async (scope) => {
      const admitted = admit()
      await turn()
      asked[0]?.answer({ state: 'approved', scope })
      expect(await admitted).toBe('admitted')
      expect(allowed).toEqual(['a.example:443'])
    },
  )

  it('are not repeated after a rejection, until the list is set again', async () => {
    const refused = admit()
    await turn()
    asked[0]?.answer({ state: 'rejected', by: 'key_1', reason: 'use the mirror' })
    expect(await refused).toBe('`a.example` is not an allowed host (rejected by key_1: use the mirror)')
    expect(await admit()).toContain('rejected by key_1')
    expect(asked).toHaveLength(1)
    questions.forget()
    void admit()
    await turn()
    expect(asked).toHaveLength(2)
  })

  it('are withdrawn when the last waiting client disconnects', async () => {
    const [one, two] = [stream(), stream()]
    const both = [admit('a.example', one), admit('a.example', two)]
    await turn()
    one.destroy()
    expect(await both[0]).toContain('disconnected')
    expect(asked[0]?.signal.aborted).toBe(false)
    two.destroy()
    await both[1]
    await turn()
    expect(asked[0]?.signal.aborted).toBe(true)
    await vi.waitFor(() => expect(log).toEqual(['asked a.example', 'expired a.example']), 5000)
  })

  it('are recorded once when they are withdrawn, by the side that has their record', async () => {
    const client = stream()
    const gone = admit('a.example', client)
    await turn()
    asked[0]?.signal.addEventListener('abort', () =>
      setTimeout(() => asked[0]?.answer({ state: 'expired', approvalId: 'ap_1' }), 20),
    )
    client.destroy()
    expect(await gone).toContain('disconnected')
    await vi.waitFor(async () => expect(await admit()).toContain('not answered'), 5000)
    await new Promise((resolve) => setTimeout(resolve, 600))
    expect(log).toEqual(['asked a.example'])
  })

  it('are limited to eight hosts and sixty-four connections', async () => {
    for (let host = 0; host < 8; host++) void admit(`h${host}.example`)
    expect(await admit('h9.example')).toContain('too many hosts wait')
    for (let more = 8; more < 64; more++) void admit('h0.example')
    expect(await admit('h0.example')).toContain('too many connections wait')
    expect(asked.length).toBeLessThanOrEqual(8)
  })

  it('are not created for a connection that is refused at once', async () => {
    for (let one = 0; one < 64; one++) void admit('a.example')
    expect(await admit('b.example')).toContain('too many connections wait')
    await turn()
    expect(asked.map(({ host }) => host)).toEqual(['a.example'])
  })

  it('are limited to two hundred for one sandbox', async () => {
    for (let host = 0; host < 200; host++) {
      const refused = admit(`h${host}.example`)
      await turn()
      asked.at(-1)?.answer({ state: 'rejected' })
      await refused
    }
    expect(await admit('last.example')).toContain('asked for too many hosts')
    expect(asked).toHaveLength(200)
  })
})
