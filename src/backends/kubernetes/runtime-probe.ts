import { randomBytes } from 'node:crypto'
import type { ClusterApi } from './cluster-api.ts'
import { endsOf, type ProbeEnd, probePod } from './probe-pod.ts'
import type { KubernetesSettings } from './settings.ts'

/**
 * Whether a RuntimeClass is what the operator says, measured inside: a Pod of the class and a plain Pod on the same node say which
 * kernel they see. SECURITY: a class whose handler is an ordinary runtime after all must not pass for a stronger one.
 */
export async function otherRuntime(
  api: ClusterApi,
  settings: KubernetesSettings,
  labels: Readonly<Record<string, string>>,
): Promise<{ readonly reason: string; readonly fix: string } | undefined> {
  const { runtime, runtimeClass } = settings
  if (runtime === undefined) return undefined
  const fix =
    'set `runtime_class` in [kubernetes] to a class whose handler is that runtime, or remove `runtime`'
  if (runtimeClass === undefined) return { reason: `\`runtime = "${runtime}"\` without a RuntimeClass`, fix }
  const name = `rf-kernel-${randomBytes(6).toString('hex')}`
  const run = async (kind: string, node?: string): Promise<ProbeEnd | undefined> => {
    const probe = { 'ringfence.dev/probe': `${name}-${kind}` }
    const pod = `${name}-${kind}`
    const where = kind === 'class' ? { runtimeClass } : { node }
    try {
      await api.createPod(
        probePod(settings, { name: pod, labels: { ...labels, ...probe }, args: ['pod-kernel'], ...where }),
      )
      return (await endsOf(api, `ringfence.dev/probe=${pod}`, settings.startMs)).get(pod)
    } finally {
      await api.deletePod(pod, 0).catch(() => {})
    }
  }
  const inside = await run('class')
  const outside = await run('plain', inside?.node)
  const why = differenceOf(runtime, kernelOf(inside), kernelOf(outside))
  return why === undefined
    ? undefined
    : { reason: `the RuntimeClass ${runtimeClass} is not ${runtime}: ${why}`, fix }
}

/** What a kernel says about itself: the id of its boot, and its version. */
export type Kernel = { readonly boot: string; readonly version: string }

function kernelOf(end: ProbeEnd | undefined): Kernel | undefined {
  const [boot, version] = (end?.code === 0 ? end.said : '').split('\n')
  return version ? { boot: boot ?? '', version } : undefined
}

/** The version that gVisor's kernel states, whatever it runs on. */
const GVISOR = '#1 SMP Sun Jan 10 15:06:54 PST 2016'

/** Why a kernel is not the one of that runtime; undefined: it is. */
export function differenceOf(
  runtime: 'gvisor' | 'microvm',
  inside: Kernel | undefined,
  outside: Kernel | undefined,
): string | undefined {
  if (!inside || !outside) return 'its kernel cannot be read'
  if (inside.boot !== '' && inside.boot === outside.boot) return 'its Pods see the kernel of their node'
  if (runtime === 'gvisor' && inside.version !== GVISOR) return `its kernel says \`${inside.version}\``
  if (runtime === 'microvm' && inside.boot === '') return 'its kernel has no boot id'
  return undefined
}
