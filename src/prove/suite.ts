import { randomBytes } from 'node:crypto'
import { closeSync, existsSync, mkdtempSync, openSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Backend, BackendSandbox } from '../backends/backend.ts'
import { missingOf, SandboxRegistry } from '../backends/registry.ts'
import { run } from '../host/process/run.ts'
import type { WritableRoots } from '../host/root/writable-roots.ts'
import { readText, systemProgram } from '../host/system.ts'
import type { ExecResult } from '../model/command.ts'
import { SandboxError } from '../model/errors.ts'
import { GUARANTEE_NAMES, type Guarantee } from '../model/guarantee.ts'
import { type Attack, sleep } from './attack.ts'
import { PROOFS } from './proofs.ts'
import { USES } from './uses.ts'
import { freshWorkspace, openFor, planOf, type World } from './world.ts'

/**
 * The rule: what a backend claims it must prove; a plan that needs what it does not claim must be refused; and an
 * attack that does not succeed on `native` proves nothing. There is no third way to pass and no list of exceptions.
 */
type Verdict = 'held' | 'broken' | 'refused' | 'accepted' | 'vacuous' | 'not-applicable' | 'failed'
/** What one attack showed. */
export type Row = {
  readonly guarantee: Guarantee
  readonly attack: string
  readonly verdict: Verdict
  readonly why: string
}

/** Prepares writable roots. */
export type Roots = Pick<WritableRoots, 'prepare'>

/** Whether a row is as it should be. */
export const isFine = (row: Row): boolean => ['held', 'refused', 'not-applicable'].includes(row.verdict)

const NETWORK_OF: Partial<Record<Guarantee, string>> = { 'net.loopback': 'loopback', 'net.fetch': 'fetch' }

/** Runs an attack as the root user of a sandbox with a writable root, whose workspace is a directory of its own. */
async function succeedsAsRoot(
  backend: Backend,
  attack: Attack,
  world: World,
  waive: readonly Guarantee[],
  roots: Roots,
): Promise<boolean> {
  const workspace = '/workspace'
  const dir = mkdtempSync(join(world.workspace, 'root-'))
  const limits = { wallMs: 20_000, ...attack.limits }
  const { diskMb = 100 } = limits as { readonly diskMb?: number }
  const root = await roots.prepare({ dir, diskMb })
  const spec = { backend: backend.name, private: [workspace], root: 'writable', read: [world.probe], waive }
  const sandbox = await openFor(backend, { ...spec, ...attack.spec, limits }, root)
  let seen: Seen | undefined
  try {
    const mark = `seen-${randomBytes(8).toString('hex')}`
    await sandbox.files.write(`${workspace}/${mark}`, [])
    const argv = ['/bin/bash', '-c', `cd ${workspace}\n${attack.script(world, workspace)}`] as const
    const result = await besideVictim(sandbox, attack, workspace, () =>
      sandbox.exec({ ...attack.command, argv, user: 'root' }),
    )
    seen = await opened(sandbox, { workspace, mark }, attack)
    await sandbox.close()
    return await attack.succeeded(result, world, seen?.path ?? '/nonexistent')
  } finally {
    await sandbox.close()
    seen?.release()
  }
}

/** The workspace of a sandbox as the host sees it, also when the sandbox is gone. */
type Seen = { readonly path: string; readonly release: () => void }

/** An attack on the memory limit may have ended the sandbox; its output tells whether it succeeded. */
async function opened(
  sandbox: BackendSandbox,
  { workspace, mark }: { readonly workspace: string; readonly mark: string },
  { limits }: Attack,
): Promise<Seen | undefined> {
  try {
    const layers = (await sandbox.layers()).join(' ')
    if (layers.includes('microvm')) return await copiedOut(sandbox, workspace)
    const fd = openSync(seenFromHost(layers, workspace, mark), 'r')
    return { path: `/proc/self/fd/${fd}`, release: () => closeSync(fd) }
  } catch (error) {
    if (limits?.memoryMb === undefined) throw error
    return undefined
  }
}

/** The host does not see the files of a machine. */
async function copiedOut(sandbox: BackendSandbox, path: string): Promise<Seen> {
  const dir = mkdtempSync(join(tmpdir(), 'rf-copied-'))
  const pieces: Uint8Array[] = []
  for await (const piece of sandbox.files.pack(path)) pieces.push(piece)
  const launch = { file: systemProgram('tar') ?? 'tar', args: ['-x', '--no-same-owner', '-C', dir] }
  await run(
    { ...launch, env: {}, cwd: '/', control: false },
    { wallMs: 60_000 },
    { stdin: Buffer.concat(pieces) },
  )
  return { path: dir, release: () => rmSync(dir, { recursive: true, force: true }) }
}

/**
 * A directory of the sandbox, through the first of its processes. An isolated command has a first process too, one level deeper.
 * The file `mark` tells the sandbox from one that has just ended, whose first process may still be there.
 */
function seenFromHost(layers: string, path: string, mark: string): string {
  const id = /root-user\(host id (\d+)\)/.exec(layers)?.[1]
  const levels = (pid: string): number => {
    const status = /^\d+$/.test(pid) ? (readText(`/proc/${pid}/status`) ?? '') : ''
    const numbers = /^NSpid:\t(.*\t1)$/m.exec(status)?.[1]?.split('\t') ?? []
    return status.includes(`\nUid:\t${id}\t`) ? numbers.length : 0
  }
  const firsts = readdirSync('/proc').map((pid) => ({ pid, levels: levels(pid) }))
  const found = firsts
    .filter(({ levels }) => levels > 0)
    .sort((a, b) => a.levels - b.levels)
    .map(({ pid }) => join('/proc', pid, 'root', path))
    .find((directory) => existsSync(join(directory, mark)))
  if (found === undefined) throw new Error('the sandbox has no first process')
  return found
}

/** Runs an attack while the attack's victim, if it has one, runs in the same sandbox. */
async function besideVictim(
  sandbox: BackendSandbox,
  { victim, victimCommand }: Attack,
  workspace: string,
  attack: () => Promise<ExecResult>,
): Promise<ExecResult> {
  if (victim === undefined) return attack()
  const argv = ['/bin/bash', '-c', `cd ${workspace}\n${victim}`] as const
  const running = await sandbox.start({ ...victimCommand, argv })
  try {
    await Promise.race([
      whenReady(() => sandbox.files.stat(`${workspace}/ready`)),
      running.result.then(({ stderr }) => {
        throw new Error(`the other command ended: ${Buffer.from(stderr).toString('utf8')}`)
      }),
    ])
    return await attack()
  } finally {
    running.signal('SIGKILL')
    await running.result.catch(() => {})
  }
}

const READY_TRIES = 400

async function whenReady(look: () => Promise<unknown>): Promise<void> {
  for (let tries = 0; tries < READY_TRIES; tries++) {
    const found = await look().then(
      () => true,
      () => false,
    )
    if (found) return
    await sleep(25)
  }
  throw new Error('the other command did not become ready')
}

/** Where commands are kept apart, the control is the same sandbox without that. */
const controlOf = (attack: Attack, backend: Backend, control: Backend): readonly [Backend, Attack] =>
  attack.victim === undefined
    ? [control, attack]
    : [backend, { ...attack, spec: { ...attack.spec, isolation: 'sandbox' } }]

async function attackWith(
  backend: Backend,
  attack: Attack,
  world: World,
  limited: boolean,
  waive: readonly Guarantee[],
): Promise<{ result: ExecResult; workspace: string }> {
  const workspace = freshWorkspace(world)
  const limits = limited ? { wallMs: 20_000, ...attack.limits } : {}
  const sandbox = await openFor(backend, {
    backend: backend.name,
    workspace,
    read: backend.name === 'native' ? [] : [world.probe],
    // What the wall does not keep is no part of this proof; that it is refused is another.
    waive,
    ...attack.spec,
    limits,
  })
  try {
    const argv = ['/bin/bash', '-c', attack.script(world, workspace)] as const
    const result = await besideVictim(sandbox, attack, workspace, () =>
      sandbox.exec({ ...attack.command, argv }),
    )
    return { result, workspace }
  } finally {
    await sandbox.close()
  }
}

const isGone = (error: unknown): boolean =>
  error instanceof SandboxError &&
  error.code === 'wrong-state' &&
  error.message.includes('the sandbox is gone')

async function succeeds(
  backend: Backend,
  attack: Attack,
  world: World,
  limited: boolean,
  waive: readonly Guarantee[] = [],
): Promise<boolean> {
  const { result, workspace } = await attackWith(backend, attack, world, limited, waive)
  return attack.succeeded(result, world, workspace)
}

/** Enough for every attack on the limit of memory. */
const AMPLE_MB = 1024

/**
 * An attack on the memory limit may end its own sandbox: that counts as held. To show that the limit was the reason, the same attack
 * must succeed on the same backend with ample memory. Every other attack that ends the sandbox counts as a failure of the proof.
 */
async function succeedsOrEnds(
  backend: Backend,
  attack: Attack,
  world: World,
  waive: readonly Guarantee[],
): Promise<boolean> {
  try {
    return await succeeds(backend, attack, world, true, waive)
  } catch (error) {
    if (attack.limits?.memoryMb === undefined || !isGone(error)) throw error
    const ample = { ...attack, limits: { ...attack.limits, memoryMb: AMPLE_MB } }
    if (await succeeds(backend, ample, world, true, waive)) return false
    throw new Error('the sandbox ended, and not because of the limit: with ample memory the attack fails too')
  }
}

/** How often an attack may be tried where there is no wall, until it succeeds. */
const CONTROL_TRIES = 3

/** One attack on one backend, with what the same attack does where there is no wall. */
async function prove(
  backend: Backend,
  control: Backend,
  guarantee: Guarantee,
  attack: Attack,
  world: World,
  waive: readonly Guarantee[],
  roots: Roots | undefined,
): Promise<Row> {
  const row = (verdict: Verdict, why = ''): Row => ({ guarantee, attack: attack.name, verdict, why })
  const tried = roots
    ? () => succeedsAsRoot(backend, attack, world, waive, roots)
    : () => succeedsOrEnds(backend, attack, world, waive)
  try {
    if (await tried()) return row('broken', `the attack succeeded on ${backend.name}`)
    const reason = attack.notApplicable?.(world, backend)
    if (reason) return row('not-applicable', reason)
    const [without, same] = controlOf(attack, backend, control)
    // An attack that wins a race does not win it every time.
    for (let tries = 0; tries < CONTROL_TRIES; tries++)
      if (await succeeds(without, same, world, false, waive)) return row('held')
    return row('vacuous', 'the attack fails even without a wall')
  } catch (error) {
    return row('failed', (error as Error).message)
  }
}

/** A plan that needs something unclaimed must not get this backend. */
async function mustRefuse(
  backend: Backend,
  guarantee: Guarantee,
  world: World,
  unclaimed: readonly Guarantee[],
): Promise<Row> {
  const registry = new SandboxRegistry().register(backend, 1)
  const row = (verdict: Verdict, why = ''): Row => ({
    guarantee,
    attack: 'a plan that needs it',
    verdict,
    why,
  })
  const network = NETWORK_OF[guarantee]
  const limits = { 'limit.fuel': { fuel: 1 }, 'limit.cpu': { cpus: 1 }, 'limit.disk': { diskMb: 1 } }[
    guarantee as string
  ]
  const plan = planOf({
    workspace: world.workspace,
    waive: unclaimed.filter((name) => name !== guarantee),
    ...(network ? { network: { mode: network } } : {}),
    ...(limits ? { limits } : {}),
    ...(guarantee === 'proc.between' ? { isolation: 'command' } : {}),
  })
  const needs = plan.needs.includes(guarantee) ? plan : undefined
  if (!needs) {
    const probe = await backend.probe()
    const gap = probe.available && missingOf([guarantee], probe.guarantees).length === 1
    return gap ? row('refused', 'no spec asks for it yet; the gap is seen') : row('accepted')
  }
  try {
    await registry.select(needs)
    return row('accepted', `${backend.name} took a plan that it cannot keep`)
  } catch {
    return row('refused')
  }
}

/** What to run, and where to report it. */
export type SuiteOptions = {
  readonly only?: readonly Guarantee[] | undefined
  readonly onRow?: ((row: Row) => void) | undefined
  /** At most so many attacks of each guarantee, spread over all of them. */
  readonly few?: number | undefined
  /** Ends the run before the next attack. */
  readonly signal?: AbortSignal | undefined
  /** Attacks as the root user of sandboxes with a writable root. */
  readonly roots?: Roots | undefined
}

/** In a writable root nothing of the host is writable, so no name in it needs protection. */
const guaranteesFor = ({ roots }: SuiteOptions): readonly Guarantee[] =>
  GUARANTEE_NAMES.filter((name) => !roots || name !== 'fs.protect')

const someOf = <T>(all: readonly T[], few: number | undefined): readonly T[] =>
  few === undefined || all.length <= few
    ? all
    : Array.from({ length: few }, (_, index) => all[Math.floor((index * all.length) / few)] as T)

/** Every guarantee on one backend. */
export async function runSuite(
  backend: Backend,
  control: Backend,
  world: World,
  options: SuiteOptions = {},
): Promise<readonly Row[]> {
  const probe = await backend.probe()
  if (!probe.available) throw new Error(`${backend.name} is not available: ${probe.reason}`)
  const unclaimed = GUARANTEE_NAMES.filter((name) => !probe.guarantees.includes(name))
  const rows: Row[] = []
  for (const guarantee of options.only ?? guaranteesFor(options)) {
    const claimed = probe.guarantees.includes(guarantee)
    const proofs = claimed
      ? someOf(PROOFS[guarantee], options.few).map(
          (attack) => () => prove(backend, control, guarantee, attack, world, unclaimed, options.roots),
        )
      : [() => mustRefuse(backend, guarantee, world, unclaimed)]
    if (claimed && proofs.length === 0)
      rows.push({ guarantee, attack: 'none', verdict: 'failed', why: 'claimed, but there is no proof' })
    for (const proof of proofs) {
      if (options.signal?.aborted) return rows
      const row = await proof()
      rows.push(row)
      options.onRow?.(row)
    }
  }
  return rows
}

/** The ordinary things that must work inside. */
export async function runUses(
  backend: Backend,
  world: World,
): Promise<readonly { readonly name: string; readonly ok: boolean; readonly said: string }[]> {
  const rows = []
  const probe = await backend.probe()
  const waive = GUARANTEE_NAMES.filter((name) => probe.available && !probe.guarantees.includes(name))
  // An emulator that interprets the guest's instructions needs fifteen times as long.
  const wallMs = backend.emulated ? 240_000 : backend.level === 'gvisor' ? 60_000 : 20_000
  const claimed = USES.filter(({ needs }) => needs === undefined || !waive.includes(needs))
  for (const use of claimed) {
    const workspace = freshWorkspace(world)
    const script = typeof use.script === 'string' ? use.script : use.script(world)
    const sandbox = await backend.open(
      planOf({ backend: backend.name, workspace, read: [world.probe], waive, limits: { wallMs } }),
    )
    const result = await sandbox.exec({ argv: ['/bin/bash', '-c', script] })
    const said = Buffer.from(result.stdout).toString('utf8') + Buffer.from(result.stderr).toString('utf8')
    rows.push({ name: use.name, ok: said.includes(use.says), said })
    await sandbox.close()
  }
  return rows
}
