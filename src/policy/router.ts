import type { Config } from '../model/config.ts'
import type { Decision } from '../model/decision.ts'
import { type Context, inspectLine } from './commands/judge.ts'

export { INERT_GIT } from './commands/tools/git/git-repository.ts'

import { type CommandPolicy, compilePolicy } from './policy.ts'

/** Where a line runs: on the host, in a sandbox, after approval, or never. */
export type Route = {
  readonly mode: 'host' | 'sandbox' | 'ask' | 'deny'
  readonly reason: string
  readonly decision: Decision
}

/** Programs that are always, or never, run in a sandbox. */
export type RouterLists = { readonly always?: readonly string[]; readonly never?: readonly string[] }

/** Chooses between host and sandbox for operators who enabled that choice. */
export class AutoSandboxRouter {
  readonly #policy: CommandPolicy
  readonly #context: Context
  readonly #always: ReadonlySet<string>
  readonly #never: ReadonlySet<string>

  constructor(policy: CommandPolicy, context: Context, lists: RouterLists = {}) {
    this.#policy = policy
    this.#context = context
    this.#always = new Set(lists.always ?? [])
    this.#never = new Set(lists.never ?? [])
  }

  /** Creates a router from the operator's configuration. */
  static fromConfig(config: Config, context: Context): AutoSandboxRouter {
    const { always_sandbox, never_sandbox } = config.router ?? {}
    return new AutoSandboxRouter(compilePolicy(config), context, {
      ...(always_sandbox && { always: always_sandbox }),
      ...(never_sandbox && { never: never_sandbox }),
    })
  }

  /** The strictest route that any command of the line needs. A line that cannot be parsed never runs on the host. */
  route(line: string): Route {
    const { decision, nodes } = inspectLine(this.#policy, line, this.#context)
    const { action, reason } = decision
    if (action === 'deny' || action === 'ask') return { mode: action, reason, decision }
    const named = nodes.find((node) => this.#names(this.#always, node.argv))
    if (named) return { mode: 'sandbox', reason: `\`${named.argv[0]}\` always runs in a sandbox`, decision }
    if (action === 'allow') return { mode: 'host', reason, decision }
    // SECURITY: `never` applies only to commands that run in a sandbox by default; a finding still requires the sandbox.
    const lifted = nodes.every(
      (node) => node.action === 'allow' || (node.rule === 'default' && this.#names(this.#never, node.argv)),
    )
    const readable = decision.rules.every((rule) => rule === 'default')
    if (lifted && readable)
      return { mode: 'host', reason: 'every program is in the never_sandbox list', decision }
    return { mode: 'sandbox', reason, decision }
  }

  #names(list: ReadonlySet<string>, argv: readonly string[]): boolean {
    const name = argv[0] ?? ''
    return (
      list.has(name) ||
      (/^\/(usr\/)?(local\/)?s?bin\//.test(name) && list.has(name.slice(name.lastIndexOf('/') + 1)))
    )
  }
}
