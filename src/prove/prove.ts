import type { Backend } from '../backends/backend.ts'
import { native } from '../backends/native/backend.ts'
import type { StoredProof } from '../host/proof-store.ts'
import { GUARANTEE_NAMES, type Guarantee } from '../model/guarantee.ts'
import { isFine, type Roots, type Row, runSuite } from './suite.ts'
import { makeWorld } from './world.ts'

/** How much is tried: one attack for each guarantee, all attacks, or all of them as root of a writable root too. */
export type ProofMode = StoredProof['mode']

/** What was found about one guarantee. */
type GuaranteeProof = {
  readonly guarantee: Guarantee
  /** `not-claimed`: the backend refuses plans that need it. `not-tried`: the run ended before, or was limited to others. */
  readonly verdict: 'proven' | 'broken' | 'not-applicable' | 'not-claimed' | 'not-tried'
  readonly held: number
  readonly tried: number
}

/** What was found about one backend. */
export type BackendProof = {
  readonly backend: string
  readonly level: string
  readonly emulated: boolean
  readonly guarantees: readonly GuaranteeProof[]
  readonly attacks: readonly Row[]
  readonly duration_ms: number
}

/** What to try, and where to say how far it is. */
export type ProveOptions = {
  readonly mode: ProofMode
  /** The program that makes system calls which no shell can make. */
  readonly probe: string
  readonly only?: readonly Guarantee[] | undefined
  readonly roots?: Roots | undefined
  readonly signal?: AbortSignal | undefined
  readonly onRow?: ((row: Row) => void) | undefined
}

/**
 * Runs the attacks on one backend, each with a control run without isolation. What the attacks aim at is created for this and
 * removed again: directories, processes, sockets, a variable in our own environment.
 */
export async function proveBackend(backend: Backend, options: ProveOptions): Promise<BackendProof> {
  const started = Date.now()
  const world = await makeWorld(options.probe)
  const control = native({ ...process.env, ...world.env } as Record<string, string>)
  Object.assign(process.env, world.env)
  try {
    const few = options.mode === 'quick' ? 1 : undefined
    const { only, signal, onRow, roots } = options
    const rows = [...(await runSuite(backend, control, world, { only, few, signal, onRow }))]
    if (options.mode === 'full' && roots && backend.level !== 'gvisor')
      rows.push(...(await asRoot(backend, control, world, { only, signal, onRow, roots })))
    const { name, level, emulated } = backend
    const guarantees = GUARANTEE_NAMES.map((guarantee) => summaryOf(guarantee, rows))
    return { backend: name, level, emulated, guarantees, attacks: rows, duration_ms: Date.now() - started }
  } finally {
    for (const name of Object.keys(world.env)) delete process.env[name]
    await world.close()
  }
}

async function asRoot(...suite: Parameters<typeof runSuite>): Promise<readonly Row[]> {
  const rows = await runSuite(...suite)
  return rows.map((row) => ({ ...row, attack: `${row.attack}, as root of a writable root` }))
}

function summaryOf(guarantee: Guarantee, all: readonly Row[]): GuaranteeProof {
  const rows = all.filter((row) => row.guarantee === guarantee)
  const held = rows.filter(({ verdict }) => verdict === 'held').length
  return { guarantee, verdict: verdictOf(rows, held), held, tried: rows.length }
}

function verdictOf(rows: readonly Row[], held: number): GuaranteeProof['verdict'] {
  if (rows.length === 0) return 'not-tried'
  if (rows.every(({ verdict }) => verdict === 'refused')) return 'not-claimed'
  if (rows.some((row) => !isFine(row))) return 'broken'
  return held > 0 ? 'proven' : 'not-applicable'
}

/** The part of a result that is kept on this host. */
export function storedProof(proof: BackendProof, mode: ProofMode, time: Date): StoredProof {
  const named = (verdict: string): readonly Guarantee[] =>
    proof.guarantees.filter((one) => one.verdict === verdict).map(({ guarantee }) => guarantee)
  return {
    backend: proof.backend,
    time: time.toISOString(),
    mode,
    proven: named('proven'),
    broken: named('broken'),
  }
}
