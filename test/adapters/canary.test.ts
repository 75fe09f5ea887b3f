import { spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Sandbox } from '../../src/index.ts'
import { packageRoot } from '../conformance/world.ts'
import { type World, world } from '../e2b/kit.ts'

/**
 * Keys of models and clouds in every place where people keep them. None may be inside a sandbox, in an argument of a
 * process, in what we print, in the trail or in an error.
 */
const CANARY = 'canary7f3a91'
const VARIABLES = [
  'ANTHROPIC_API_KEY',
  'OPENAI_API_KEY',
  'GEMINI_API_KEY',
  'AWS_SECRET_ACCESS_KEY',
  'GITHUB_TOKEN',
  'NPM_TOKEN',
  'RINGFENCE_API_KEY',
  'RINGFENCE_OPENSHELL_TOKEN',
  'DATABASE_URL',
  'INNOCENT_NAME',
]
const FILES = [
  '.aws/credentials',
  '.netrc',
  '.npmrc',
  '.config/gh/hosts.yml',
  '.claude/.credentials.json',
  '.codex/auth.json',
  '.gemini/oauth_creds.json',
  '.docker/config.json',
  '.kube/config',
  '.ssh/id_ed25519',
]

const base = mkdtempSync(join(tmpdir(), 'rf-canary-'))
const home = join(base, 'home')
const workspace = join(base, 'work')
const state = join(base, 'state')
let there: World

beforeAll(async () => {
  mkdirSync(workspace)
  for (const file of FILES) {
    mkdirSync(dirname(join(home, file)), { recursive: true })
    writeFileSync(join(home, file), `${CANARY}-file`)
  }
  writeFileSync(join(workspace, 'look.sh'), LOOK)
  there = await world()
}, 60_000)
afterAll(async () => {
  await there.close()
  rmSync(base, { recursive: true, force: true })
})

/** Everything that a program inside can find without a privilege that it does not have. */
const LOOK = `env; cat /proc/self/environ /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'
for f in ${FILES.map((file) => `"${home}/${file}" ~/${file}`).join(' ')}; do cat "$f" 2>/dev/null; done
[ -n "$CONTROL" ] || grep -rsa --exclude=look.sh ${CANARY} /tmp /run /dev/shm /root /home /var/tmp /etc 2>/dev/null | head -c 20000
sleep 0.4; echo looked
`

const env = (): Record<string, string> => ({
  PATH: process.env.PATH ?? '',
  HOME: home,
  RINGFENCE_HOME: state,
  E2B_API_URL: there.options.apiUrl,
  E2B_SANDBOX_URL: there.options.sandboxUrl,
  ...Object.fromEntries(VARIABLES.map((name) => [name, `${CANARY}-${name}`])),
})

/** Arguments of all processes, watched while something runs. */
function watchArguments(): () => string {
  let seen = ''
  const look = (): void => {
    for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name)))
      try {
        const line = readFileSync(`/proc/${pid}/cmdline`, 'latin1')
        // Ours to pass on as it is: the look for it, and this test.
        if (line.includes(CANARY) && !line.includes('grep')) seen += `${line}\n`
      } catch {
        // It has ended.
      }
  }
  const timer = setInterval(look, 20)
  return () => {
    clearInterval(timer)
    return seen
  }
}

function everythingBelow(dir: string): string {
  return readdirSync(dir, { recursive: true, encoding: 'utf8' })
    .map((name) => join(dir, name))
    .filter((file) => statSync(file, { throwIfNoEntry: false })?.isFile())
    .map((file) => readFileSync(file, 'latin1'))
    .join('\n')
}

type Ran = { readonly code: number | null; readonly said: string }
const ringfence = (args: readonly string[], input?: string): Promise<Ran> =>
  new Promise((resolve) => {
    const child = spawn(process.execPath, [join(packageRoot(), 'dist/cli/ringfence.cjs'), ...args], {
      env: env(),
      cwd: workspace,
    })
    let said = ''
    child.stdout.on('data', (chunk) => {
      said += chunk
      // The answer to the call; a client would go on.
      if (input !== undefined && said.includes('"id":2')) child.stdin.end()
    })
    child.stderr.on('data', (chunk) => {
      said += chunk
    })
    if (input === undefined) child.stdin.end()
    else child.stdin.write(input)
    child.on('close', (code) => resolve({ code, said }))
  })

const mcpCalls = (command: string): string =>
  [
    {
      jsonrpc: '2.0',
      id: 1,
      method: 'initialize',
      params: { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'test', version: '0' } },
    },
    { jsonrpc: '2.0', method: 'notifications/initialized' },
    { jsonrpc: '2.0', id: 2, method: 'tools/call', params: { name: 'exec', arguments: { command } } },
  ]
    .map((message) => `${JSON.stringify(message)}\n`)
    .join('')

test('control: a program without a sandbox finds the secrets', async () => {
  const { said } = await new Promise<Ran>((resolve) => {
    const child = spawn('bash', ['look.sh'], { env: { ...env(), CONTROL: 'yes' }, cwd: workspace })
    let said = ''
    child.stdout.on('data', (chunk) => {
      said += chunk
    })
    child.on('close', (code) => resolve({ code, said }))
  })
  expect(said).toContain(`${CANARY}-OPENAI_API_KEY`)
  expect(said).toContain(`${CANARY}-file`)
})

test.each([
  ['run', () => ringfence(['run', '--', 'bash', 'look.sh'])],
  ['run --json', () => ringfence(['run', '--json', '--', 'bash', 'look.sh'])],
  ['mcp', () => ringfence(['mcp'], mcpCalls('bash look.sh'))],
] as const)(
  '%s shows no secret',
  async (_, start) => {
    const stop = watchArguments()
    const { said } = await start()
    expect(said).toContain('looked')
    expect(said).not.toContain(CANARY)
    expect(stop()).toBe('')
  },
  60_000,
)

test('no error message shows a secret', async () => {
  const wrong = [
    ['run', '--backend', 'e2b', '--waive', 'kernel.filtered', '--preset', 'read-only', '--', 'true'],
    ['run', '--backend', 'openshell', '--', 'true'],
    ['run', '--secret', 'X=OPENAI_API_KEY@api.openai.com', '--', 'no-such-program'],
    ['run', '--secret', 'X=NOT_THERE@api.openai.com', '--', 'true'],
    ['run', '--workspace', '/no/such/dir', '--', 'true'],
    ['sandbox', 'ls'],
    ['doctor', '--json'],
    ['run', '--explain', '--', 'bash', 'look.sh'],
  ]
  for (const args of wrong) {
    const { said } = await ringfence(args)
    expect(said, args.join(' ')).not.toContain(CANARY)
  }
}, 60_000)

test('a remote sandbox gets no secret, and neither does its server', async () => {
  const { apiKey, apiUrl, sandboxUrl } = there.options
  const compose = {
    env: { ...env(), E2B_API_KEY: apiKey, E2B_API_URL: apiUrl, E2B_SANDBOX_URL: sandboxUrl },
    cwd: workspace,
  }
  const spec = { backend: 'e2b', waive: ['kernel.filtered'], preset: 'read-only' } as const
  const sandbox = await Sandbox.create(spec, compose)
  const { stdout, stderr } = await sandbox.exec('env; cat /home/user/* /tmp/*; echo looked')
  await sandbox.close()
  const said = stdout + stderr
  expect(said).toContain('looked')
  expect(said).not.toContain(CANARY)
  expect(said).not.toContain(apiKey)
  expect(there.logs.join('\n')).not.toContain(CANARY)
}, 60_000)

test('the audit log and all other state files contain no secret', () => {
  const kept = everythingBelow(state)
  expect(kept).toContain('look.sh')
  expect(kept).not.toContain(CANARY)
  expect(kept).not.toContain(there.options.apiKey)
})
