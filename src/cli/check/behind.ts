import { compose } from '../../compose/compose.ts'
import type { Level } from '../../model/guarantee.ts'
import type { Containment } from '../../model/risk.ts'
import type { Context } from '../../policy/commands/judge.ts'
import { containedBy } from '../../policy/containment.ts'
import { type SandboxValues, specOf } from '../options/sandbox-options.ts'

/** The sandbox that `run` with the same flags would use, and what it contains. */
export type Wall = {
  readonly context: Context
  readonly backend: string
  readonly level: Level
  readonly contains: Containment
}

/** Plans the sandbox that the flags describe; starts nothing in it. Throws where `run` would refuse. */
export async function behindPlan(values: SandboxValues, host: Context): Promise<Wall> {
  const ringfence = await compose({ config: values.config, policy: values.policy })
  try {
    const plan = ringfence.gate.plan(specOf(values, ringfence))
    const { name, level } = await ringfence.registry.select(plan)
    const { behind, ...context } = ringfence.gate.contextOf(plan, { backend: name, cwd: host.cwd })
    const contains = behind ? containedBy(behind) : {}
    return { context: { ...host, ...context, contains }, backend: name, level, contains }
  } finally {
    await ringfence.close()
  }
}
