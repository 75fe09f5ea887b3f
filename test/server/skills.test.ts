import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { readSkill } from '../../src/skills/package.ts'
import { SkillRegister } from '../../src/skills/register.ts'
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
