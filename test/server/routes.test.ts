import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type House, house } from './house.ts'

/** The whole way: HTTP, supervisor, gate, bubblewrap, trail. */

let home: House
beforeAll(async () => {
  home = await house()
})
afterAll(() => home.close())

describe('a sandbox over HTTP', () => {
  test('is made, runs a command, and is gone', async () => {
    const made = await home.call('POST', '/v1/sandboxes', {
      body: { metadata: { a: 'b' }, agent_id: 'agent-7' },
    })
    expect(made.status, made.text).toBe(201)
    expect(made.json).toMatchObject({
      state: 'ready',
      backend: 'bubblewrap',
      level: 'os',
      metadata: { a: 'b' },
    })
    const id = made.json.id as string
    const ran = await home.call('POST', `/v1/sandboxes/${id}/exec`, {
      body: { command: 'echo hi; echo no >&2; exit 3' },
    })
    expect(ran.json).toMatchObject({
      sandbox_id: id,
      outcome: { kind: 'exited', code: 3 },
      stdout: 'hi\n',
      stderr: 'no\n',
      truncated: false,
    })
    const denied = await home.call('POST', `/v1/sandboxes/${id}/exec`, { body: { command: 'rm -rf /' } })
    expect(denied.status).toBe(422)
    expect(denied.json).toMatchObject({ code: 'forbidden-command' })
    const gone = await home.call('DELETE', `/v1/sandboxes/${id}`)
    expect(gone.json).toMatchObject({ id, state: 'destroyed', reason: 'killed' })
    expect((await home.call('DELETE', `/v1/sandboxes/${id}`)).status).toBe(200)
    const late = await home.call('POST', `/v1/sandboxes/${id}/exec`, { body: { argv: ['true'] } })
    expect(late).toMatchObject({ status: 409, json: { code: 'wrong-state' } })
    const trail = await home.call('GET', `/v1/audit?agent_id=agent-7`)
    expect(trail.json.items.map((one: { event: string }) => one.event)).toContain('Exec')
    expect((await home.call('GET', '/v1/audit/verify')).json).toMatchObject({ ok: true })
  })
})
