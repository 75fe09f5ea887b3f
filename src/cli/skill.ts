import { compose, type Ringfence, skillRunner } from '../compose/compose.ts'
import type { Json } from '../model/event.ts'
import { shellWord } from '../model/text/shell-quote.ts'
import { visible, visibleJson } from '../model/text/visible.ts'
import { resultJson, type SkillResult } from '../skills/contract.ts'
import { createSkill } from '../skills/package.ts'
import type { InspectedSkill, SkillRunner } from '../skills/runner.ts'
import type { Finding } from '../skills/scan.ts'
import type { SkillSignature } from '../skills/signature.ts'
import { STARTER_LANGUAGES } from '../skills/starter.ts'
import { parseOptions, usage } from './options/options.ts'
import { err, out } from './terminal/output.ts'
import { exitCodeOf, noteUnreadConfig } from './wasm.ts'

const OPTIONS = {
  input: { type: 'string' },
  grant: { type: 'string', multiple: true },
  workspace: { type: 'string', short: 'w' },
  'agent-id': { type: 'string' },
  as: { type: 'string' },
  remove: { type: 'boolean' },
  lang: { type: 'string' },
} as const

type Values = ReturnType<typeof parseOptions<typeof OPTIONS>>['values']
type Call = {
  readonly ringfence: Ringfence
  readonly skills: SkillRunner
  readonly values: Values
  readonly target: string | undefined
  readonly agentId: string | undefined
}

const ACTIONS: Readonly<Record<string, (call: Call) => Promise<number>>> = {
  inspect,
  run,
  list,
  usage: showUsage,
  sign,
  verify,
  trust,
}

/** `ringfence skill init|inspect|run|list|usage|sign|verify|trust`. */
export async function skill(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('skill', args, OPTIONS)
  const [name = '', target, ...more] = positionals
  if (more.length > 0) throw usage('skill', `unexpected \`${more[0]}\``)
  if (name === 'init') return init(target, values)
  const action = Object.hasOwn(ACTIONS, name) ? ACTIONS[name] : undefined
  if (!action) throw usage('skill', 'missing action: init, inspect, run, list, usage, sign, verify or trust')
  if (target === undefined && ['inspect', 'run', 'sign', 'verify'].includes(name))
    throw usage('skill', `skill ${name} takes a directory or a name`)
  const ringfence = await compose({ config: values.config, policy: values.policy })
  const skills = await skillRunner(ringfence)
  try {
    const agentId = values['agent-id'] ?? ringfence.env.RINGFENCE_AGENT_ID
    return await action({ ringfence, skills, values, target, agentId })
  } finally {
    await skills.close()
    await ringfence.close()
  }
}

/** Writes the files of a new skill and says how to build and run it. */
function init(target: string | undefined, { lang, json }: Values): number {
  if (target === undefined) throw usage('skill', 'skill init takes a directory')
  if (lang === undefined)
    throw usage('skill', `skill init needs --lang, one of ${STARTER_LANGUAGES.join(', ')}`)
  const { files, build } = createSkill(target, lang)
  const input = lang === 'assemblyscript' ? '[1, 2]' : '"one two three"'
  const steps = [
    ...(build ? [`(cd ${shellWord(target)} && ${build})`] : []),
    `ringfence skill inspect ${shellWord(target)}`,
    `ringfence skill run ${shellWord(target)} --input '${input}'`,
  ]
  if (json) print({ directory: target, files, next: steps })
  else {
    say(`created ${files.map((file) => `${target}/${file}`).join(', ')}`)
    for (const step of steps) say(`  ${step}`)
  }
  return 0
}

const print = (value: unknown): boolean => out(`${visibleJson(value)}\n`)
const say = (line: string): boolean => out(`${visible(line)}\n`)

async function inspect({ skills, values, target = '' }: Call): Promise<number> {
  const found = await skills.inspect(target)
  if (values.json) print(inspectionJson(found))
  else showInspection(found)
  return 0
}

function inspectionJson(found: InspectedSkill): unknown {
  const { redFlags, ...rest } = found
  return { ...rest, red_flags: redFlags }
}

function showInspection(found: InspectedSkill): void {
  const { name, version, description, runtime, hash, asks, env, redFlags, imports, undeclared, findings } =
    found
  say(`${name}${version ? ` ${version}` : ''} (${runtime.type}, ${runtime.entry})`)
  if (description) say(`  ${description}`)
  say(`  sha256 ${hash}${found.changed ? '  (changed since the last inspection)' : ''}`)
  say(`  ${signatureText(found.signature)}`)
  const kinds = Object.entries(asks)
  say(kinds.length === 0 ? 'requests no capabilities' : 'requests')
  for (const [kind, wanted] of kinds) say(`  ${kind}: ${wanted.join(', ')}`)
  for (const request of found.added) say(`  + ${request}  (new since the last inspection)`)
  for (const request of found.removed) say(`  - ${request}  (no longer requested)`)
  const fromHost = (asks.env ?? []).filter((variable) => !env.includes(variable))
  if (fromHost.length > 0) say(`  (set only with --grant 'EnvRead(${fromHost[0]})')`)
  if (env.length > 0) say(`sets ${env.join(', ')}`)
  if (imports.length > 0) say(`imports ${imports.join(', ')}`)
  if (undeclared.length > 0) say(`reads without declaring: ${undeclared.join(', ')}`)
  const line = ({ severity, what, where }: Finding): string =>
    `  ${severity}: ${what}${where ? ` (${where})` : ''}`
  if (redFlags.length > 0) say('red flags, granted only with --grant')
  for (const flag of redFlags) say(line(flag))
  if (findings.length > 0) say('findings')
  for (const finding of findings) say(line(finding))
}

function signatureText({ state, key = '', signer = '' }: SkillSignature): string {
  switch (state) {
    case 'unsigned':
      return 'not signed'
    case 'invalid':
      return 'signature invalid: the files are not those that were signed'
    case 'untrusted':
      return `signed with a key that is not trusted: ${key}`
    case 'trusted':
      return `signed by ${signer} (${key})`
    default:
      return state satisfies never
  }
}

async function sign({ skills, values, target = '' }: Call): Promise<number> {
  const signed = await skills.read(target)
  const key = skills.signatures.sign(signed)
  if (values.json) print({ skill: signed.manifest.skill.name, hash: signed.hash, key })
  else say(`signed ${signed.manifest.skill.name} with the key ${key}`)
  return 0
}

/** Exits with 0 only if the signature is valid and its key is trusted. */
async function verify({ skills, values, target = '' }: Call): Promise<number> {
  const { manifest, hash, ...rest } = await skills.read(target)
  const found = skills.signatures.check({ manifest, hash, ...rest })
  const { name, version } = manifest.skill
  if (values.json) print({ skill: name, ...(version && { version }), hash, signature: found })
  else say(`${name}: ${signatureText(found)}`)
  return found.state === 'trusted' ? 0 : 1
}

async function trust({ skills, values, target }: Call): Promise<number> {
  const { signatures } = skills
  if (target !== undefined && values.remove) signatures.distrust(target)
  else if (target !== undefined) signatures.trust(target, values.as ?? target.slice(0, 8))
  const keys = Object.entries(signatures.trusted()).map(([key, { name, trusted_at }]) => ({
    key,
    name,
    trusted_at,
  }))
  if (values.json) print(keys)
  else for (const { key, name } of keys) say(`${key}  ${name}`)
  return 0
}

async function run({ ringfence, skills, values, target = '', agentId }: Call): Promise<number> {
  const result = await skills.run(target, {
    input: inputOf(values),
    agentId,
    notice: (text) => {
      if (!values.quiet) err(`ringfence: ${visible(text)}\n`)
    },
    ...(values.grant && { grants: values.grant }),
    ...(values.workspace !== undefined && { workspace: values.workspace }),
  })
  if (values.json) print(resultJson(result))
  else showResult(result, values)
  if ('error' in result && !values.quiet) noteUnreadConfig(result.error.code, ringfence)
  return 'ok' in result ? 0 : exitCodeOf(result.error.code)
}

/** Parses JSON; other text is passed as a string, so that a path need not be quoted twice. */
function inputOf({ input }: Values): Json {
  if (input === undefined) return null
  try {
    return JSON.parse(input) as Json
  } catch {
    return input
  }
}

function showResult(result: SkillResult, values: Values): void {
  const note = (line: string): void => {
    if (!values.quiet) err(`${line}\n`)
  }
  for (const { level, text } of result.log) note(`${level}: ${visible(text)}`)
  if ('ok' in result) out(`${typeof result.ok === 'string' ? result.ok : visibleJson(result.ok)}\n`)
  else err(`ringfence: ${result.error.code}: ${visible(result.error.message)}\n`)
  if (result.truncated) note('ringfence: output truncated')
  for (const text of result.withheld) note(`ringfence: not granted: ${visible(text)}`)
}

async function list({ skills, values, target }: Call): Promise<number> {
  const found = (await skills.list()).filter(({ name }) => target === undefined || name === target)
  if (values.json) print(found)
  else
    for (const { name, version, runtime, state, dir } of found)
      say(
        `${name.padEnd(24)} ${(version ?? '').padEnd(10)} ${(runtime ?? '').padEnd(8)} ${state.padEnd(10)} ${dir}`,
      )
  return 0
}

async function showUsage({ skills, values, target }: Call): Promise<number> {
  const all = skills.usage()
  const none = { runs: 0, fuel: 0, duration_ms: 0, violations: 0 }
  const one =
    target === undefined
      ? undefined
      : (all.find((used) => used.skill === target) ?? { skill: target, ...none })
  if (values.json) print(one ?? all)
  else
    for (const { skill: name, runs, fuel, duration_ms, violations } of one ? [one] : all)
      say(
        `${name.padEnd(24)} ${runs} runs  ${fuel} fuel  ${Math.round(duration_ms)} ms  ${violations} violations`,
      )
  return 0
}
