import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startTestServer, type TestServer } from '../server/test-server.ts'
import { canHaveRoot } from './root-host.ts'

/** Attacks of root in a sandbox on a volume that outlives the sandbox. */

let here: TestServer
beforeAll(async () => {
  here = await startTestServer()
})
afterAll(() => here.close())

async function sandboxWith(volume: string): Promise<string> {
  const volumes = [{ name: volume, target: '/data' }]
  const { status, json } = await here.call('POST', '/v1/sandboxes', { body: { root: 'writable', volumes } })
  expect(status).toBe(201)
  return json.id
}

async function python(id: string, line: string): Promise<string> {
  const body = { argv: ['python3', '-c', line], user: 'root' }
  const { json } = await here.call('POST', `/v1/sandboxes/${id}/exec`, { body })
  return json.stdout
}

describe.skipIf(!canHaveRoot)('a volume', () => {
  test('whose directory was chowned to another user can be mounted again', async () => {
    await here.call('POST', '/v1/volumes', { body: { name: 'given', size_mb: 20 } })
    const first = await sandboxWith('given')
    expect(await python(first, "import os; os.chown('/data', 0, 0); print('done')")).toBe('done\n')
    await here.call('DELETE', `/v1/sandboxes/${first}`)
    const second = await sandboxWith('given')
    expect(await python(second, "import os; print(os.stat('/data').st_uid)")).toBe('0\n')
    await here.call('DELETE', `/v1/sandboxes/${second}`)
  })

  test('with paths that are too long for the host is deleted completely', async () => {
    await here.call('POST', '/v1/volumes', { body: { name: 'deep', size_mb: 20 } })
    const id = await sandboxWith('deep')
    const nest = "import os\nos.chdir('/data')\nfor i in range(30): os.mkdir('a' * 250); os.chdir('a' * 250)"
    expect(await python(id, `${nest}\nprint('done')`)).toBe('done\n')
    await here.call('DELETE', `/v1/sandboxes/${id}`)
    expect((await here.call('DELETE', '/v1/volumes/deep')).status).toBeLessThan(300)
    const left = readdirSync(join(here.dir, 'state', 'volumes')).filter((name) => name.startsWith('.old-'))
    expect(left).toEqual([])
  })
})
