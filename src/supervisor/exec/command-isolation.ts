import type { Command } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Plan } from '../../model/plan.ts'
import type { Isolation } from '../../model/spec.ts'

/** What a command may ask for about its isolation from the other commands of its sandbox. */
export type IsolationOptions = Pick<Command, 'secrets' | 'network' | 'ports'> & {
  /** Must be what the sandbox was created with. */
  readonly isolation?: Isolation
}

/**
 * SECURITY: all commands of a sandbox are isolated, or none is. A command beside isolated ones, in the namespaces of the
 * sandbox, would see and signal them; so nothing is weakened, and nothing is promised that the sandbox cannot keep.
 */
export function assertIsolation(plan: Plan, { isolation, secrets, network, ports }: IsolationOptions): void {
  if (isolation === 'command' && plan.isolation !== 'command')
    throw new SandboxError('missing-guarantee', 'the sandbox cannot guarantee: proc.between', {
      hint: 'create the sandbox with `isolation: "command"`',
    })
  if (isolation === 'sandbox' && plan.isolation === 'command')
    throw new SandboxError('forbidden', 'the commands of this sandbox are isolated from each other', {
      hint: 'run it in a sandbox of its own',
    })
  const unknown = secrets?.find((name) => !plan.secrets.includes(name))
  if (unknown !== undefined)
    throw new SandboxError('invalid-input', `the sandbox has no secret \`${unknown.slice(0, 64)}\``, {
      hint: `it has: ${plan.secrets.join(', ') || 'none'}`,
    })
  const port = ports?.find((number) => !Number.isInteger(number) || number < 1 || number > 65_535)
  if (port !== undefined) throw new SandboxError('invalid-input', `\`${port}\` is not a port number`)
  if (plan.isolation === 'command') return
  if (ports !== undefined)
    throw new SandboxError('invalid-input', 'only isolated commands have ports of their own', {
      hint: 'leave `ports` out: every port of this sandbox can be reached already',
    })
  if (secrets !== undefined || network !== undefined)
    throw new SandboxError('missing-guarantee', 'the sandbox cannot guarantee: secrets.between', {
      hint: 'only isolated commands have secrets and connections of their own: `isolation: "command"` in the create',
    })
}
