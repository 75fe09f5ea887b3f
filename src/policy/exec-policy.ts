import type { Config, RuleConfig } from '../model/config.ts'
import { ruleShape } from '../model/config.ts'
import type { Action, Decision } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import { list } from '../model/shape.ts'
import { type Context, judgeArgv, judgeLine } from './commands/judge.ts'
import { type CommandPolicy, compilePolicy } from './policy.ts'

/** The serialised form of an `ExecPolicy`. */
export type SavedPolicy = {
  readonly version: 2
  readonly default_action: Action
  readonly rules: readonly RuleConfig[]
}

/** A policy to which rules can be added at run time. It accesses no files; the host loads and saves it. */
export class ExecPolicy {
  readonly #context: Context
  #config: Config
  #compiled: CommandPolicy

  constructor(config: Config, context: Context) {
    this.#context = context
    this.#config = config
    this.#compiled = compilePolicy(config)
  }

  /** The decision for a shell line or an argv. */
  evaluate(command: string | readonly string[], options: Partial<Context> = {}): Decision {
    const context = { ...this.#context, ...options }
    return typeof command === 'string'
      ? judgeLine(this.#compiled, command, context)
      : judgeArgv(this.#compiled, command, context)
  }

  /** Adds a rule; a rule that fails its own examples is rejected and changes nothing. */
  addRule(rule: RuleConfig): void {
    const parsed = ruleShape.parse(rule, 'rule')
    const config = withRules(this.#config, [...this.rules, parsed])
    this.#compiled = compilePolicy(config)
    this.#config = config
  }

  /** Adds a rule for every command that starts with these words. */
  addPrefixRule(prefix: readonly string[], action: Action, why?: string): void {
    this.addRule({ prefix, action, ...(why === undefined ? {} : { why }) })
  }

  get rules(): readonly RuleConfig[] {
    return this.#config.policy?.rule ?? []
  }

  toJSON(): SavedPolicy {
    return { version: 2, default_action: this.#compiled.defaultAction, rules: this.rules }
  }

  /** Parses the output of `toJSON`. Anything else is an error: a policy never loses rules silently. */
  static fromJSON(saved: unknown, context: Context): ExecPolicy {
    const value = saved as Partial<SavedPolicy> | null
    if (typeof value !== 'object' || value === null || value.version !== 2)
      throw new SandboxError('invalid-config', 'not a saved policy of version 2')
    const rules = list(ruleShape).parse(value.rules, 'rules')
    return new ExecPolicy(
      { policy: { rule: rules, default_action: value.default_action ?? 'sandbox' } },
      context,
    )
  }
}

const withRules = (config: Config, rule: readonly RuleConfig[]): Config => ({
  ...config,
  policy: { ...config.policy, rule },
})
