import type { Need } from '../../cluster/placement.ts'

/** What the body of a create says about where it fits. Anything else in it is left to the node that creates the sandbox. */

type Loose = { readonly [name: string]: unknown }

const objectOf = (value: unknown): Loose =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Loose) : {}
const textOf = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined)
const amount = (...values: readonly unknown[]): number | undefined =>
  values.find((value): value is number => typeof value === 'number' && Number.isFinite(value) && value > 0)

/** As many volumes as a sandbox may have; more are refused by the node that creates it. SECURITY: each is looked up. */
const MAX_VOLUMES = 16

/** The need of a create; `perSandbox` counts for what it does not say. */
export function needIn(
  body: Buffer,
  perSandbox: Pick<Need, 'cpus' | 'memoryMb' | 'diskMb'>,
): Need & { readonly volumes: readonly string[]; readonly template: string | undefined } {
  const asked = objectOf(parsed(body))
  const limits = objectOf(asked.limits)
  const placement = objectOf(asked.placement)
  const mounts = [asked.volumes, asked.volumeMounts].flatMap((one) => (Array.isArray(one) ? one : []))
  return {
    cpus: amount(limits.cpus) ?? perSandbox.cpus,
    memoryMb: amount(limits.memoryMb, limits.memory_mb) ?? perSandbox.memoryMb,
    diskMb: amount(limits.diskMb, limits.disk_mb) ?? perSandbox.diskMb,
    backend: textOf(asked.backend),
    labels: objectOf(placement.labels) as Readonly<Record<string, string>>,
    node: textOf(placement.node),
    template: textOf(asked.template) ?? textOf(asked.templateID),
    volumes: mounts.slice(0, MAX_VOLUMES).flatMap((mount) => textOf(objectOf(mount).name) ?? []),
  }
}

function parsed(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString('utf8'))
  } catch {
    // The node that creates the sandbox says what is wrong with it.
    return undefined
  }
}
