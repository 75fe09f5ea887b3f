import { execFile, execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { newId } from '../../src/compose/compose.ts'
import { openStore } from '../../src/store/open.ts'
import { Keys } from '../../src/supervisor/access/keys.ts'
import { packageRoot } from '../conformance/world.ts'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { until } from '../server/process.ts'
import { callAt } from '../server/test-server.ts'
import { newCluster } from './fleet.ts'

/**
 * deploy/swarm on three real Docker engines. RINGFENCE_TEST_SWARM_LAB is a directory with `swarm-up.sh`, `swarm-node.sh` and
 * `swarm-down.sh`, which start engines in `./swarmlab/n1` to `n3` with the addresses 10.231.0.1 to 10.231.0.3, kill one, and stop all.
 * RINGFENCE_TEST_IMAGE_TAR is what `npm run image` writes.
 */
const FULL = process.env.RINGFENCE_FULL === '1'
const lab = process.env.RINGFENCE_TEST_SWARM_LAB ?? join(packageRoot(), '..', 'shared', 'lab')
const image = process.env.RINGFENCE_TEST_IMAGE_TAR ?? join(packageRoot(), 'dist', 'ringfence-image.tar')
const HOST = '10.231.0.254'
const MINUTES = 60_000
const NODES = [1, 2, 3] as const

function whyNot(): string | undefined {
  if (process.getuid?.() !== 0) return 'this is not root'
  if (!existsSync(join(lab, 'swarm-up.sh'))) return `${lab} has no swarm-up.sh`
  if (!existsSync(image)) return `${image} is missing: npm run image`
  return spawnSync('dockerd', ['--version']).status === 0 ? undefined : 'docker.io is not installed'
}
const missing = FULL ? whyNot() : 'RINGFENCE_FULL is not 1'
if (FULL && missing) process.stderr.write(`skipped: swarm: ${missing}\n`)

describe.skipIf(missing !== undefined)('the stack on docker swarm', () => {
  const dir = mkdtempSync(join(tmpdir(), 'rf-swarm-'))
  const at = (node: number): string => join(dir, 'swarmlab', `n${node}`)
  let postgres: Postgres
  let key = ''

  /** The scripts name a relative directory, from which an engine does not find its own containerd. */
  const script = (name: string, ...args: string[]): void => {
    const text = readFileSync(join(lab, name), 'utf8').replaceAll('./swarmlab', join(dir, 'swarmlab'))
    const file = join(dir, name)
    writeFileSync(file, text)
    chmodSync(file, 0o755)
    execFileSync('bash', [file, ...args], { cwd: dir, stdio: 'ignore', timeout: 2 * MINUTES })
  }
  const env = (node: number) => ({ ...process.env, DOCKER_HOST: `unix://${at(node)}/d.sock` })
  const docker = async (node: number, ...args: string[]): Promise<string> =>
    (await promisify(execFile)('docker', args, { env: env(node), maxBuffer: 2 ** 24 })).stdout.trim()

  /** Any engine that has a replica answers. */
  const ask = async (method: string, path: string, body?: object) => {
    let last: unknown
    for (const node of NODES)
      try {
        return await callAt(`http://10.231.0.${node}:4200`, method, path, { key, ...(body && { body }) })
      } catch (error) {
        last = error
      }
    throw last
  }
  type Node = { name: string; state: string; role: string; backends: string[] }
  const upNodes = async (): Promise<Node[]> =>
    ((await ask('GET', '/v1/nodes')).json.items as Node[]).filter(
      ({ state, role, backends }) => state === 'up' && role === 'node' && backends.length > 0,
    )
  const view = async (id: string) => (await ask('GET', `/v1/sandboxes/${id}`)).json
  const created = async (body: object): Promise<string> => {
    const made = await ask('POST', '/v1/sandboxes', body)
    expect(made.status, made.text).toBe(201)
    return made.json.id
  }
  const run = async (id: string, command: string): Promise<string> => {
    const done = await ask('POST', `/v1/sandboxes/${id}/exec`, { command })
    expect(done.status, done.text).toBe(200)
    return done.json.stdout
  }

  beforeAll(async () => {
    script('swarm-up.sh')
    const link = ['link', 'add', 'rfswarm', 'type', 'veth', 'peer', 'name', 'porth', 'netns', 'swhub']
    for (const args of [
      link,
      ['-n', 'swhub', 'link', 'set', 'porth', 'master', 'br0', 'up'],
      ['addr', 'add', `${HOST}/24`, 'dev', 'rfswarm'],
      ['link', 'set', 'rfswarm', 'up'],
    ])
      execFileSync('ip', args)
    for (const node of NODES) await docker(node, 'load', '-i', image)
    await docker(1, 'swarm', 'init', '--advertise-addr', '10.231.0.1')
    const token = await docker(1, 'swarm', 'join-token', '-q', 'manager')
    for (const node of [2, 3])
      await docker(
        node,
        'swarm',
        'join',
        '--token',
        token,
        '--advertise-addr',
        `10.231.0.${node}`,
        '10.231.0.1:2377',
      )
    postgres = await startPostgres({ address: HOST })
    const databaseUrl = postgres.fresh('swarm')
    const keyFile = join(dir, 'cluster.key')
    ;(await newCluster(databaseUrl)).save(keyFile)
    const store = await openStore({ stateDir: dir, databaseUrl })
    key = (await new Keys(store, newId).create({ scopes: ['create', 'exec', 'read', 'admin'] })).secret
    await store.close()
    writeFileSync(join(dir, 'database-url'), databaseUrl)
    await docker(1, 'secret', 'create', 'ringfence_cluster_key', keyFile)
    await docker(1, 'secret', 'create', 'ringfence_database_url', join(dir, 'database-url'))
    const deploy = join(packageRoot(), 'deploy', 'swarm')
    await docker(
      1,
      'stack',
      'deploy',
      '--resolve-image',
      'never',
      '-c',
      join(deploy, 'stack.yml'),
      'ringfence',
    )
    for (const node of NODES) {
      const state = join(dir, `state${node}`)
      mkdirSync(state)
      execFileSync('sh', [join(deploy, 'node.sh')], {
        env: { ...env(node), DATABASE_URL: databaseUrl, KEY_FILE: keyFile, NAME: `m${node}`, STATE: state },
        stdio: 'ignore',
      })
    }
    const isUp = async () => (await upNodes().catch(() => [])).length === NODES.length
    expect(await until(isUp, 3 * MINUTES), await docker(1, 'service', 'ps', 'ringfence_api')).toBe(true)
  }, 8 * MINUTES)
  afterAll(async () => {
    for (const node of NODES) await docker(node, 'rm', '-f', 'ringfence-node').catch(() => {})
    script('swarm-down.sh')
    spawnSync('ip', ['link', 'del', 'rfswarm'])
    await postgres?.stop()
    rmSync(dir, { recursive: true, force: true })
  }, 3 * MINUTES)

  test('an engine dies: its sandbox with restart is back with its files, the other one is node-lost', {
    timeout: 5 * MINUTES,
  }, async () => {
    const placement = { node: 'm3' }
    const agreed = await created({ restart: true, placement })
    const plain = await created({ placement })
    await run(agreed, 'echo kept > /tmp/file')
    expect(await run(plain, 'echo alive')).toBe('alive\n')
    expect((await ask('POST', `/v1/sandboxes/${agreed}/snapshot`, {})).status).toBe(201)
    const killedAt = Date.now()
    script('swarm-node.sh', 'kill', '3')
    const isBack = async () => {
      const { state, generation } = await view(agreed)
      return state === 'ready' && generation === 2
    }
    expect(await until(isBack, 2 * MINUTES), JSON.stringify(await view(agreed))).toBe(true)
    process.stderr.write(`killed engine: its sandbox is back after ${Date.now() - killedAt} ms\n`)
    expect(await run(agreed, 'cat /tmp/file')).toBe('kept\n')
    expect(await view(plain)).toMatchObject({
      state: 'failed',
      reason: expect.stringContaining('node-lost'),
    })
  })
})
