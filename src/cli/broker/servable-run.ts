import type { Ringfence } from '../../compose/compose.ts'
import { servedCaller } from '../../host/broker/served-caller.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Plan } from '../../model/plan.ts'

/** Limits that are held by a cgroup, which is created below our own. */
const BY_CGROUP = ['memoryMb', 'pids', 'cpus'] as const

/**
 * Accepts a `run` of a served caller if a broker can do it: one process of the caller, with the caller's streams.
 * Otherwise it throws, nothing has happened, and Node does it, which also reports what is wrong with the spec.
 */
export async function acceptRun(
  { gate, registry }: Ringfence,
  spec: Record<string, unknown>,
  { explain, review }: { readonly explain?: boolean | undefined; readonly review?: boolean | undefined },
): Promise<void> {
  const caller = servedCaller()
  if (!caller) return
  if (explain || review) throw leftToNode()
  const plan = gate.plan(spec)
  const { name } = await registry.select(plan)
  if (name !== 'bubblewrap' || !isOneProcess(plan)) throw leftToNode()
  if (!caller.sameCgroup && hasCgroup(plan)) throw leftToNode()
  caller.accept()
}

/** No proxy, no files that come over a channel, no session. */
const isOneProcess = ({ network, files, root, isolation }: Plan): boolean =>
  network.mode !== 'fetch' && files.length === 0 && root === undefined && isolation !== 'command'

const hasCgroup = ({ limits, nets }: Plan): boolean =>
  BY_CGROUP.some((name) => limits[name] !== undefined && !nets.includes(name))

const leftToNode = (): SandboxError => new SandboxError('unsupported', 'the broker leaves this to Node')
