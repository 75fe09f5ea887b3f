import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Duplex } from 'node:stream'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ComposeOptions, Sandbox } from '../../src/index.ts'

/** Commands of one sandbox that share only its mounts. The attacks on this isolation are in src/prove/attacks-between.ts. */

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

test('isolated commands share the workspace, but neither /tmp nor processes', async () => {
  await using sandbox = await isolated()
  await sandbox.exec('echo shared > file; echo own > /tmp/file')
  const { stdout } = await sandbox.exec('cat file; ls /tmp/file; echo /proc/[0-9]*')
  expect(stdout).toBe('shared\n/proc/1 /proc/2\n')
})

test('all processes of an isolated command end with the command', async () => {
  await using sandbox = await isolated()
  await sandbox.exec(
    '(while sleep 0.05; do date +%N > beat; done) & while ! [ -s beat ]; do sleep 0.02; done',
  )
  const read = async () => (await sandbox.exec('cat beat')).stdout
  const before = await read()
  await sandbox.exec('sleep 0.3')
  expect(await read()).toBe(before)
})

test('the next command is still isolated after a limit stopped all processes of the sandbox', async () => {
  await using sandbox = await isolated({ limits: { memoryMb: 64 } })
  const hog = 'python3 -c "x=bytearray(300<<20); import time; time.sleep(20)"'
  const result = await sandbox.exec(hog)
  expect(result.exitCode).not.toBe(0)
  expect((await sandbox.exec('echo /proc/[0-9]*')).stdout).toBe('/proc/1 /proc/2\n')
})

// Only root may create cgroups here.
test.runIf(process.getuid?.() === 0)(
  'a memory limit of one command does not affect another command',
  async () => {
    await using sandbox = await isolated({ limits: { memoryMb: 512 } })
    const other = sandbox.exec('sleep 1; echo unharmed')
    const hog = 'python3 -c "x=bytearray(300<<20); import time; time.sleep(20)"'
    const result = await sandbox.exec(hog, { limits: { memoryMb: 64, wallMs: 15_000 } })
    expect(result.outcome).not.toMatchObject({ kind: 'stopped', limit: 'wall' })
    expect(result.exitCode).not.toBe(0)
    expect((await other).stdout).toBe('unharmed\n')
  },
)

test('files in the /tmp of an isolated command count towards the memory limit', async () => {
  await using sandbox = await isolated({ limits: { memoryMb: 64, diskMb: 500 } })
  const result = await sandbox.exec('head -c 200m /dev/zero > /tmp/big; sleep 5; echo survived')
  expect(result.stdout).not.toContain('survived')
})

const usedMb = (): number =>
  Number(execFileSync('du', ['-sm', '--apparent-size', workspace]).toString().split('\t')[0])

test('the disk limit of isolated commands holds after it was reached, until files are removed', async () => {
  await using sandbox = await isolated({ limits: { diskMb: 30 } })
  const before = usedMb()
  const fill = (name: string) => `for n in $(seq 15); do head -c 4m /dev/zero > ${name}$n; sleep 0.02; done`
  expect((await sandbox.exec(fill('a'))).outcome).toMatchObject({ kind: 'stopped', limit: 'disk' })
  expect((await sandbox.exec(fill('b'))).stderr).toContain('No space left')
  expect(usedMb() - before).toBeLessThan(50)
  await sandbox.exec('rm -f a* b*; sleep 0.2')
  expect((await sandbox.exec('head -c 20m /dev/zero > c && echo written')).stdout).toBe('written\n')
  // The files of commands that have ended still count.
  expect((await sandbox.exec(fill('d'))).outcome).toMatchObject({ kind: 'stopped', limit: 'disk' })
  await sandbox.exec('rm -f c d*')
})

test('an exec can neither weaken nor strengthen the isolation chosen for its sandbox', async () => {
  await using kept = await isolated()
  await expect(kept.exec('true', { isolation: 'sandbox' })).rejects.toMatchObject({ code: 'forbidden' })
  expect((await kept.exec('echo fine', { isolation: 'command' })).stdout).toBe('fine\n')
  await using shared = await Sandbox.create({ backend: 'bubblewrap', workspace }, options)
  await expect(shared.exec('true', { isolation: 'command' })).rejects.toMatchObject({
    code: 'missing-guarantee',
    message: expect.stringContaining('proc.between'),
  })
})

const listening = (word: string): string =>
  `python3 -c "import socket
s=socket.socket();s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1);s.bind(('127.0.0.1',8123));s.listen(9)
print('ready',flush=True)
while True: c,_=s.accept();c.sendall(b'${word}');c.close()"`

async function answerOf(stream: Duplex): Promise<string> {
  const pieces: Uint8Array[] = []
  for await (const piece of stream) pieces.push(piece as Uint8Array)
  return Buffer.concat(pieces).toString()
}

test('a connection to a port reaches only the command that was given this port', async () => {
  await using sandbox = await isolated({ network: { mode: 'loopback' } })
  await expect(sandbox.connect(8123)).rejects.toThrow('no running command was given port 8123')
  const [one, other] = await Promise.all([
    sandbox.spawn(listening('granted'), { ports: [8123] }),
    sandbox.spawn(listening('sibling')),
  ])
  for (const running of [one, other]) for await (const _ of running) break
  expect(await answerOf(await sandbox.connect(8123))).toBe('granted')
  await expect(sandbox.spawn('true', { ports: [8123] })).rejects.toMatchObject({ code: 'conflict' })
  one.signal('SIGKILL')
  await one.result.catch(() => {})
  await expect(sandbox.connect(8123)).rejects.toThrow('no running command was given port 8123')
  await expect(sandbox.exec('true', { ports: [0] })).rejects.toMatchObject({ code: 'invalid-input' })
  other.signal('SIGKILL')
})

test('a connection to a port without a listener is refused, and ports need isolated commands', async () => {
  await using sandbox = await isolated({ network: { mode: 'loopback' } })
  const running = await sandbox.spawn('sleep 20', { ports: [8124] })
  await expect(sandbox.connect(8124)).rejects.toThrow('nothing listens on port 8124')
  running.signal('SIGKILL')
  await running.result.catch(() => {})
  await using shared = await Sandbox.create({ backend: 'bubblewrap', workspace }, options)
  await expect(shared.exec('true', { ports: [8124] })).rejects.toThrow('only isolated commands')
})

test('a flood of connections to the port of an isolated command does not block PID 1', async () => {
  await using sandbox = await isolated({ network: { mode: 'loopback' } })
  const running = await sandbox.spawn(listening('x').replace('listen(9)', 'listen(4096)'), { ports: [8123] })
  for await (const _ of running) break
  const answers = Array.from({ length: 1500 }, async () => answerOf(await sandbox.connect(8123)))
  const answered = await Promise.all(answers)
  expect(new Set(answered)).toEqual(new Set(['x']))
  expect((await sandbox.exec('echo still here')).stdout).toBe('still here\n')
  running.signal('SIGKILL')
  await running.result.catch(() => {})
})

test('the policy can require isolated commands, and a backend without that guarantee is refused', async () => {
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

test('a secret is sent only for the command that was given it, even if another command uses its placeholder', async () => {
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
  expect(other.stdout).toBe(
    'ringfence: capability-denied: the secret `TOKEN` was not given to this command\n',
  )

  const offline = await sandbox.exec(send('$TOKEN'), { network: false, secrets: ['TOKEN'] })
  expect([offline.exitCode === 0, seen.length]).toEqual([false, 1])
  server.close()
})
