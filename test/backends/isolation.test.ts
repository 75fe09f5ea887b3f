import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ComposeOptions, Sandbox } from '../../src/index.ts'

/** Commands of one sandbox that share only its mounts. The attacks on it are in src/prove/attacks-between.ts. */

let base: string
let workspace: string
let options: ComposeOptions

beforeAll(() => {
  base = realpathSync(mkdtempSync(join(tmpdir(), 'rf-isolation-')))
  workspace = join(base, 'workspace')
  mkdirSync(workspace)
  options = { env: { HOME: join(base, 'home'), RINGFENCE_HOME: join(base, 'state') }, cwd: workspace }
})

afterAll(() => rmSync(base, { recursive: true, force: true }))

const isolated = (more = {}) =>
  Sandbox.create({ backend: 'bubblewrap', workspace, isolation: 'command', ...more }, options)

test('commands share the workspace, and neither /tmp nor processes', async () => {
  await using sandbox = await isolated()
  await sandbox.exec('echo shared > file; echo own > /tmp/file')
  const { stdout } = await sandbox.exec('cat file; ls /tmp/file; echo /proc/[0-9]*')
  expect(stdout).toBe('shared\n/proc/1 /proc/2\n')
})

test('a command ends with everything that it started', async () => {
  await using sandbox = await isolated()
  await sandbox.exec(
    '(while sleep 0.05; do date +%N > beat; done) & while ! [ -s beat ]; do sleep 0.02; done',
  )
  const read = async () => (await sandbox.exec('cat beat')).stdout
  const before = await read()
  await sandbox.exec('sleep 0.3')
  expect(await read()).toBe(before)
})

test('a limit that stops every command leaves the sandbox able to isolate the next', async () => {
  await using sandbox = await isolated({ limits: { memoryMb: 64 } })
  const hog = 'python3 -c "x=bytearray(300<<20); import time; time.sleep(20)"'
  const result = await sandbox.exec(hog)
  expect(result.exitCode).not.toBe(0)
  expect((await sandbox.exec('echo /proc/[0-9]*')).stdout).toBe('/proc/1 /proc/2\n')
})

// Only root may create cgroups here.
test.runIf(process.getuid?.() === 0)('a limit of one command applies to its own processes', async () => {
  await using sandbox = await isolated({ limits: { memoryMb: 512 } })
  const other = sandbox.exec('sleep 1; echo unharmed')
  const hog = 'python3 -c "x=bytearray(300<<20); import time; time.sleep(20)"'
  const result = await sandbox.exec(hog, { limits: { memoryMb: 64, wallMs: 15_000 } })
  expect(result.outcome).not.toMatchObject({ kind: 'stopped', limit: 'wall' })
  expect(result.exitCode).not.toBe(0)
  expect((await other).stdout).toBe('unharmed\n')
})

test('what a command writes to its own /tmp counts towards the limit of memory', async () => {
  await using sandbox = await isolated({ limits: { memoryMb: 64, diskMb: 500 } })
  const result = await sandbox.exec('head -c 200m /dev/zero > /tmp/big; sleep 5; echo survived')
  expect(result.stdout).not.toContain('survived')
})

test('the sandbox can neither be weakened nor strengthened by a command', async () => {
  await using kept = await isolated()
  await expect(kept.exec('true', { isolation: 'sandbox' })).rejects.toMatchObject({ code: 'forbidden' })
  expect((await kept.exec('echo fine', { isolation: 'command' })).stdout).toBe('fine\n')
  await using shared = await Sandbox.create({ backend: 'bubblewrap', workspace }, options)
  await expect(shared.exec('true', { isolation: 'command' })).rejects.toMatchObject({
    code: 'missing-guarantee',
    message: expect.stringContaining('proc.between'),
  })
})

test('the policy can require it, and a backend that cannot keep it is refused', async () => {
  const policy = join(base, 'policy.toml')
  writeFileSync(policy, '[policy]\nisolate_commands = true\n')
  const strict = { ...options, policy }
  await using sandbox = await Sandbox.create({ backend: 'bubblewrap', workspace }, strict)
  expect((await sandbox.exec('echo /proc/[0-9]*')).stdout).toBe('/proc/1 /proc/2\n')
  await expect(Sandbox.create({ workspace, isolation: 'sandbox' }, strict)).rejects.toMatchObject({
    code: 'forbidden',
  })
  const native = Sandbox.create({ backend: 'native', workspace, isolation: 'command' }, options)
  await expect(native).rejects.toMatchObject({
    code: 'missing-guarantee',
    message: expect.stringContaining('proc.between'),
  })
})

/** A server that keeps the credentials it was sent. */
async function receiver(): Promise<{ server: Server; at: string; seen: (string | undefined)[] }> {
  const seen: (string | undefined)[] = []
  const server = createServer((request, response) => {
    seen.push(request.headers.authorization)
    response.end('fine')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return { server, at: `localhost:${(server.address() as AddressInfo).port}`, seen }
}

test('a secret belongs to the command that was given it, also when another knows its placeholder', async () => {
  const { server, at, seen } = await receiver()
  const config = join(base, 'private.toml')
  const rule = '[[policy.rule]]\nprefix = ["curl"]\naction = "sandbox"\n'
  writeFileSync(config, `[network]\nallow_private = ["localhost"]\n${rule}`)
  const network = { mode: 'fetch' as const, allowHosts: [at] }
  await using sandbox = await Sandbox.create(
    {
      backend: 'bubblewrap',
      workspace,
      isolation: 'command',
      network,
      secrets: [`TOKEN=API_TOKEN@http://${at}`],
    },
    { ...options, config, env: { ...options.env, API_TOKEN: 'the-real-value' } },
  )
  const send = (token: string) => `curl -s --noproxy "" -H "authorization: ${token}" http://${at}/`
  const given = await sandbox.exec(`printf %s "$TOKEN " && ${send('$TOKEN')}`, { secrets: ['TOKEN'] })
  const [placeholder, answer] = given.stdout.split(' ') as [string, string]
  expect([answer, seen[0]], given.stdout).toEqual(['fine', 'the-real-value'])

  const other = await sandbox.exec(`printf %s "$TOKEN" && ${send(placeholder)}`)
  expect(other.stdout).toBe('fine')
  expect(seen[1]).toBe(placeholder)

  const offline = await sandbox.exec(send('$TOKEN'), { network: false, secrets: ['TOKEN'] })
  expect([offline.exitCode === 0, seen.length]).toEqual([false, 2])
  server.close()
})
