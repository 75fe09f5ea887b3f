import type { GuestProcess } from '../host/guest/process.ts'
import type { TunnelTaker } from '../host/guest/session.ts'
import type { Command } from '../model/command.ts'
import { SandboxError } from '../model/errors.ts'
import type { Plan } from '../model/plan.ts'

/** What commands with namespaces of their own have of their sandbox, and what only some of them are given. */

/** Whether every command of this plan has namespaces of its own. */
export const isIsolated = ({ isolation }: Pick<Plan, 'isolation'>): boolean => isolation === 'command'

/** The isolator and the namespace init that is prepared for the next command; neither is a process of a command. */
export const ISOLATING_PROCESSES = 2

/** SECURITY: in a sandbox with isolated commands, a connection that no command owns has no secrets. */
export const takerOf = (plan: Plan, take: TunnelTaker): TunnelTaker =>
  isIsolated(plan) ? (stream, secrets = []) => take(stream, secrets) : take

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

/**
 * Which isolated command each port of a sandbox belongs to. SECURITY: a port leads to the command that was given it. A command without
 * the grant can listen at the same number in its own network, and nobody from outside reaches it there.
 */
export class PortOwners {
  readonly #owners = new Map<number, GuestProcess | undefined>()

  /** Reserves ports for a command; `given` tells its process, `release` frees them. */
  reserve(ports: readonly number[]): {
    readonly given: (process: GuestProcess) => void
    readonly release: () => void
  } {
    const taken = ports.find((port) => this.#owners.has(port))
    if (taken !== undefined)
      throw new SandboxError('conflict', `port ${taken} belongs to another command that runs`, {
        hint: 'end that command first, or use another port',
      })
    const set = (process: GuestProcess | undefined): void => {
      for (const port of ports) this.#owners.set(port, process)
    }
    set(undefined)
    let released = false
    const release = (): void => {
      if (!released) for (const port of ports) this.#owners.delete(port)
      released = true
    }
    return { given: set, release }
  }

  /** The command that a connection to a port goes to. */
  ownerOf(port: number): GuestProcess {
    const owner = this.#owners.get(port)
    if (owner) return owner
    throw new SandboxError('unsupported', `no running command was given port ${port}`, {
      hint: `commands of this sandbox are isolated: start the server with \`ports: [${port}]\` in its exec`,
    })
  }
}
