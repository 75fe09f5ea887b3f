import type { Command } from '../model/command.ts'
import { SandboxError } from '../model/errors.ts'
import type { Plan } from '../model/plan.ts'

/** What commands with namespaces of their own have of their sandbox, and what only some of them are given. */

/** Whether every command of this plan has namespaces of its own. */
export const isIsolated = ({ isolation }: Pick<Plan, 'isolation'>): boolean => isolation === 'command'

/** The environment that every command starts with; an isolated command gets its secrets by name. */
export const sharedEnvironment = (plan: Plan): Readonly<Record<string, string>> =>
  isIsolated(plan)
    ? Object.fromEntries(Object.entries(plan.env).filter(([name]) => !plan.secrets.includes(name)))
    : plan.env

/** The names of the secrets that this command may use; undefined where commands are not isolated. */
export const secretsOf = (plan: Plan, { secrets = [] }: Command): readonly string[] | undefined =>
  isIsolated(plan) ? secrets.filter((name) => plan.secrets.includes(name)) : undefined

/** Whether a command has all that its sandbox was given; then a sandbox for it alone isolates it from every other. */
export const hasEverything = (plan: Plan, command: Command): boolean =>
  !isIsolated(plan) ||
  (command.network !== false && plan.secrets.every((name) => command.secrets?.includes(name)))

/** The fields that an isolated command needs beside those of every command. */
export function isolationFields(plan: Plan, command: Command): readonly string[] {
  const granted = secretsOf(plan, command) ?? []
  return [
    ...granted.flatMap((name) => ['env', `${name}=${plan.env[name] ?? ''}`]),
    ...(isIsolated(plan) && command.network === false ? ['offline'] : []),
  ]
}

/** SECURITY: the loopback of an isolated command is its own, and nothing from outside is let in. */
export function assertPorts(plan: Plan): void {
  if (!isIsolated(plan)) return
  throw new SandboxError('unsupported', 'the ports of isolated commands cannot be reached', {
    hint: 'create the sandbox with `isolation: "sandbox"`',
  })
}
