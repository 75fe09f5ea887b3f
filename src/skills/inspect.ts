import { type Capability, grantsName } from '../policy/grants/capability.ts'
import { type Ask, asksOf } from './manifest.ts'
import type { SkillPackage } from './package.ts'
import { type Finding, importsOf, injectionPhrases, tellingImports, variablesRead } from './scan.ts'

/** The report that a person should read before running a skill. */
export type Inspection = {
  readonly name: string
  readonly version: string | undefined
  readonly description: string | undefined
  readonly dir: string
  readonly runtime: { readonly type: string; readonly entry: string }
  readonly hash: string
  readonly files: number
  readonly bytes: number
  /** Requested capabilities by kind, as written in the manifest. */
  readonly asks: Readonly<Record<string, readonly string[]>>
  readonly env: readonly string[]
  /** Requests that are wider than usual. They are granted only if the caller names them. */
  readonly redFlags: readonly Finding[]
  readonly imports: readonly string[]
  /** Environment variables that the code reads and the manifest does not declare. */
  readonly undeclared: readonly string[]
  readonly findings: readonly Finding[]
}

/** Inspects a skill without running any of its code. */
export function inspectSkill(skill: SkillPackage): Inspection {
  const { manifest, dir, hash, files } = skill
  const asks = asksOf(manifest)
  const imports = importsOf(skill)
  const declared = asks.map(({ capability }) => capability)
  const byKind: Record<string, string[]> = {}
  for (const { kind, value } of asks) byKind[kind] = [...(byKind[kind] ?? []), value]
  return {
    name: manifest.skill.name,
    version: manifest.skill.version,
    description: manifest.skill.description,
    dir,
    runtime: { type: manifest.runtime.type, entry: manifest.runtime.entry },
    hash,
    files: files.length,
    bytes: files.reduce((sum, { bytes }) => sum + bytes.length, 0),
    asks: byKind,
    env: Object.keys(manifest.env ?? {}),
    redFlags: asks.flatMap((ask) => flagOf(ask) ?? []),
    imports,
    undeclared: undeclaredVariables(skill).filter((name) => !grantsName(declared, 'EnvRead', name)),
    findings: [...injectionPhrases(skill), ...tellingImports(imports), ...manyTools(asks)],
  }
}

const SECRET = /key|token|secret|passw|credential|auth|_url$|dsn/i

const isWide = ({ kind, value }: Ask): boolean =>
  kind === 'network' ? /^\*(:|$)/.test(value) : /^\*+$/.test(value) || value === '/**'

/** Why a requested capability is a red flag, or `undefined`. */
function flagOf(ask: Ask): Finding | undefined {
  const { kind, value } = ask
  const shown = `${kind} = ["${value}"]`
  if (isWide(ask)) return { severity: 'critical', what: `${shown}: everything` }
  if (kind === 'shell') return { severity: 'critical', what: `${shown}: runs programs` }
  if ((kind === 'file_read' || kind === 'file_write') && value.startsWith('/'))
    return { severity: 'warning', what: `${shown}: outside the workspace` }
  if (kind === 'network' && value.startsWith('*.'))
    return { severity: 'warning', what: `${shown}: every name below it` }
  if (kind === 'env' && (value.includes('*') || SECRET.test(value)))
    return { severity: 'warning', what: `${shown}: reads like a secret` }
  return undefined
}

/** SECURITY: flagged capabilities are never granted by the manifest alone. */
export function grantsOf(skill: SkillPackage): {
  readonly granted: readonly Capability[]
  readonly withheld: readonly Capability[]
} {
  const asks = asksOf(skill.manifest)
  const flagged = asks.filter((ask) => flagOf(ask) !== undefined)
  const granted = asks.filter((ask) => !flagged.includes(ask))
  return {
    granted: granted.map(({ capability }) => capability),
    withheld: flagged.map(({ capability }) => capability),
  }
}

const MANY_TOOLS = 10

const manyTools = (asks: readonly Ask[]): readonly Finding[] =>
  asks.filter(({ kind }) => kind === 'tools').length > MANY_TOOLS
    ? [{ severity: 'info', what: `asks for more than ${MANY_TOOLS} tools` }]
    : []

/** Set for every script, so no manifest has to declare them. */
const ALWAYS = ['PATH', 'HOME', 'LANG']

/** Environment variables that the code reads and `[env]` does not set; without a grant they are not set when it runs. */
export function undeclaredVariables(skill: SkillPackage): readonly string[] {
  const { env = {} } = skill.manifest
  return variablesRead(skill).filter((name) => !ALWAYS.includes(name) && !Object.hasOwn(env, name))
}
