import { existsSync, writeFileSync } from 'node:fs'
import { loadConfig } from '../host/config-file.ts'
import { configShape } from '../model/config.ts'
import { SandboxError } from '../model/errors.ts'
import { parseOptions, usage } from './options.ts'

/** `ringfence policy init|validate|schema`. */
export async function policy(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('policy', args, { force: { type: 'boolean' } })
  const [verb, file] = positionals
  switch (verb) {
    case 'init':
      return init(file ?? 'ringfence.toml', values.force === true)
    case 'validate':
      return validate(file ?? values.policy ?? values.config, values.json === true)
    case 'schema':
      process.stdout.write(
        `${JSON.stringify({ $schema: 'https://json-schema.org/draft/2020-12/schema', title: 'ringfence.toml', ...configShape.schema }, null, 2)}\n`,
      )
      return 0
    default:
      throw usage(
        'policy',
        verb === undefined ? 'say what to do: init, validate or schema' : `unknown: policy ${verb}`,
      )
  }
}

function init(file: string, force: boolean): number {
  if (existsSync(file) && !force) {
    throw new SandboxError('invalid-input', `\`${file}\` exists already`, { hint: '--force replaces it' })
  }
  writeFileSync(file, TEMPLATE, { mode: 0o600 })
  process.stdout.write(`wrote ${file}\n`)
  return 0
}

async function validate(file: string | undefined, json: boolean): Promise<number> {
  if (file === undefined) throw usage('policy', 'name the file to validate')
  const config = await loadConfig(file)
  const { compilePolicy } = await import('../policy/policy.ts')
  compilePolicy(config)
  const rules = config.policy?.rule?.length ?? 0
  process.stdout.write(
    json
      ? `${JSON.stringify({ ok: true, file, rules })}\n`
      : `${file}: fine, ${rules} rules, every example holds\n`,
  )
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
