import { execFile, execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { newId } from '../../src/compose/compose.ts'
import { openStore } from '../../src/store/open.ts'
import { Keys } from '../../src/supervisor/access/keys.ts'
import { packageRoot } from '../conformance/world.ts'
import { noFullCluster } from '../kubernetes/lab.ts'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { until } from '../server/process.ts'
import { callAt } from '../server/test-server.ts'
import { newCluster } from './fleet.ts'

/**
 * deploy/kubernetes/base on a real cluster, beside the settings of test/kubernetes: RINGFENCE_TEST_FLEET_IMAGE is the image of
 * `npm run image`, which its nodes have; RINGFENCE_TEST_ADDRESS is where Pods reach this process, and RINGFENCE_TEST_PODS the network of the
 * Pods. RINGFENCE_TEST_NODE_STATE is a directory that each machine has for itself.
 */
const {
  RINGFENCE_TEST_KUBECTL: kubectl,
  RINGFENCE_TEST_FAULTS: faults,
  RINGFENCE_TEST_FLEET_IMAGE: image,
  RINGFENCE_TEST_ADDRESS: address,
  RINGFENCE_TEST_PODS: pods = '10.0.0.0/8',
  RINGFENCE_TEST_NODE_STATE: state = '/var/lib/ringfence',
} = process.env
const NAMESPACE = 'ringfence-fleet'
const MINUTES = 60_000

function isMissing(): boolean {
  if (noFullCluster()) return true
  const missing = Object.entries({ KUBECTL: kubectl, FAULTS: faults, FLEET_IMAGE: image, ADDRESS: address })
    .filter(([, value]) => value === undefined)
    .map(([name]) => `RINGFENCE_TEST_${name}`)
  if (missing.length > 0)
    process.stderr.write(`skipped: fleet on kubernetes: ${missing.join(', ')} not set\n`)
  return missing.length > 0
}

const kube = async (...args: string[]): Promise<string> =>
  (await promisify(execFile)(kubectl ?? '', ['-n', NAMESPACE, ...args])).stdout
const fault = (...args: string[]) => promisify(execFile)(faults ?? '', args)

/** The manifests as an operator would change them for this cluster: the image, its name, and an API version that 1.20 has. */
function manifests(): string {
  const base = execFileSync(
    kubectl ?? '',
    ['kustomize', join(packageRoot(), 'deploy', 'kubernetes', 'base')],
    {
      encoding: 'utf8',
    },
  )
  const { major, minor } = (
    JSON.parse(execFileSync(kubectl ?? '', ['version', '-o', 'json'], { encoding: 'utf8' })) as {
      serverVersion: { major: string; minor: string }
    }
  ).serverVersion
  const isOld = Number(major) === 1 && Number.parseInt(minor, 10) < 21
  return base
    .replaceAll('ringfence:latest', image ?? '')
    .replaceAll(/(name|namespace): ringfence$/gm, (line, field: string) =>
      field === 'namespace' ? `namespace: ${NAMESPACE}` : line,
    )
    .replace(/kind: Namespace\nmetadata:([\s\S]*?)name: ringfence$/m, (text) => `${text}-fleet`)
    .replaceAll('path: /var/lib/ringfence', `path: ${state}`)
    .replaceAll('apiVersion: policy/v1\n', isOld ? 'apiVersion: policy/v1beta1\n' : 'apiVersion: policy/v1\n')
}

type PodList = {
  items: {
    metadata: { name: string; deletionTimestamp?: string }
    spec: { nodeName: string }
    status: { podIP: string; containerStatuses?: { ready: boolean }[] }
  }[]
}

describe.skipIf(isMissing())('the fleet on kubernetes', () => {
  const dir = mkdtempSync(join(tmpdir(), 'rf-fleet-k8s-'))
  let postgres: Postgres
  let key = ''
  const readyPods = async (app: string) => {
    const list = JSON.parse(await kube('get', 'pods', '-l', `app=${app}`, '-o', 'json')) as PodList
    return list.items.filter(
      ({ metadata, status }) =>
        metadata.deletionTimestamp === undefined && status.containerStatuses?.every(({ ready }) => ready),
    )
  }
  /** Any replica answers; one that was replaced meanwhile is left out, as a Service would. */
  const ask = async (method: string, path: string, body?: object) => {
    for (let tries = 0; ; tries++) {
      const [pod] = await readyPods('ringfence-api')
      try {
        return await callAt(`http://${pod?.status.podIP}:4200`, method, path, { key, ...(body && { body }) })
      } catch (error) {
        if (tries > 20 || method === 'POST') throw error
        await new Promise((resolve) => setTimeout(resolve, 250))
      }
    }
  }
  type Node = { name: string; state: string; role: string; backends: string[]; schedule: string }
  const nodes = async (): Promise<Node[]> => (await ask('GET', '/v1/nodes')).json.items
  const upNodes = async () =>
    (await nodes()).filter(
      ({ state: one, role, backends }) => one === 'up' && role === 'node' && backends.length > 0,
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
    postgres = await startPostgres({ address: address ?? '', clients: pods })
    const databaseUrl = postgres.fresh('kubernetes')
    ;(await newCluster(databaseUrl)).save(join(dir, 'cluster.key'))
    const store = await openStore({ stateDir: dir, databaseUrl })
    key = (await new Keys(store, newId).create({ scopes: ['create', 'exec', 'read', 'admin'] })).secret
    await store.close()
    writeFileSync(join(dir, 'database-url'), databaseUrl)
    writeFileSync(join(dir, 'fleet.yaml'), manifests())
    await kube('create', 'namespace', NAMESPACE).catch(() => {})
    await kube('label', 'nodes', '--all', '--overwrite', 'ringfence=node')
    const files = ['cluster.key', 'database-url'].map((name) => `--from-file=${join(dir, name)}`)
    await kube('create', 'secret', 'generic', 'ringfence', ...files)
    await kube('apply', '-f', join(dir, 'fleet.yaml'))
    const isUp = async () => (await readyPods('ringfence-api')).length === 2 && (await upNodes()).length === 2
    expect(await until(isUp, 3 * MINUTES), await kube('get', 'pods', '-o', 'wide')).toBe(true)
  }, 5 * MINUTES)
  afterAll(async () => {
    if (key !== '')
      await kube('delete', 'namespace', NAMESPACE, '--wait=true', '--timeout=120s').catch(() => {})
    await postgres?.stop()
    rmSync(dir, { recursive: true, force: true })
  }, 3 * MINUTES)

  /** Commands in a sandbox, one after the other, with what each was answered. */
  const load = (id: string) => {
    let isOn = true
    const answers: { at: number; status: number; kept: boolean }[] = []
    let turn = 0
    const working = (async () => {
      while (isOn) {
        const command = `echo ${turn} >> /tmp/log`
        const done = await ask('POST', `/v1/sandboxes/${id}/exec`, { command }).catch(() => undefined)
        answers.push({ at: turn++, status: done?.status ?? 0, kept: done?.json?.outcome?.code === 0 })
        if (done?.status !== 200) await new Promise((resolve) => setTimeout(resolve, 200))
      }
    })()
    return {
      answers,
      stop: async () => {
        isOn = false
        await working
      },
    }
  }

  test('a rolling update of the replicas under load loses nothing that was answered', {
    timeout: 5 * MINUTES,
  }, async () => {
    const id = await created({})
    const working = load(id)
    await kube('rollout', 'restart', 'deployment/api')
    await kube('rollout', 'status', 'deployment/api', '--timeout=180s')
    await working.stop()
    const log = (await run(id, 'cat /tmp/log')).trim().split('\n')
    const kept = working.answers.filter((one) => one.kept)
    const refused = working.answers.filter((one) => !one.kept)
    process.stderr.write(`rolling update: ${kept.length} commands answered, ${refused.length} refused\n`)
    expect(log).toEqual(expect.arrayContaining(kept.map(({ at }) => String(at))))
    expect(await view(id)).toMatchObject({ state: 'ready', generation: 1 })
    await ask('DELETE', `/v1/sandboxes/${id}`)
  })

  test('a drained node: what agreed moves with its files, and its new Pod serves again', {
    timeout: 5 * MINUTES,
  }, async () => {
    const [from] = await upNodes()
    const placement = { node: from?.name ?? '' }
    const agreed = await created({ restart: true, placement })
    await run(agreed, 'echo kept > /tmp/file')
    await ask('POST', `/v1/nodes/${from?.name}/drain`, {})
    const isMoved = async () => {
      const { state: now, generation } = await view(agreed)
      return now === 'ready' && generation === 2
    }
    expect(await until(isMoved, MINUTES), JSON.stringify(await view(agreed))).toBe(true)
    expect(await run(agreed, 'cat /tmp/file')).toBe('kept\n')
    const [pod] = (await readyPods('ringfence-node')).filter(({ spec }) => spec.nodeName === from?.name)
    await kube('delete', 'pod', pod?.metadata.name ?? '', '--wait=true')
    await ask('POST', `/v1/nodes/${from?.name}/uncordon`, {})
    expect(await until(async () => (await upNodes()).length === 2, 2 * MINUTES)).toBe(true)
    await ask('POST', `/v1/nodes/${from?.name}/uncordon`, {})
    await ask('DELETE', `/v1/sandboxes/${agreed}`)
  })

  test('a killed kubelet ends nothing; a killed machine loses its sandboxes, and those that agreed start elsewhere', {
    timeout: 8 * MINUTES,
  }, async () => {
    const [from] = await upNodes()
    const placement = { node: from?.name ?? '' }
    const plain = await created({ placement })
    const agreed = await created({ restart: true, placement })
    await run(agreed, 'echo kept > /tmp/file')
    expect((await ask('POST', `/v1/sandboxes/${agreed}/snapshot`, {})).status).toBe(201)
    await fault('stop', from?.name ?? '')
    try {
      const isAway = async () =>
        /NotReady|Unknown/.test(await kube('get', 'node', from?.name ?? '', '--no-headers'))
      expect(await until(isAway, 2 * MINUTES)).toBe(true)
      // The cluster thinks that the machine is gone; the processes on it, and their leases, go on.
      expect(await run(plain, 'echo alive')).toBe('alive\n')
      const killedAt = Date.now()
      await fault('kill', from?.name ?? '', 'ringfence-node')
      const isBack = async () => {
        const { state: now, generation } = await view(agreed)
        return now === 'ready' && generation === 2
      }
      expect(await until(isBack, 2 * MINUTES), JSON.stringify(await view(agreed))).toBe(true)
      process.stderr.write(`killed machine: its sandbox is back after ${Date.now() - killedAt} ms\n`)
      expect(await run(agreed, 'cat /tmp/file')).toBe('kept\n')
      expect(await view(plain)).toMatchObject({
        state: 'failed',
        reason: expect.stringContaining('node-lost'),
      })
    } finally {
      await fault('start', from?.name ?? '')
    }
    expect(await until(async () => (await upNodes()).length === 2, 3 * MINUTES)).toBe(true)
  })

  test('the manifests that ran are those of the repository', () => {
    const text = readFileSync(join(dir, 'fleet.yaml'), 'utf8')
    for (const kind of ['Deployment', 'DaemonSet', 'Service', 'PodDisruptionBudget', 'ConfigMap'])
      expect(text).toContain(`kind: ${kind}`)
  })
})
