import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { openStore } from '../../src/store/open.ts'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { until } from '../server/process.ts'
import { FULL } from '../server/test-server.ts'
import { makeNetwork, type Network } from './network.ts'
import { type NodeProcess, type Processes, startProcesses } from './processes.ts'
import { startWitness, type Witness } from './witness.ts'

/** Random faults of three nodes in networks of their own. Needs root, iptables and libfaketime. */

const ROUNDS = Number(process.env.RINGFENCE_ROUNDS ?? 200)
const LEASE_MS = 3000
const NAMES = ['n1', 'n2', 'n3']
const FAKETIME = ['x86_64', 'aarch64']
  .map((cpu) => `/usr/lib/${cpu}-linux-gnu/faketime/libfaketime.so.1`)
  .find((path) => existsSync(path))
const isPossible = process.getuid?.() === 0 && existsSync('/usr/sbin/iptables') && FAKETIME !== undefined

const percentile = (values: readonly number[], share: number): number =>
  values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * share))] ?? 0
const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

/** Faults after which another node takes over, and those that nothing is lost by. */
const TAKEOVERS = ['kill', 'restart', 'stop', 'cut from the database', 'cut from everything'] as const
const HARMLESS = [
  'database hangs',
  'database restarts',
  'cut from the peers',
  'clock jumps',
  'disk full',
] as const
type Fault = (typeof TAKEOVERS)[number] | (typeof HARMLESS)[number]
const FAULTS: readonly Fault[] = [...TAKEOVERS, ...HARMLESS]

describe.runIf(FULL && isPossible)('faults under load', () => {
  test(`${ROUNDS} rounds of random faults lose no record, and no write of an old epoch succeeds`, {
    timeout: 7_200_000,
  }, async () => {
    const world = await makeWorld()
    try {
      const rounds = new FaultRounds(world)
      for (let round = 0; round < ROUNDS; round++) await rounds.round(round)
      console.log(rounds.report())
      expect(rounds.old, 'effects of an old epoch after a takeover').toBe(0)
      expect(rounds.lostRecords, rounds.notes.join('; ')).toBe(0)
      expect(percentile(rounds.takeovers, 0.99)).toBeLessThanOrEqual(LEASE_MS + 1000)
      expect(await world.unfinished()).toBe(0)
    } finally {
      await world.close()
    }
  })
})

type World = {
  readonly postgres: Postgres
  readonly network: Network
  readonly witness: Witness
  readonly fleet: Processes
  /** Sets the clock of a node to another time, in seconds from now. */
  readonly setClock: (name: string, seconds: number) => void
  readonly unfinished: () => Promise<number>
  readonly close: () => Promise<void>
}

async function makeWorld(): Promise<World> {
  const network = makeNetwork(NAMES)
  const base = mkdtempSync(join(tmpdir(), 'rf-faults-'))
  const postgres = await startPostgres({ address: network.database })
  const witness = await startWitness(network.outside)
  const setClock: World['setClock'] = (name, seconds) =>
    writeFileSync(join(base, `${name}.time`), `${seconds >= 0 ? '+' : ''}${seconds}s\n`)
  const disks = NAMES.map((name) => join(base, name))
  for (const [at, dir] of disks.entries()) {
    execFileSync('mkdir', [dir])
    // A disk of its own, to be filled.
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=300m', 'tmpfs', dir])
    setClock(NAMES[at] as string, 0)
  }
  const fleet = await startProcesses(postgres.url, {
    names: NAMES,
    rest: witness.config,
    each: (name) => ({
      dir: join(base, name, 'node'),
      address: network.address(name),
      wrap: network.wrap(name),
      env: {
        LD_PRELOAD: FAKETIME ?? '',
        FAKETIME_TIMESTAMP_FILE: join(base, `${name}.time`),
        FAKETIME_NO_CACHE: '1',
        FAKETIME_DONT_FAKE_MONOTONIC: '1',
      },
    }),
  })
  return {
    postgres,
    network,
    witness,
    fleet,
    setClock,
    unfinished: async () => {
      const store = await openStore({ stateDir: '/tmp', databaseUrl: postgres.url })
      const [row] = await store.read(
        "SELECT COUNT(*) AS n FROM sandboxes WHERE state NOT IN ('destroyed', 'failed')",
      )
      await store.close()
      return Number(row?.n)
    },
    close: async () => {
      await fleet.close()
      await witness.close()
      await postgres.stop()
      for (const dir of disks) execFileSync('umount', ['-l', dir])
      network.remove()
      rmSync(base, { recursive: true, force: true })
    },
  }
}

type Round = {
  readonly fault: Fault
  readonly victim: number
  readonly node: NodeProcess
  readonly other: NodeProcess
  readonly ids: readonly string[]
  readonly names: readonly string[]
}

class FaultRounds {
  readonly takeovers: number[] = []
  readonly notes: string[] = []
  readonly #world: World
  readonly #counts = new Map<Fault, number>()
  readonly #nodes: NodeProcess[]
  old = 0
  fenced = 0
  restarted = 0
  lostRecords = 0

  constructor(world: World) {
    this.#world = world
    this.#nodes = [...world.fleet.nodes]
  }

  async round(at: number): Promise<void> {
    const fault = FAULTS[at % FAULTS.length] as Fault
    this.#counts.set(fault, (this.#counts.get(fault) ?? 0) + 1)
    await this.#revive()
    const victim = (at + Math.floor(at / FAULTS.length)) % 3
    const other = this.#nodes[(victim + 1) % 3] as NodeProcess
    const node = this.#nodes[victim] as NodeProcess
    // One that is lost with its node, and one that starts again elsewhere.
    const names = [`r${at}a`, `r${at}b`]
    const ids = [
      await this.#beating(other, node.name, `r${at}a`, false),
      await this.#beating(other, node.name, `r${at}b`, true),
    ]
    const round = { fault, victim, node, other, ids, names }
    if ((TAKEOVERS as readonly Fault[]).includes(fault)) await this.#takeover(round)
    else await this.#harmless(round)
    for (const id of ids)
      await until(async () => {
        const done = await other.call('DELETE', `/v1/sandboxes/${id}`).catch(() => undefined)
        return done?.status === 200
      })
  }

  /** On a busy machine a node may lose its lease by itself; its engine would start it again. */
  async #revive(): Promise<void> {
    for (const [at, { child, name }] of this.#nodes.entries()) {
      if (child.exitCode === null && child.signalCode === null) continue
      this.fenced++
      this.#nodes[at] = await this.#world.fleet.start(name)
    }
  }

  async #beating(through: NodeProcess, node: string, name: string, restart: boolean): Promise<string> {
    let id = ''
    const isUp = await until(async () => {
      const body = { network: { mode: 'fetch' }, placement: { node }, restart }
      const made = await through.call('POST', '/v1/sandboxes', { body }).catch(() => undefined)
      id = made?.status === 201 ? made.json.id : ''
      return id !== ''
    }, 30_000)
    if (!isUp) throw new Error(`no sandbox on ${node}`)
    const body = { command: this.#world.witness.command(name), background: true }
    await through.call('POST', `/v1/sandboxes/${id}/exec`, { body })
    if (!(await until(() => this.#world.witness.of(name).length > 2)))
      throw new Error(`${name} does not beat`)
    return id
  }

  #lose(what: string): void {
    this.lostRecords++
    this.notes.push(what)
  }

  /** Everything goes on during the fault, or after it. */
  async #harmless({ fault, node, other, ids, names }: Round): Promise<void> {
    const { witness } = this.#world
    const counts = (): number[] => names.map((name) => witness.of(name).length)
    await this.#during(fault, node)
    const [before] = counts()
    const goesOn = await until(() => (counts()[0] ?? 0) > (before ?? 0) + 2, 20_000)
    if (!goesOn) this.#lose(`${fault}: ${names[0]} does not go on`)
    for (const id of ids) {
      const isThere = await until(async () => {
        const seen = await other.call('GET', `/v1/sandboxes/${id}`).catch(() => undefined)
        return ['ready', 'executing'].includes(seen?.json.state)
      }, 20_000)
      if (!isThere) this.#lose(`${fault}: sandbox ${id}`)
    }
  }

  async #during(fault: Fault, node: NodeProcess): Promise<void> {
    const { postgres, network, setClock } = this.#world
    if (fault === 'database hangs') {
      postgres.freeze()
      await sleep(LEASE_MS + 500)
      postgres.thaw()
    } else if (fault === 'database restarts') await postgres.restart()
    else if (fault === 'cut from the peers') {
      network.cut(
        node.name,
        NAMES.filter((name) => name !== node.name).map((name) => network.address(name)),
      )
      await sleep(LEASE_MS + 500)
      network.heal(node.name)
    } else if (fault === 'clock jumps')
      for (const seconds of [7200, -7200, 0]) {
        setClock(node.name, seconds)
        await sleep(LEASE_MS / 2)
      }
    else await this.#fillDisk(node)
  }

  /** A full disk refuses new work there; the fleet goes on elsewhere. */
  async #fillDisk(node: NodeProcess): Promise<void> {
    const filler = join(node.dir, 'filler')
    execFileSync('sh', ['-c', 'head -c 400m /dev/zero > "$1" || true', 'sh', filler], { stdio: 'ignore' })
    const refused = await node
      .call('POST', '/v1/sandboxes', { body: { placement: { node: node.name } } })
      .catch(() => undefined)
    if (refused?.status === 201) this.#lose('a create on a full disk was accepted')
    rmSync(filler)
    await sleep(200)
  }

  async #takeover(round: Round): Promise<void> {
    const { fault, node, other, ids, names, victim } = round
    const { network, fleet, witness } = this.#world
    const began = performance.now()
    if (fault === 'stop') node.child.kill('SIGSTOP')
    else if (fault === 'kill' || fault === 'restart') node.child.kill('SIGKILL')
    else network.cut(node.name, this.#cutOff(fault, node.name))
    if (fault === 'restart') this.#nodes[victim] = await fleet.start(node.name)
    const state = async (id: string) =>
      (await other.call('GET', `/v1/sandboxes/${id}`).catch(() => undefined))?.json
    const [lost, again] = ids as [string, string]
    if (!(await until(async () => (await state(lost))?.state === 'failed', 15_000)))
      this.#lose(`${fault}: ${lost} is not reported`)
    const takenOver = performance.now()
    this.takeovers.push(takenOver - began)
    const isBack = await until(async () => {
      const seen = await state(again)
      return seen?.generation === 2 && seen.state === 'ready'
    }, 15_000)
    if (isBack) this.restarted++
    else this.#lose(`${fault}: ${again} does not start again`)
    if (fault === 'stop') node.child.kill('SIGCONT')
    if (fault.startsWith('cut')) network.heal(node.name)
    if (fault === 'stop' || fault.startsWith('cut')) await node.ended
    await sleep(300)
    this.old += names.flatMap((name) => witness.of(name)).filter(({ at }) => at > takenOver).length
    if (fault !== 'restart') this.#nodes[victim] = await fleet.start(node.name)
  }

  #cutOff(fault: Fault, self: string): readonly string[] {
    const { network } = this.#world
    const peers = NAMES.filter((name) => name !== self).map((name) => network.address(name))
    return fault === 'cut from everything' ? [network.database, ...peers] : [network.database]
  }

  report(): string {
    const faults = [...this.#counts].map(([name, count]) => `${count} ${name}`).join(', ')
    return [
      `faults: ${faults}`,
      `effects of an old epoch after a takeover: ${this.old}; acknowledged records lost: ${this.lostRecords}; started again elsewhere: ${this.restarted}; fenced besides: ${this.fenced}`,
      `takeover p50 ${Math.round(percentile(this.takeovers, 0.5))} ms, p99 ${Math.round(percentile(this.takeovers, 0.99))} ms (lease ${LEASE_MS} ms)`,
      ...this.notes,
    ].join('\n')
  }
}
