import { SandboxError } from '../../model/errors.ts'
import { boolean, list, number, object, optional, record, type Shape, text } from '../../model/shape.ts'
import type { Spec } from '../../model/spec.ts'

/** E2B's network options in our words: names that the proxy lets through; there is no raw way out. */

const anything: Shape<unknown> = { schema: {}, parse: (value) => value }
const hosts = () => optional(list(text({ max: 1024 }), 1024))

const egressFields = {
  allowOut: hosts(),
  denyOut: hosts(),
  rules: optional(record(anything, /^/)),
  egressProxy: optional(anything),
}
/** E2B's network options of a create. */
export const networkShape = object({
  ...egressFields,
  allowPublicTraffic: optional(boolean()),
  maskRequestHost: optional(text({ max: 1024 })),
  httpsPorts: optional(list(number({ integer: true, min: 1, max: 65_535 }), 64)),
})
/** E2B's network options of an update. */
export const networkUpdateShape = object({ ...egressFields, allow_internet_access: optional(boolean()) })

/** Parsed network options. */
export type E2bNetwork = ReturnType<typeof networkShape.parse>

const ALL_TRAFFIC = ['0.0.0.0/0', '::/0']

const refuse = (what: string, hint: string): never => {
  throw new SandboxError('unsupported', `${what} is not supported`, { hint })
}

/** Refuses by name what nothing here would honour. */
function refuseUnbuilt(network: E2bNetwork): void {
  if (network.egressProxy !== undefined) refuse('`egressProxy`', 'leave it out; the way out is our own proxy')
  if (network.rules && Object.keys(network.rules).length > 0)
    refuse('`rules`', 'an operator can broker credentials with `secrets`')
  if (network.maskRequestHost !== undefined) refuse('`maskRequestHost`', 'leave it out')
  if (network.httpsPorts?.length) refuse('`httpsPorts`', 'leave it out')
  const single = network.denyOut?.find((host) => !ALL_TRAFFIC.includes(host))
  if (single !== undefined)
    refuse(`denying \`${single}\` alone`, 'everything is closed but what `allowOut` names')
}

/**
 * The names that a sandbox may reach. `undefined`: what the operator allows for all; an empty list: nothing.
 * All traffic is no name: it means the operator's list.
 */
export function allowHostsOf(
  network: E2bNetwork,
  internet: boolean | undefined,
): readonly string[] | undefined {
  refuseUnbuilt(network)
  if (internet === false) return []
  const named = network.allowOut?.filter((host) => !ALL_TRAFFIC.includes(host))
  const address = named?.find((host) => /^[\d.]+(\/\d+)?$|\/\d+$|^[0-9a-f]*:[0-9a-f:]+$/i.test(host))
  if (address !== undefined)
    refuse(`the address range \`${address}\``, 'name hosts: `example.com`, `*.example.com`')
  if (named && named.length > 0) return named
  return network.denyOut?.length ? [] : undefined
}

/** Mode `fetch` wherever the policy has it, so that the list can be changed while the sandbox runs. */
export function networkOf(
  modes: readonly string[],
  allowHosts: readonly string[] | undefined,
): NonNullable<Spec['network']> {
  if (modes.includes('fetch')) return { mode: 'fetch', ...(allowHosts?.length ? { allowHosts } : {}) }
  if (allowHosts?.length)
    throw new SandboxError('invalid-network-mode', 'network mode `fetch` is not permitted', {
      hint: 'an operator can add it to `[policy] allowed_network_modes`',
    })
  return { mode: modes.includes('loopback') ? 'loopback' : 'offline' }
}
