import { createHash } from 'node:crypto'
import { rmSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { FULL } from '../server/test-server.ts'
import { type Fleet, startFleet } from './fleet.ts'

/** Every replica is restarted, one after the other, while clients read the output of commands through them. */

const STREAMS = 64
const LINES = 400

const API = { role: 'api', leaseSecs: 10 } as const

let postgres: Postgres
let fleet: Fleet
beforeAll(async () => {
  if (!FULL) return
  postgres = await startPostgres()
  fleet = await startFleet(postgres.url, [{ leaseSecs: 10 }, API, API])
})
afterAll(async () => {
  await fleet?.close()
  await postgres?.stop()
})

type FleetNode = Fleet['nodes'][number]
const admin = () => ({ authorization: `Bearer ${fleet.admin}` })

/** Reads a command's output to its end through whichever replica answers; goes on after the last event that it saw. */
async function follow(
  replicas: () => readonly FleetNode[],
  path: string,
  seed: number,
): Promise<{ text: string; attached: number }> {
  let text = ''
  let last = '0'
  let why = ''
  for (let attached = 1; attached < 200; attached++) {
    const all = replicas()
    const url = all[(seed + attached) % all.length]?.server.url ?? ''
    try {
      const headers = { ...admin(), accept: 'text/event-stream', 'last-event-id': last }
      const answer = await fetch(`${url}${path}`, { headers })
      if (!answer.body || !answer.ok) throw new Error(await answer.text())
      let rest = ''
      for await (const chunk of answer.body as unknown as AsyncIterable<Uint8Array>) {
        const events = (rest + Buffer.from(chunk).toString('utf8')).split('\n\n')
        rest = events.pop() ?? ''
        for (const event of events) {
          const [, name = ''] = /^event: (.*)$/m.exec(event) ?? []
          const [, data = '{}'] = /^data: (.*)$/m.exec(event) ?? []
          if (name === 'stdout') text += Buffer.from(JSON.parse(data) as string, 'base64').toString()
          last = /^id: (\d+)$/m.exec(event)?.[1] ?? last
          if (name === 'end') return { text, attached }
        }
      }
    } catch (error) {
      // The replica is being restarted: another one goes on.
      why = String(error)
    }
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  throw new Error(`the command did not end: ${why}, after ${last}`)
}

test.runIf(FULL)(
  `${STREAMS} streams lose and repeat nothing during a rolling restart`,
  { timeout: 300_000 },
  async () => {
    const [owner] = fleet.nodes as [FleetNode]
    let replicas = fleet.nodes.slice(1)
    const command = `for i in $(seq ${LINES}); do echo "line $i"; sleep 0.03; done`
    const paths = await Promise.all(
      Array.from({ length: STREAMS }, async () => {
        const made = await owner.call('POST', '/v1/sandboxes', { key: fleet.admin, body: {} })
        const path = `/v1/sandboxes/${made.json.id}`
        const run = await owner.call('POST', `${path}/exec`, {
          key: fleet.admin,
          body: { command, background: true },
        })
        expect(run.status, run.text).toBeLessThan(300)
        return `${path}/execs/${run.json.exec_id}`
      }),
    )
    const reading = paths.map((path, at) => follow(() => replicas, path, at))
    for (const old of replicas) {
      await new Promise((resolve) => setTimeout(resolve, 500))
      const others = replicas.filter((one) => one !== old)
      replicas = others
      await old.server.drain()
      rmSync(old.dir, { recursive: true, force: true })
      replicas = [...others, await fleet.add(API)]
    }
    const results = await Promise.all(reading)
    const expected = Array.from({ length: LINES }, (_, at) => `line ${at + 1}\n`).join('')
    const hash = (text: string): string => createHash('sha256').update(text).digest('hex')
    const attached = results.map((one) => one.attached)
    console.log(
      `${STREAMS} streams over a rolling restart: attached ${Math.min(...attached)} to ${Math.max(...attached)} times`,
    )
    expect(results.filter(({ text }) => hash(text) !== hash(expected)).map(({ text }) => text)).toEqual([])
    expect(Math.max(...attached)).toBeGreaterThan(1)
  },
)
