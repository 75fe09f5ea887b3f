import { existsSync, writeFileSync } from 'node:fs'
import { loadConfig } from '../host/config-file.ts'
import { SandboxError } from '../model/errors.ts'
import { configSchema } from '../model/reference/config.ts'
import { visible, visibleJson } from '../model/text/visible.ts'
import type { ExampleResult } from '../policy/policy.ts'
import { parseOptions, usage } from './options/options.ts'
import { err, out } from './terminal/output.ts'

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
        `${JSON.stringify({ $schema: 'https://json-schema.org/draft/2020-12/schema', title: 'ringfence.toml', ...configSchema() }, null, 2)}\n`,
      )
      return 0
    default:
      throw usage(
        'policy',
        verb === undefined
          ? 'missing action: init, validate, test, explain, schema or learn'
          : `unknown action \`${verb}\``,
      )
  }
}

function init(file: string, force: boolean): number {
  if (existsSync(file) && !force) {
    throw new SandboxError('invalid-input', `\`${file}\` already exists`, {
      hint: 'use --force to replace it',
    })
  }
  writeFileSync(file, TEMPLATE, { mode: 0o600 })
  out(`wrote ${file}\n`)
  err(
    'name it with --config or RINGFENCE_CONFIG, or move it to ~/.config/ringfence/ringfence.toml to have it read\n',
  )
  return 0
}

async function validate(file: string | undefined, json: boolean): Promise<number> {
  if (file === undefined) throw usage('policy', 'missing file: `policy validate FILE`')
  const config = await loadConfig(file)
  const { compilePolicy } = await import('../policy/policy.ts')
  compilePolicy(config)
  const rules = config.policy?.rule?.length ?? 0
  out(
    json
      ? `${visibleJson({ ok: true, file, rules })}\n`
      : `${file}: valid: ${rules} rules, all examples pass\n`,
  )
  return 0
}

/** Runs every example of every rule; exit 1 if one fails. */
async function test(file: string | undefined, json: boolean): Promise<number> {
  if (file === undefined) throw usage('policy', 'missing file: `policy test FILE`')
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
    return `${holds ? 'ok  ' : 'FAIL'}  ${rule}: ${matches ? 'matches' : 'does not match'} \`${visible(line)}\`\n`
  })
  const bare = untested.map((id) => `      ${id}: has no examples\n`)
  const failed = examples.filter(({ holds }) => !holds).length
  const end = failed === 0 ? 'all pass' : `${failed} failed`
  return `${rows.join('')}${bare.join('')}${file}: ${examples.length} examples, ${end}\n`
}

/** Explains the policy of a file, or the current policy. A policy that does not load is an error. */
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

const TEMPLATE = `# What agents may do on this machine. Unknown keys are errors; ringfence does not start with an invalid file.
# Check it with \`ringfence policy validate\`; \`ringfence policy schema\` prints its JSON Schema for editors.

[policy]
# Only these directories and directories inside them may be mounted.
allowed_host_prefixes = ["~/projects"]
# Path segments that are never visible in a sandbox; case-insensitive.
blocked_host_patterns = [".ssh", ".aws", ".gnupg", "secrets", "credentials"]
max_cpus = 8
max_memory_mb = 16384
max_disk_mb = 102400
allowed_network_modes = ["offline", "loopback", "fetch"]
allow_interactive = false
# Action for commands that no rule matches.
default_action = "sandbox"

[[policy.rule]]
prefix = ["git", "push"]
action = "ask"
why = "publishes work"
# Examples are checked at load: a policy with a failing example does not load.
match = ["git push origin main"]
not_match = ["git pull"]

[commands]
# If not empty, only these programs may run.
allowed = []

[router]
always_sandbox = ["npm", "pip", "cargo", "make"]
never_sandbox = ["ls", "cat", "pwd"]
`
