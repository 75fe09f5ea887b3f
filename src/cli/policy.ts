import { existsSync, writeFileSync } from 'node:fs'
import { loadConfig } from '../host/config-file.ts'
import { configShape } from '../model/config.ts'
import { SandboxError } from '../model/errors.ts'
import { visible, visibleJson } from '../model/visible.ts'
import type { ExampleResult } from '../policy/policy.ts'
import { parseOptions, usage } from './options.ts'
import { out } from './terminal/output.ts'

/** `ringfence policy init|validate|test|explain|schema|learn`. */
export async function policy(args: readonly string[]): Promise<number> {
  if (args[0] === 'learn') return (await import('./policy/learn.ts')).learn(args.slice(1))
  const { values, positionals } = parseOptions('policy', args, { force: { type: 'boolean' } })
  const [verb, file] = positionals
  switch (verb) {
    case 'init':
      return init(file ?? 'ringfence.toml', values.force === true)
    case 'validate':
      return validate(file ?? values.policy ?? values.config, values.json === true)
    case 'test':
      return test(file ?? values.policy ?? values.config, values.json === true)
    case 'explain':
      return explain(file ?? values.policy, values)
    case 'schema':
      out(
        `${JSON.stringify({ $schema: 'https://json-schema.org/draft/2020-12/schema', title: 'ringfence.toml', ...configShape.schema }, null, 2)}\n`,
      )
      return 0
    default:
      throw usage(
        'policy',
        verb === undefined
          ? 'say what to do: init, validate, test, explain, schema or learn'
          : `unknown: policy ${verb}`,
      )
  }
}

function init(file: string, force: boolean): number {
  if (existsSync(file) && !force) {
    throw new SandboxError('invalid-input', `\`${file}\` exists already`, { hint: '--force replaces it' })
  }
  writeFileSync(file, TEMPLATE, { mode: 0o600 })
  out(`wrote ${file}\n`)
  return 0
}

async function validate(file: string | undefined, json: boolean): Promise<number> {
  if (file === undefined) throw usage('policy', 'name the file to validate')
  const config = await loadConfig(file)
  const { compilePolicy } = await import('../policy/policy.ts')
  compilePolicy(config)
  const rules = config.policy?.rule?.length ?? 0
  out(
    json
      ? `${visibleJson({ ok: true, file, rules })}\n`
      : `${file}: fine, ${rules} rules, every example holds\n`,
  )
  return 0
}

/** Runs every example of every rule; 1 when one of them lies. */
async function test(file: string | undefined, json: boolean): Promise<number> {
  if (file === undefined) throw usage('policy', 'name the file to test')
  const config = await loadConfig(file)
  const { examplesOf, rulesOf } = await import('../policy/policy.ts')
  const rules = rulesOf(config)
  const examples = rules.flatMap(examplesOf)
  const ok = examples.every(({ holds }) => holds)
  const untested = rules.filter((rule) => examplesOf(rule).length === 0).map(({ id }) => id)
  out(
    json
      ? `${visibleJson({ ok, file, rules: rules.length, examples, untested })}\n`
      : testText(file, examples, untested),
  )
  return ok ? 0 : 1
}

function testText(file: string, examples: readonly ExampleResult[], untested: readonly string[]): string {
  const rows = examples.map(({ rule, list, line, holds }) => {
    const matches = (list === 'match') === holds
    return `${holds ? 'ok  ' : 'LIES'}  ${rule}: ${matches ? 'matches' : 'does not match'} \`${visible(line)}\`\n`
  })
  const bare = untested.map((id) => `      ${id}: has no examples\n`)
  const lies = examples.filter(({ holds }) => !holds).length
  const end = lies === 0 ? 'every one holds' : `${lies} of them ${lies === 1 ? 'lies' : 'lie'}`
  return `${rows.join('')}${bare.join('')}${file}: ${examples.length} examples, ${end}\n`
}

/** The policy of a file, or the one in force here. One that does not load is an error and is not explained. */
async function explain(
  file: string | undefined,
  { config: whole, json }: { readonly config?: string | undefined; readonly json?: boolean | undefined },
): Promise<number> {
  const [{ compose }, { describePolicy, policyText }] = await Promise.all([
    import('../compose/compose.ts'),
    import('./policy/explain.ts'),
  ])
  const { config, home } = await compose({ config: whole, policy: undefined })
  const description = describePolicy(file === undefined ? config : await loadConfig(file), home)
  out(json ? `${visibleJson(description)}\n` : policyText(description))
  return 0
}

const TEMPLATE = `# What agents may do on this machine. Unknown keys are errors; a broken file stops the start.
# \`ringfence policy validate\` checks it, \`ringfence policy schema\` describes it for editors.

[policy]
# Only directories below these may be mounted.
allowed_host_prefixes = ["~/projects"]
# Whole path segments that are never shown, whatever the case of their letters.
blocked_host_patterns = [".ssh", ".aws", ".gnupg", "secrets", "credentials"]
max_cpus = 8
max_memory_mb = 16384
max_disk_mb = 102400
allowed_network_modes = ["offline", "loopback", "fetch"]
allow_interactive = false
# For commands that no rule knows.
default_action = "sandbox"

[[policy.rule]]
prefix = ["git", "push"]
action = "ask"
why = "publishes work"
# Checked at load: a policy whose examples lie does not load.
match = ["git push origin main"]
not_match = ["git pull"]

[commands]
# When not empty: only these programs.
allowed = []

[router]
always_sandbox = ["npm", "pip", "cargo", "make"]
never_sandbox = ["ls", "cat", "pwd"]
`
