import type { Guarantee } from '../model/guarantee.ts'
import type { Attack } from './attack.ts'
import { BETWEEN, GRANTED } from './attacks-between.ts'
import { ENVIRONMENT, READS, WRITES } from './attacks-files.ts'
import { IPC, KERNEL, OTHER_KERNEL, PROCESSES } from './attacks-kernel.ts'
import { CLEANUP, LIMITS } from './attacks-limits.ts'
import { BROKERED, NETWORK, THROUGH_PROXY } from './attacks-network.ts'
import { PROTECTED } from './attacks-protect.ts'
import { REPOSITORY } from './attacks-repository.ts'

/**
 * Each guarantee with its attacks. A guarantee without a proof does not compile.
 */

/** Nothing here keeps these; the suite then only shows that a plan which needs one is refused. */
const UNPROVEN: readonly Attack[] = []

/** The attacks on each guarantee. */
export const PROOFS: Readonly<Record<Guarantee, readonly Attack[]>> = {
  'fs.read': READS,
  'fs.write': WRITES,
  'fs.protect': [...PROTECTED, ...REPOSITORY],
  'env.clean': ENVIRONMENT,
  'net.offline': NETWORK,
  'net.loopback': NETWORK.map((attack) => ({ ...attack, spec: { network: { mode: 'loopback' } } })),
  'net.fetch': [
    ...NETWORK.map((attack) => ({ ...attack, spec: { network: { mode: 'fetch' } } })),
    ...THROUGH_PROXY,
  ],
  'proc.hidden': PROCESSES,
  'ipc.private': IPC,
  'proc.between': BETWEEN,
  'kernel.filtered': KERNEL,
  'kernel.separate': OTHER_KERNEL,
  ...LIMITS,
  'limit.fuel': UNPROVEN,
  'secrets.outside': BROKERED,
  'secrets.between': GRANTED,
  cleanup: CLEANUP,
}
