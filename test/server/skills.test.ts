import { mkdirSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { readSkill } from '../../src/skills/package.ts'
import { SkillRegister } from '../../src/skills/register.ts'
import { BUMP_ALLOC, BUMP_GLOBAL, buildModule, I32, I64, op } from '../../src/wasm/testkit/module-builder.ts'
import { packageRoot } from '../conformance/world.ts'
import { startTestServer, type TestServer } from './test-server.ts'

/** Skills on a server: inspected skills by name, with separate memory and usage for each tenant. */

let home: TestServer
beforeAll(async () => {
  // Generous, because the load of the machine is not under test.
  home = await startTestServer('[sandbox]\nwasm_epoch_deadline = 100\n')
  const register = new SkillRegister(join(home.dir, 'state'))
  for (const name of ['greet', 'slugify'])
    register.add(await readSkill(join(packageRoot(), 'examples', 'skills', name)))
})
afterAll(() => home.close())

describe('skills', () => {
  test('run by name, and their runs are counted per tenant', async () => {
    const [a, b] = [await home.key(['exec', 'read'], 'a'), await home.key(['exec', 'read'], 'b')]
    const greet = (key: string) => home.call('POST', '/v1/skills/greet/run', { key, body: { input: 'Ada' } })
    expect((await greet(a)).json).toMatchObject({ ok: { greeting: 'hello Ada', times: 1 }, violations: [] })
    expect((await greet(a)).json).toMatchObject({ ok: { times: 2 } })
    expect((await greet(b)).json).toMatchObject({ ok: { times: 1 } })
    const slug = await home.call('POST', '/v1/skills/slugify/run', { key: b, body: { input: 'A Title' } })
    expect(slug.json).toMatchObject({ ok: 'a-title', fuel: 0 })
    expect((await home.call('GET', '/api/skills/usage', { key: a })).json).toMatchObject([
      { skill: 'greet', runs: 2, violations: 0 },
    ])
    expect((await home.call('GET', '/api/skills/usage')).json).toMatchObject([
      { skill: 'greet', runs: 3 },
      { skill: 'slugify', runs: 1 },
    ])
  })

  test('cannot be run from a directory of the server, with any key', async () => {
    mkdirSync(join(home.dir, 'planted'))
    writeFileSync(
      join(home.dir, 'planted', 'skill.toml'),
      '[skill]\nname = "planted"\n[runtime]\ntype = "python"\nentry = "main.py"\n',
    )
    writeFileSync(join(home.dir, 'planted', 'main.py'), 'print(1)\n')
    for (const name of ['planted', '.%2Fplanted', encodeURIComponent(join(home.dir, 'planted'))]) {
      const answer = await home.call('POST', `/v1/skills/${name}/run`, { body: {} })
      expect([name, answer.status]).toEqual([name, 404])
    }
  })
})

/** Passes its input to `host_call` and returns the reply. */
const ASKING = buildModule({
  imports: [{ module: 'ringfence', name: 'host_call', params: [I32, I32], results: [I64] }],
  memory: { min: 16 },
  globals: [BUMP_GLOBAL],
  functions: [
    { export: 'execute', params: [I32, I32], results: [I64], body: [op.get(0), op.get(1), op.call(0)] },
    BUMP_ALLOC,
  ],
})
/** Asks its sandbox's proxy for a port of 127.0.0.1, which programs mostly do not ask the proxy for. */
const PYTHON = `
import os, sys, urllib.request, urllib.error
for name in ('no_proxy', 'NO_PROXY'): os.environ.pop(name, None)
try:
    print(urllib.request.urlopen('http://127.0.0.1:' + sys.argv[1], timeout=5).status)
except urllib.error.HTTPError as error:
    print(error.code)
`

test("skills reach only the private addresses of the operator's network that their tenant was granted", async () => {
  const inner = createServer((_, answer) => answer.end('inner'))
  await new Promise<void>((resolve) => inner.listen(0, '127.0.0.1', resolve))
  const { port } = inner.address() as AddressInfo
  const own = await startTestServer(
    `[network]\nallow_private = ["127.0.0.1"]\n[sandbox]\nwasm_epoch_deadline = 100\n
[[tenant]]\nname = "granted"\nnetwork_modes = ["offline", "fetch"]\nallow_hosts = ["127.0.0.1"]\n
[[tenant]]\nname = "other"\nnetwork_modes = ["offline", "fetch"]\n`,
  )
  try {
    const register = new SkillRegister(join(own.dir, 'state'))
    const skills = [
      ['asking', 'wasm', 'main.wasm', ASKING],
      ['script', 'python', 'main.py', PYTHON],
    ] as const
    for (const [name, type, entry, code] of skills) {
      const dir = join(own.dir, name)
      mkdirSync(dir)
      const about = `[skill]\nname = "${name}"\n[runtime]\ntype = "${type}"\nentry = "${entry}"\n`
      writeFileSync(join(dir, 'skill.toml'), `${about}[capabilities]\nnetwork = ["127.0.0.1:${port}"]\n`)
      writeFileSync(join(dir, entry), code)
      register.add(await readSkill(dir))
    }
    const url = `http://127.0.0.1:${port}/`
    const run = async (tenant: string, name: string, input: unknown) => {
      const key = await own.key(['exec', 'read'], tenant)
      const answer = await own.call('POST', `/v1/skills/${name}/run`, { key, body: { input } })
      return answer.json
    }
    const asking = { method: 'net_fetch', params: { url } }
    expect(await run('granted', 'asking', asking)).toMatchObject({ ok: { ok: { body: 'inner' } } })
    expect(await run('other', 'asking', asking)).toMatchObject({
      error: { code: 'ssrf-blocked' },
      violations: [{ violation_type: 'SsrfBlocked' }],
    })
    expect(await run('granted', 'script', String(port))).toMatchObject({ ok: 200 })
    expect(await run('other', 'script', String(port))).toMatchObject({ ok: 403 })
  } finally {
    await own.close()
    inner.close()
  }
})
