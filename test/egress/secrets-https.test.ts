import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { machineImages, whyNoMachine } from '../backends/microvm-parts.ts'
import { ORDINARY } from '../conformance/as-user.ts'
import { startDocker, startPodman, type TestEngine, testState, whyNot } from '../conformance/engines.ts'
import { packageRoot } from '../conformance/world.ts'

/**
 * `ringfence run --secret X=VAR@host` against a real TLS server, with common programs, on every backend
 * that claims `secrets.outside`. The system's own bundle of certificates is larger than one variable of the environment.
 */
const root = packageRoot()
const VALUE = 'the-real-value-0123456789'
const SYSTEM_BUNDLE = '/etc/ssl/certs/ca-certificates.crt'
const MAX_ARG_STRLEN = 131_072
const full = process.env.RINGFENCE_FULL !== undefined
const GO = '/usr/bin/go'

type Ran = {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
  readonly seen: string[]
}

let dir: string
let outside: ChildProcess

const CLIENTS: Readonly<Record<string, string>> = {
  curl: 'curl -sS -H "Authorization: Bearer $TOKEN" https://api.outside.example/curl',
  git: 'git -c "http.extraHeader=Authorization: Bearer $TOKEN" ls-remote https://api.outside.example/git',
  python: `python3 -c '
import os, urllib.request
ask = urllib.request.Request("https://api.outside.example/python", headers={"Authorization": "Bearer " + os.environ["TOKEN"]})
print(urllib.request.urlopen(ask).read().decode())'`,
  node: `node -e 'fetch("https://api.outside.example/node", { headers: { authorization: "Bearer " + process.env.TOKEN } })
    .then((answer) => answer.text()).then(console.log)'`,
  go: './go-client https://api.outside.example/go',
}

const GO_CLIENT = `package main
import ("fmt"; "io"; "net/http"; "os")
func main() {
	ask, _ := http.NewRequest("GET", os.Args[1], nil)
	ask.Header.Set("Authorization", "Bearer " + os.Getenv("TOKEN"))
	answer, err := http.DefaultClient.Do(ask)
	if err != nil { fmt.Println(err); os.Exit(1) }
	body, _ := io.ReadAll(answer.Body)
	fmt.Print(string(body))
}
`

function canUnshare(): boolean {
  try {
    execFileSync('unshare', ['--net', '--mount', 'true'], { stdio: 'ignore' })
    return existsSync('/usr/sbin/ip') || existsSync('/sbin/ip')
  } catch {
    return false
  }
}

function makeFiles(): void {
  const at = { cwd: dir, stdio: 'ignore' } as const
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', 'key.pem']
  const subject = ['-subj', '/CN=outside', '-addext', 'subjectAltName=DNS:api.outside.example']
  execFileSync('openssl', ['req', '-x509', ...key, '-out', 'cert.pem', '-days', '2', ...subject], at)
  mkdirSync(join(dir, 'work'))
  const rules = ['sh', './go-client'].map(
    (word) => `[[policy.rule]]\nprefix = ["${word}"]\naction = "sandbox"\n`,
  )
  writeFileSync(join(dir, 'ringfence.toml'), rules.join(''))
  writeFileSync(join(dir, 'hosts'), '127.0.0.1 localhost\n93.184.215.14 api.outside.example\n')
  if (existsSync(GO)) {
    writeFileSync(join(dir, 'client.go'), GO_CLIENT)
    const env = {
      PATH: process.env.PATH,
      HOME: dir,
      GOCACHE: join(dir, 'go-cache'),
      CGO_ENABLED: '0',
      GO111MODULE: 'off',
    }
    execFileSync(GO, ['build', '-o', 'work/go-client', 'client.go'], { ...at, env })
  }
}

const heard = (): Promise<unknown> =>
  new Promise((resolve, reject) => {
    outside.once('message', resolve)
    outside.once('exit', (code) => reject(new Error(`outside ended with ${code}`)))
  })

/** Runs the command line in the other network; the server there answers what `seen` lists. */
async function ringfence(
  args: readonly string[],
  env: Record<string, string> = {},
  as: readonly string[] = [],
): Promise<Ran> {
  outside.send({
    argv: [...as, process.execPath, join(root, 'dist', 'cli', 'ringfence.cjs'), ...args],
    env: {
      PATH: process.env.PATH,
      HOME: dir,
      RINGFENCE_HOME: testState(),
      NODE_EXTRA_CA_CERTS: join(dir, 'cert.pem'),
      API_KEY: VALUE,
      ...env,
    },
  })
  return (await heard()) as Ran
}

const usable = (names: readonly string[]): readonly string[] =>
  names.filter((name) => {
    if (name !== 'go' || existsSync(GO)) return true
    process.stderr.write('skipped: the Go client: golang-go is not installed\n')
    return false
  })

/** All clients in one sandbox, because a virtual machine starts slowly. */
async function tryClients(
  backend: string,
  names: readonly string[],
  env: Record<string, string> = {},
  as: readonly string[] = [],
): Promise<void> {
  const chosen = usable(names)
  const lines = chosen.map((name) => `${CLIENTS[name]} || echo "FAILED ${name}"`)
  writeFileSync(join(dir, 'work', 'clients.sh'), `${lines.join('\n')}\n`)
  const grant = [
    '--preset',
    'read-only',
    '--secret',
    'TOKEN=API_KEY@api.outside.example',
    '--config',
    join(dir, 'ringfence.toml'),
  ]
  const ran = await ringfence(
    ['run', '--backend', backend, '--workspace', join(dir, 'work'), ...grant, '--', 'sh', 'clients.sh'],
    env,
    as,
  )
  expect(ran.code, ran.stderr + ran.stdout).toBe(0)
  expect(ran.stdout + ran.stderr).not.toMatch(/FAILED|the-real-value/)
  for (const name of chosen) {
    const path = name === 'git' ? '/git/info/refs' : `/${name}`
    expect(ran.seen, ran.stderr + ran.stdout).toContain(`${path} Bearer ${VALUE}`)
    if (name !== 'git') expect(ran.stdout).toMatch(/you sent Bearer rfs_[0-9a-f]{48}/)
  }
}

const asRoot = process.getuid?.() === 0 && canUnshare()

describe.skipIf(!asRoot)('a brokered secret over HTTPS', () => {
  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), 'rf-secrets-https-'))
    makeFiles()
    const line = `ip link set lo up && ip addr add 93.184.215.14/32 dev lo && mount --bind "${dir}/hosts" /etc/hosts && exec "$0" "$@"`
    const args = [process.execPath, join(root, 'test', 'fixtures', 'secrets-outside.mjs'), dir]
    outside = spawn('unshare', ['--net', '--mount', 'sh', '-c', line, ...args], {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    })
    expect(await heard()).toBe('ready')
  })
  afterAll(() => {
    outside?.kill()
    rmSync(dir, { recursive: true, force: true })
  })

  it('is tested with a CA bundle that is too large for one variable', () => {
    expect(statSync(SYSTEM_BUNDLE).size).toBeGreaterThan(MAX_ARG_STRLEN)
  })

  it('works on bubblewrap with curl, git, Python, Node and Go', () =>
    tryClients('bubblewrap', Object.keys(CLIENTS)))

  it.each([['bubblewrap'], ['gvisor']])(
    'works on %s for an unprivileged user',
    async (backend) => {
      if (backend === 'gvisor' && (!full || whyNot('gvisor') !== undefined)) return
      const state = join(dir, `state-${backend}`)
      mkdirSync(state, { mode: 0o700 })
      for (const path of [state, join(dir, 'work')]) chownSync(path, ORDINARY, ORDINARY)
      for (const path of [dir, join(dir, 'cert.pem')]) chmodSync(path, 0o755)
      const as = ['setpriv', '--reuid', `${ORDINARY}`, '--regid', `${ORDINARY}`, '--clear-groups']
      await tryClients(backend, Object.keys(CLIENTS), { RINGFENCE_HOME: state, HOME: state }, as)
    },
    180_000,
  )

  it.skipIf(whyNot('gvisor') !== undefined)(
    'works on gVisor',
    () => tryClients('gvisor', full ? Object.keys(CLIENTS) : ['curl', 'python']),
    180_000,
  )

  it.skipIf(!full || whyNoMachine() !== undefined)(
    'works in a virtual machine',
    async () => {
      await machineImages()
      await tryClients('microvm', Object.keys(CLIENTS))
    },
    180_000,
  )

  it.skipIf(!full).each(['docker', 'podman'] as const)(
    'works on %s',
    async (name) => {
      if (whyNot(name) !== undefined) return
      const engine: TestEngine = await (name === 'docker' ? startDocker() : startPodman())
      try {
        const env = { DOCKER_HOST: `unix://${engine.socket}` }
        await tryClients('docker', Object.keys(CLIENTS), env)
      } finally {
        await engine.close()
      }
    },
    180_000,
  )
})
