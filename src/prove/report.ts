import { readFileSync } from 'node:fs'
import { arch, release } from 'node:os'
import { canonical } from '../audit/canonical.ts'
import { type SigningKey, verifyKeyOf } from '../audit/chain.ts'
import type { BackendProof, ProofMode } from './prove.ts'

/** Everything that `ringfence prove` found on one host. */
export type ProofReport = {
  readonly ringfence: string
  readonly node: string
  readonly kernel: string
  readonly arch: string
  readonly system: string
  readonly uid: number
  readonly time: string
  readonly mode: ProofMode
  readonly backends: readonly BackendProof[]
}

/** A report with the signature of the host's audit log key. */
export type SignedReport = {
  readonly report: ProofReport
  /** The signer's key: 32 bytes in base64url. */
  readonly public_key: string
  readonly signature: string
}

/** The report of this host. */
export const reportOf = (
  version: string,
  mode: ProofMode,
  time: Date,
  backends: readonly BackendProof[],
): ProofReport => ({
  ringfence: version,
  node: process.version,
  kernel: release(),
  arch: arch(),
  system: systemName(),
  uid: process.getuid?.() ?? -1,
  time: time.toISOString(),
  mode,
  backends,
})

function systemName(): string {
  try {
    return /^PRETTY_NAME="?([^"\n]*)/m.exec(readFileSync('/etc/os-release', 'utf8'))?.[1] ?? process.platform
  } catch {
    return process.platform
  }
}

// SECURITY: the name of the statement is signed too, so a signature of the key for anything else is no report.
const statement = (report: ProofReport): Buffer =>
  Buffer.from(canonical({ report, statement: 'ringfence proof report v1' }))

/** Signs a report. */
export const signReport = (report: ProofReport, key: SigningKey): SignedReport => ({
  report,
  public_key: key.x,
  signature: key.sign(statement(report)).toString('base64'),
})

type Fields = Readonly<Record<string, unknown>>
const hasTexts = (value: unknown, names: readonly string[]): value is Fields =>
  typeof value === 'object' &&
  value !== null &&
  names.every((name) => typeof (value as Fields)[name] === 'string')
const isListOf = (value: unknown, isOne: (one: unknown) => boolean): boolean =>
  Array.isArray(value) && value.every(isOne)

/** SECURITY: a signature says who wrote a file, not that what is in it can be read as a report. */
const isReport = (value: unknown): boolean =>
  hasTexts(value, ['ringfence', 'kernel', 'system', 'time', 'mode']) && isListOf(value.backends, isProof)

const isProof = (value: unknown): boolean =>
  hasTexts(value, ['backend']) &&
  isListOf(
    value.guarantees,
    (one) => hasTexts(one, ['guarantee', 'verdict']) && [one.held, one.tried].every(Number.isInteger),
  ) &&
  isListOf(value.attacks, (one) => hasTexts(one, ['guarantee', 'attack', 'verdict', 'why']))

/** Checks the signature of a report; with `trusted`, also that this key made it. A string describes the problem. */
export function checkReport(value: unknown, trusted?: string): SignedReport | string {
  const { report, public_key, signature } = (value ?? {}) as Partial<SignedReport>
  if (!report || typeof public_key !== 'string' || typeof signature !== 'string')
    return 'it is not a signed report'
  if (!isReport(report)) return 'it is not a report of this version of ringfence'
  if (trusted !== undefined && trusted !== public_key) return 'it is signed with another key'
  try {
    const bytes = Buffer.from(signature, 'base64')
    const holds =
      bytes.toString('base64') === signature && verifyKeyOf(public_key).hasSigned(statement(report), bytes)
    return holds ? { report, public_key, signature } : 'its signature is not valid'
  } catch {
    return 'its signature is not valid'
  }
}
