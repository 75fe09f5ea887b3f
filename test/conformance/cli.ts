import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { Backend } from '../../src/backends/backend.ts'
import { bubblewrap } from '../../src/backends/bubblewrap/backend.ts'
import { docker } from '../../src/backends/docker/backend.ts'
import { gvisor } from '../../src/backends/gvisor/backend.ts'
import { native } from '../../src/backends/native/backend.ts'
import { WritableRoots } from '../../src/host/root/writable-roots.ts'
import { GUARANTEE_NAMES, type Guarantee } from '../../src/model/guarantee.ts'
import type { Isolation } from '../../src/model/spec.ts'
import { isFine, runSuite, runUses } from '../../src/prove/suite.ts'
import { machineImages, machines } from '../backends/microvm-parts.ts'
import { testBackend } from '../kubernetes/lab.ts'
import { startDocker, startPodman, testImages, testState } from './engines.ts'
import { MACHINE_SABOTAGES, SABOTAGES } from './sabotage.ts'
import { applySabotage, FrontWay } from './through-front.ts'
import { makeWorld, packageRoot, planOf, type World } from './world.ts'

/**
 * The suite as a program, so that it can also run as another user and print itself for GUARANTEES.md.
 *   node dist/test/conformance.js [--json] [--only fs.read,…] [--few N] [--mutation] [--root]
 *     [--front] [--backend bubblewrap|docker|podman|gvisor|microvm|kubernetes] [--runsc PATH]
 */
const agent = join(packageRoot(), 'dist', 'guest', 'ringfence-agent')
if (!existsSync(agent)) throw new Error('the guest agent is not built: npm run setup')

/** The backend in question, and how to end what it needs. */
type Tried = { readonly backend: Backend; readonly close: () => Promise<void> }

const probePlan = (isolation?: Isolation) =>
  planOf({ limits: { wallMs: 10_000 }, ...(isolation ? { isolation } : {}) })

async function tried(name: string): Promise<Tried> {
  const shared = { agent, probePlan, images: testImages(), stateDir: testState() }
  if (name === 'bubblewrap') return { backend: wall(), close: async () => {} }
  if (name === 'gvisor') {
    const runsc = argument('--runsc')
    return { backend: gvisor({ ...shared, ...(runsc ? { runsc } : {}) }), close: async () => {} }
  }
  if (name === 'microvm') {
    await machineImages()
    const backend = machines()
    return { backend, close: () => backend.close() }
  }
  if (name === 'kubernetes') {
    const backend = testBackend()
    return { backend, close: () => backend.close() }
  }
  const engine = await (name === 'podman' ? startPodman() : startDocker())
  const backend = docker({ ...shared, sockets: [engine.socket], owner: 'conformance', epoch: '0-0' })
  return { backend, close: () => engine.close() }
}

const wall = (sabotage?: (vector: readonly string[]) => readonly string[]) =>
  bubblewrap({
    agent,
    probePlan,
    ...(sabotage ? { sabotage } : {}),
  })

async function main(): Promise<number> {
  const world = await makeWorld()
  const control = native({ ...process.env, ...world.env } as Record<string, string>)
  Object.assign(process.env, world.env)
  const only = argument('--only')?.split(',') as Guarantee[] | undefined
  const loud = !process.argv.includes('--json')
  const show = (text: string): void => {
    if (loud) process.stdout.write(text)
  }
  const few = argument('--few')
  const { backend, close } = await tried(argument('--backend') ?? 'bubblewrap')
  const front = process.argv.includes('--front')
  try {
    if (process.argv.includes('--mutation'))
      return await mutate(mutations(backend.name, front), control, show)
    if (front) return await throughFront(backend, control, world, { only, show })
    const rows = await runSuite(backend, control, world, {
      only,
      few: few === undefined ? undefined : Number(few),
      roots: process.argv.includes('--root')
        ? new WritableRoots(join(testState(), 'roots'), agent)
        : undefined,
      onRow: (row) =>
        show(
          `${row.verdict.padEnd(15)} ${row.guarantee.padEnd(16)} ${row.attack}${row.why ? ` (${row.why})` : ''}\n`,
        ),
    })
    const uses = only || process.argv.includes('--root') ? [] : await runUses(backend, world)
    for (const use of uses)
      show(`${(use.ok ? 'works' : 'BROKEN').padEnd(15)} ${use.name}${use.ok ? '' : `: ${use.said}`}\n`)
    if (!loud) process.stdout.write(`${JSON.stringify({ rows, uses })}\n`)
    const bad = rows.filter((row) => !isFine(row)).length + uses.filter((use) => !use.ok).length
    show(`${rows.length + uses.length - bad} passed, ${bad} failed\n`)
    return bad === 0 ? 0 : 1
  } finally {
    await close()
    await world.close()
  }
}

type Show = (text: string) => void

/** Every attack as `ringfence run` through the native front and a broker. */
async function throughFront(
  backend: Backend,
  control: Backend,
  world: World,
  { only, show }: { readonly only: readonly Guarantee[] | undefined; readonly show: Show },
): Promise<number> {
  const way = new FrontWay()
  const wrapped = way.wrap(backend, world.probe)
  // Attacks between commands need a sandbox that runs several.
  const alone = GUARANTEE_NAMES.filter((name) => !name.endsWith('.between'))
  const rows = await way.run(() => runSuite(wrapped, control, world, { only: only ?? alone }))
  const bad = rows.filter((row) => !isFine(row))
  for (const row of bad) show(`${row.verdict.padEnd(15)} ${row.guarantee} ${row.attack} (${row.why})\n`)
  show(`${way.counts}\n${rows.length - bad.length} passed, ${bad.length} failed\n`)
  return bad.length === 0 ? 0 : 1
}

type Mutation = {
  readonly name: string
  readonly breaks: readonly Guarantee[]
  readonly backend: () => Backend
  /** How its commands are started; absent: by the backend itself. */
  readonly way?: () => FrontWay
}

const mutations = (name: string, front: boolean): readonly Mutation[] =>
  name === 'microvm'
    ? MACHINE_SABOTAGES.map(({ parts, ...rest }) => ({ ...rest, backend: () => machines(parts) }))
    : SABOTAGES.filter(({ breaks }) => !front || !breaks.includes('proc.between')).map(
        ({ sabotage, ...rest }) => ({
          ...rest,
          backend: () => wall(sabotage),
          ...(front ? { way: () => new FrontWay(rest.name) } : {}),
        }),
      )

/** Each sabotage must be noticed by at least one proof of the guarantees that it breaks. */
async function mutate(
  all: readonly Mutation[],
  control: ReturnType<typeof native>,
  show: Show,
): Promise<number> {
  let missed = 0
  for (const { name, breaks, backend, way: started } of all) {
    // What one attack left outside must not count for the next.
    const world = await makeWorld()
    const way = started?.()
    const suite = () =>
      runSuite(way?.wrap(backend(), world.probe) ?? backend(), control, world, { only: breaks })
    const rows = await (way?.run(suite) ?? suite()).catch((error: Error) => [
      { guarantee: breaks[0] as Guarantee, attack: '', verdict: 'failed' as const, why: error.message },
    ])
    await world.close()
    const caught = rows.find((row) => row.verdict === 'broken' || row.verdict === 'accepted')
    if (!caught) missed++
    show(
      `${(caught ? 'caught' : 'MISSED').padEnd(8)} ${name}${caught ? `: ${caught.guarantee}, ${caught.attack}` : `: ${JSON.stringify(rows.find((row) => !isFine(row)) ?? {})}`}\n`,
    )
  }
  show(`${all.length - missed} passed, ${missed} failed\n`)
  return missed === 0 ? 0 : 1
}

function argument(name: string): string | undefined {
  const at = process.argv.indexOf(name)
  return at < 0 ? undefined : process.argv[at + 1]
}

/** The sabotage that a broken broker asks for (`--apply NAME`). */
const asked = SABOTAGES.find(({ name }) => name === argument('--apply'))
if (asked) applySabotage(asked.sabotage)
else process.exitCode = await main()
