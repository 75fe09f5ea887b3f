import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { loadKey } from '../audit/anchor.ts'
import { openTrail } from '../audit/trail.ts'
import type { Backend } from '../backends/backend.ts'
import { agentPath, compose, proofsOf, type Ringfence } from '../compose/compose.ts'
import { probePath } from '../compose/files.ts'
import { writeAtomically } from '../host/files/atomic-file.ts'
import { WritableRoots } from '../host/root/writable-roots.ts'
import { SandboxError } from '../model/errors.ts'
import { GUARANTEE_NAMES, type Guarantee } from '../model/guarantee.ts'
import { visible, visibleJson } from '../model/text/visible.ts'
import { VERSION } from '../model/version.ts'
import { type BackendProof, type ProofMode, proveBackend, storedProof } from '../prove/prove.ts'
import { checkReport, reportOf, signReport } from '../prove/report.ts'
import { parseOptions, usage } from './options/options.ts'
import { table } from './server/remote.ts'
import { err, out } from './terminal/output.ts'

const OPTIONS = {
  quick: { type: 'boolean' },
  full: { type: 'boolean' },
  only: { type: 'string', multiple: true },
  report: { type: 'string' },
  verify: { type: 'string' },
  key: { type: 'string' },
} as const

type Values = ReturnType<typeof parseOptions<typeof OPTIONS>>['values']

/** `ringfence prove`: attacks every guarantee on this host and says which ones hold. */
export async function prove(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('prove', args, OPTIONS)
  if (values.verify !== undefined) return verify(values.verify, values.key, values.json)
  if (values.quick && values.full) throw usage('prove', 'use either --quick or --full')
  const mode: ProofMode = values.quick ? 'quick' : values.full ? 'full' : 'standard'
  const only = values.only?.flatMap((names) => names.split(',')).map(guaranteeOf)
  const ringfence = await compose({ config: values.config, policy: values.policy })
  try {
    const backends = await chosen(ringfence, positionals)
    const stop = interruptions()
    const proofs: BackendProof[] = []
    for (const backend of backends) {
      if (stop.signal.aborted) break
      proofs.push(await proveOne(ringfence, backend, { mode, only, signal: stop.signal }, values))
    }
    await finish(ringfence, proofs, mode, values)
    if (stop.signal.aborted) return 130
    return proofs.some(({ guarantees }) => guarantees.some(({ verdict }) => verdict === 'broken')) ? 1 : 0
  } finally {
    await ringfence.close()
  }
}

function guaranteeOf(name: string): Guarantee {
  if ((GUARANTEE_NAMES as readonly string[]).includes(name)) return name as Guarantee
  throw new SandboxError('invalid-input', `unknown guarantee \`${name}\``, {
    hint: `one of: ${GUARANTEE_NAMES.join(', ')}`,
  })
}

/** The named backends, or all that isolate commands on this host. */
async function chosen({ registry }: Ringfence, names: readonly string[]): Promise<readonly Backend[]> {
  const found: Backend[] = []
  for (const backend of registry.list()) {
    const named = names.includes(backend.name)
    const local = backend.level !== 'native' && !REMOTE.includes(backend.name)
    if (named && !local) throw usage('prove', `\`${backend.name}\` isolates nothing on this host`)
    if (!named && (names.length > 0 || !local)) continue
    const probe = await registry.probe(backend.name)
    if (probe.available) found.push(backend)
    else if (named)
      throw new SandboxError('backend-unavailable', `${backend.name}: ${probe.reason}`, { hint: probe.fix })
    else err(`ringfence: ${backend.name} is not available: ${visible(probe.reason)}\n`)
  }
  const unknown = names.find((name) => !found.some((backend) => backend.name === name))
  if (unknown !== undefined) throw usage('prove', `unknown backend \`${unknown}\``)
  if (found.length === 0)
    throw new SandboxError('backend-unavailable', 'no backend isolates commands on this host', {
      hint: 'run `ringfence doctor`',
    })
  return found
}

const REMOTE = ['mock', 'e2b', 'openshell']

/** The first Ctrl-C ends after the current attack and cleans up; the second ends at once. */
function interruptions(): AbortController {
  const stop = new AbortController()
  const onSignal = (): void => {
    if (stop.signal.aborted) process.exit(130)
    err('ringfence: stopping after this attack; Ctrl-C again ends at once\n')
    stop.abort()
  }
  process.on('SIGINT', onSignal)
  process.on('SIGTERM', onSignal)
  return stop
}

type Chosen = {
  readonly mode: ProofMode
  readonly only: readonly Guarantee[] | undefined
  readonly signal: AbortSignal
}

async function proveOne(
  ringfence: Ringfence,
  backend: Backend,
  { mode, only, signal }: Chosen,
  values: Values,
): Promise<BackendProof> {
  let count = 0
  const all = new WritableRoots(join(ringfence.stateDir, 'proofs', 'roots'), agentPath())
  // Only root can have them.
  const roots = all.unavailable() ? undefined : all
  const proof = await proveBackend(backend, {
    mode,
    probe: probePath(),
    only,
    roots,
    signal,
    onRow: (row) => {
      count++
      if (!values.quiet)
        err(
          `${backend.name} ${count}: ${row.verdict.padEnd(14)} ${row.guarantee.padEnd(16)} ${row.attack}${row.why && ` (${visible(row.why)})`}\n`,
        )
    },
  })
  // A run that was limited or interrupted says nothing about what it did not try.
  if (!only && !signal.aborted) proofsOf(ringfence).save(storedProof(proof, mode, new Date()))
  return proof
}

async function finish(
  ringfence: Ringfence,
  proofs: readonly BackendProof[],
  mode: ProofMode,
  values: Values,
): Promise<void> {
  const report = reportOf(VERSION, mode, new Date(), proofs)
  if (values.report !== undefined) {
    const signed = signReport(report, await signingKey(ringfence.stateDir))
    writeAtomically(values.report, `${JSON.stringify(signed, null, 2)}\n`)
    err(`wrote ${values.report}, signed with the key ${signed.public_key}\n`)
  }
  out(values.json ? `${visibleJson(report)}\n` : textOf(proofs))
}

/** The key of this host's audit log, which is created where there is none yet. */
async function signingKey(stateDir: string) {
  const known = loadKey(stateDir)
  if (known) return known
  await (await openTrail({ home: stateDir })).close()
  const made = loadKey(stateDir)
  if (!made) throw new SandboxError('internal', 'the audit log has no key')
  return made
}

/** A row for each guarantee, a column for each backend, and what broke. */
function textOf(proofs: readonly BackendProof[]): string {
  const cell = ({ guarantees }: BackendProof, name: Guarantee): string => {
    const { verdict, held, tried } = guarantees.find(({ guarantee }) => guarantee === name) ?? {
      verdict: 'not-tried',
    }
    if (verdict === 'proven') return `proven (${held})`
    return verdict === 'broken'
      ? `BROKEN (${(tried ?? 0) - (held ?? 0)} of ${tried})`
      : verdict.replace('-', ' ')
  }
  const rows = GUARANTEE_NAMES.map((name) => [name, ...proofs.map((proof) => cell(proof, name))])
  const broken = proofs.flatMap(({ backend, attacks }) =>
    attacks
      .filter(({ verdict }) => !['held', 'refused', 'not-applicable'].includes(verdict))
      .map(
        ({ guarantee, attack, verdict, why }) =>
          `  ${visible(`${backend}: ${guarantee}: ${attack}: ${verdict}${why && ` (${why})`}`)}\n    repeat: ringfence prove ${backend} --only ${guarantee}\n`,
      ),
  )
  return `${table([['GUARANTEE', ...proofs.map(({ backend }) => backend.toUpperCase())], ...rows])}${broken.length > 0 ? `\nnot proven:\n${broken.join('')}` : ''}`
}

function readReport(file: string): unknown {
  try {
    return JSON.parse(readFileSync(file, 'utf8'))
  } catch (cause) {
    throw new SandboxError(
      'invalid-input',
      `\`${visible(file)}\` cannot be read as a report: ${visible((cause as Error).message)}`,
      { cause },
    )
  }
}

function verify(file: string, key: string | undefined, json: boolean | undefined): number {
  const checked = checkReport(readReport(file), key)
  if (typeof checked === 'string') {
    out(json ? `${visibleJson({ ok: false, problem: checked })}\n` : `bad: ${checked}\n`)
    return 1
  }
  const { report, public_key } = checked
  const signer = key === undefined ? '; give --key KEY to check whose key that is' : ''
  const summary = `ok: signed by ${public_key} on ${report.time}, ${report.system}, kernel ${report.kernel}, ringfence ${report.ringfence}, mode ${report.mode}${signer}`
  out(
    json
      ? `${visibleJson({ ok: true, public_key, report })}\n`
      : `${visible(summary)}\n\n${textOf(report.backends)}`,
  )
  return 0
}
