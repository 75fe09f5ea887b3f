import type { KubernetesConfig } from '../../model/config.ts'
import type { Guarantee } from '../../model/guarantee.ts'
import type { Plan } from '../../model/plan.ts'

/** Where and how sandboxes become Pods, with all defaults applied. */
export type KubernetesSettings = {
  readonly kubeconfig: string | undefined
  readonly context: string | undefined
  readonly namespace: string
  readonly agentImage: string
  readonly image: string | undefined
  readonly pullPolicy: string
  readonly pullSecrets: readonly string[]
  readonly nodeSelector: Readonly<Record<string, string>>
  readonly tolerations: readonly Readonly<Record<string, string>>[]
  readonly runtimeClass: string | undefined
  /** What the RuntimeClass is, by the operator's word; a probe confirms it. */
  readonly runtime: 'gvisor' | 'microvm' | undefined
  readonly tenantNamespaces: 'use' | 'create' | undefined
  readonly tenantQuota: NonNullable<KubernetesConfig['tenant_quota']>
  readonly priorityClass: string | undefined
  readonly cpus: number
  readonly memoryMb: number
  readonly diskMb: number
  readonly startMs: number
  readonly maxLifetimeSecs: number
  readonly port: number
  readonly waive: readonly Guarantee[]
}

/** The settings of a configuration. */
export const settingsOf = (config: KubernetesConfig): KubernetesSettings => ({
  kubeconfig: config.kubeconfig,
  context: config.context,
  namespace: config.namespace ?? 'ringfence',
  agentImage: config.agent_image,
  image: config.image,
  pullPolicy: config.image_pull_policy ?? 'IfNotPresent',
  pullSecrets: config.image_pull_secrets ?? [],
  nodeSelector: config.node_selector ?? {},
  tolerations: (config.tolerations ?? []) as readonly Readonly<Record<string, string>>[],
  runtimeClass: config.runtime_class,
  runtime: config.runtime,
  tenantNamespaces: config.tenant_namespaces,
  tenantQuota: config.tenant_quota ?? {},
  priorityClass: config.priority_class,
  cpus: config.cpus ?? 1,
  memoryMb: config.memory_mb ?? 1024,
  diskMb: config.disk_mb ?? 1024,
  startMs: (config.start_secs ?? 120) * 1000,
  maxLifetimeSecs: config.max_lifetime_secs ?? 86_400,
  port: config.port ?? 7443,
  waive: config.waive ?? [],
})

/** The resources of a sandbox: what was asked for, or the operator's defaults; never the limits that protect this host. */
export function resourcesOf(
  { limits, nets }: Plan,
  settings: KubernetesSettings,
): { readonly cpus: number; readonly memoryMb: number; readonly diskMb: number } {
  const asked = <N extends 'cpus' | 'memoryMb' | 'diskMb'>(name: N): number =>
    nets.includes(name) ? settings[name] : (limits[name] ?? settings[name])
  return { cpus: asked('cpus'), memoryMb: asked('memoryMb'), diskMb: asked('diskMb') }
}
