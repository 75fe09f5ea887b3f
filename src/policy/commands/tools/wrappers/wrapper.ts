import { applyOption, runText } from '../../effects.ts'
import { asked, boxed, denied } from '../../finding.ts'
import { type OptionSpec, parseOptions } from '../../options.ts'
import { outputOf } from '../../output.ts'
import { assign } from '../../shell/assign.ts'
import { fork, UNKNOWN } from '../../shell/scope.ts'
import { type Call, deeper, type Handler } from '../../walk.ts'

/** A program whose operands, after the first `skip`, are another command. */
export type Wrapper = OptionSpec & {
  readonly skip?: number
  /** `NAME=value` operands before the command are added to its environment. */
  readonly assigns?: boolean
  /** The command is one string for a shell. */
  readonly line?: boolean
  /** Why it is denied, independent of the command it starts. */
  readonly deny?: string
  /** Why it needs approval, independent of the command it starts. */
  readonly ask?: string
  /** It is a wrapper only if this sub-command comes first. */
  readonly after?: readonly string[]
}

/** Judges the command inside a wrapper. */
export function runInner(call: Call, argv: readonly string[], line: boolean): ReturnType<Handler> {
  if (argv.length === 0) return undefined
  const text = argv.join(' ')
  if (line || (argv.length === 1 && /\s/.test(text))) {
    runText(call, text)
    return UNKNOWN
  }
  return deeper(call.walk, () => call.walk.run(call.scope, argv, call.stdin))
}

/** Builds a handler from a description. */
export function wrapper(spec: Wrapper): Handler {
  const options = { ...spec, prefix: true }
  return (call) => {
    const args = afterSubcommand(spec, call.args)
    if (!args) return undefined
    const parsed = parseOptions(options, args)
    if (spec.deny !== undefined) call.node.findings.push(denied(`privilege/${call.name}`, spec.deny))
    else if (spec.ask !== undefined) call.node.findings.push(asked(`wrappers/${call.name}`, spec.ask))
    else call.node.base = 'none'
    for (const option of parsed.options) applyOption(call, option)
    const rest = parsed.operands.slice(spec.skip ?? 0)
    return spec.assigns ? runWithAssignments(call, rest) : runInner(call, rest, spec.line === true)
  }
}

function afterSubcommand(spec: Wrapper, args: readonly string[]): readonly string[] | undefined {
  if (!spec.after) return args
  const at = args.findIndex((arg) => arg[0] !== '-')
  return at !== -1 && spec.after.includes(args[at] as string) ? args.slice(at + 1) : undefined
}

/** `env A=1 B=2 cmd`: the assignments are judged like any others. */
export function runWithAssignments(call: Call, operands: readonly string[]): ReturnType<Handler> {
  const scope = fork(call.scope)
  let at = 0
  for (; at < operands.length && /^\w+=/.test(operands[at] as string); at++) {
    const [name, value] = splitAssignment(operands[at] as string)
    call.node.findings.push(...assign.findings(call.walk, name, value))
    scope.vars.set(name, value)
  }
  if (operands[at] === '--') at++
  if (at === operands.length) {
    call.node.findings.push(boxed('secrets/environment', 'prints environment variables'))
    return outputOf({ ...call, name: 'env' })
  }
  return deeper(call.walk, () => call.walk.run(scope, operands.slice(at), call.stdin))
}

const splitAssignment = (text: string): readonly [string, string] => [
  text.slice(0, text.indexOf('=')),
  text.slice(text.indexOf('=') + 1),
]
