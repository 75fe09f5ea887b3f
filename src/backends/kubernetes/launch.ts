import { dirname } from 'node:path/posix'
import type { V1Container, V1NetworkPolicy, V1Pod, V1Secret, V1Volume } from '@kubernetes/client-node'
import type { Mount, Plan } from '../../model/plan.ts'
import { type KubernetesSettings, resourcesOf } from './settings.ts'

/** Translates a plan to the objects of a Pod. Pure. */

/** What a Pod is made of besides its plan. */
export type PodContext = {
  readonly name: string
  readonly image: string
  /** A user that no other sandbox has: limits on processes count all processes of a user on a node. */
  readonly uid: number
  readonly labels: Readonly<Record<string, string>>
  readonly annotations: Readonly<Record<string, string>>
  /** The Pod of this server: the cluster removes its sandboxes with it. */
  readonly owner?: { readonly name: string; readonly uid: string } | undefined
  /** How long the channel waits for a connection. */
  readonly patienceSecs: number
  /** How long the Pod waits for another server when its own is gone; 0: it ends. */
  readonly takeoverSecs: number
}

/** The label of everything that this backend creates. */
export const MANAGED = { 'app.kubernetes.io/managed-by': 'ringfence' } as const
/** The label of Pods that the network policy applies to. */
export const SANDBOX = { 'ringfence.dev/part': 'sandbox' } as const
/** The Secret with the authority of the channels. */
export const AUTHORITY_SECRET = 'ringfence-authority'
/** The name of the network policy of all sandboxes. */
export const POLICY_NAME = 'ringfence-sandboxes'

const AGENT_DIR = '/.ringfence'
/** The names of what is mounted, in its volume (guest/channel/fill.c). */
const FILE_NAME = '.ringfence-file'
const DIRECTORY_NAME = '.ringfence-dir'
const VOLUMES_DIR = '/.ringfence-volumes'
const MOUNTS_DIR = '/.ringfence-mounts'
const CHANNEL_DIR = '/.ringfence-channel'
const SOCKET = `${CHANNEL_DIR}/agent`
/** What the agent itself may use besides the sandbox's commands. */
const AGENT_MB = 48
const CHANNEL_MB = 32
/** The most that is sent for one mount, with what directories take. */
const SENT_MB = 320

/** A user and group of its own for each Pod. */
export const FIRST_UID = 1_000_000
/** How many of them there are. */
export const UIDS = 1_000_000_000

/** The Pod of a plan. */
export function podOf(plan: Plan, settings: KubernetesSettings, context: PodContext): V1Pod {
  const { name, uid, owner } = context
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name,
      labels: { ...MANAGED, ...SANDBOX, ...context.labels },
      annotations: { ...context.annotations },
      ...(owner ? { ownerReferences: [{ apiVersion: 'v1', kind: 'Pod', ...owner }] } : {}),
    },
    spec: {
      restartPolicy: 'Never',
      automountServiceAccountToken: false,
      enableServiceLinks: false,
      hostNetwork: false,
      hostPID: false,
      hostIPC: false,
      shareProcessNamespace: false,
      activeDeadlineSeconds: settings.maxLifetimeSecs + context.patienceSecs,
      // Nothing in it needs a graceful end.
      terminationGracePeriodSeconds: 1,
      hostname: 'sandbox',
      dnsPolicy: 'None',
      dnsConfig: { nameservers: ['127.0.0.1'] },
      securityContext: {
        runAsNonRoot: true,
        runAsUser: uid,
        runAsGroup: uid,
        seccompProfile: { type: 'RuntimeDefault' },
      },
      ...placement(settings),
      initContainers: [installer(plan, settings, context)],
      containers: [channel(plan, settings, context), sandbox(plan, settings, context)],
      volumes: volumesOf(plan, settings),
    },
  }
}

/** A cluster would wait for five minutes before it gives a Pod up whose node does not answer. */
const LOST_NODE = ['not-ready', 'unreachable'].map((state) => ({
  key: `node.kubernetes.io/${state}`,
  operator: 'Exists',
  effect: 'NoExecute',
  tolerationSeconds: 30,
}))

function placement(settings: KubernetesSettings): Partial<NonNullable<V1Pod['spec']>> {
  const { nodeSelector, tolerations, runtimeClass, priorityClass, pullSecrets } = settings
  return {
    ...(Object.keys(nodeSelector).length > 0 ? { nodeSelector: { ...nodeSelector } } : {}),
    tolerations: [...tolerations.map((one) => ({ ...one })), ...LOST_NODE],
    ...(runtimeClass === undefined ? {} : { runtimeClassName: runtimeClass }),
    ...(priorityClass === undefined ? {} : { priorityClassName: priorityClass }),
    ...(pullSecrets.length > 0 ? { imagePullSecrets: pullSecrets.map((name) => ({ name })) } : {}),
  }
}

/** What Pod Security calls `restricted`, and a root that cannot be written. */
const CONFINED = {
  allowPrivilegeEscalation: false,
  privileged: false,
  readOnlyRootFilesystem: true,
  runAsNonRoot: true,
  capabilities: { drop: ['ALL'] },
}

type Amounts = { readonly cpu: string; readonly memoryMb: number; readonly diskMb: number }

/** The same as request and as limit: the scheduler reserves what a sandbox may use. */
function amounts({ cpu, memoryMb, diskMb }: Amounts): NonNullable<V1Container['resources']> {
  const all = { cpu, memory: `${memoryMb}Mi`, 'ephemeral-storage': `${diskMb}Mi` }
  return { requests: { ...all }, limits: { ...all } }
}

const HELPER: Amounts = { cpu: '50m', memoryMb: CHANNEL_MB, diskMb: 16 }

/** Brings the agent into any image, before the sandbox starts. */
function installer(plan: Plan, settings: KubernetesSettings, { uid }: PodContext): V1Container {
  const home = plan.own[0]
  const name = home ? 'user' : 'agent'
  const shell = home ? '/bin/bash' : '/bin/sh'
  const volumes = volumesFor(plan)
  return {
    name: 'agent',
    image: settings.agentImage,
    imagePullPolicy: settings.pullPolicy,
    command: ['/ringfence-agent', 'pod-install', AGENT_DIR],
    args: [
      `${name}:x:${uid}:${uid}::${home ?? '/tmp'}:${shell}\nnobody:x:65534:65534::/nonexistent:/bin/false\n`,
      `${name}:x:${uid}:\nnogroup:x:65534:\n`,
      ...volumes.map(
        ({ name: volume, subPath, isFile }) => `${VOLUMES_DIR}/${volume}/${subPath}${isFile ? '' : '/'}`,
      ),
    ],
    securityContext: { ...CONFINED },
    resources: amounts(HELPER),
    volumeMounts: [
      { name: 'agent', mountPath: AGENT_DIR },
      ...volumes.map(({ name: volume }) => ({ name: volume, mountPath: `${VOLUMES_DIR}/${volume}` })),
    ],
  }
}

/** The end of the channel: the only container that has the Pod's key. */
function channel(plan: Plan, settings: KubernetesSettings, context: PodContext): V1Container {
  const { name, patienceSecs, takeoverSecs } = context
  const from = (variable: string, key: string) => ({
    name: variable,
    valueFrom: { secretKeyRef: { name, key } },
  })
  return {
    name: 'channel',
    image: settings.agentImage,
    imagePullPolicy: settings.pullPolicy,
    command: ['/ringfence-channel', ...[settings.port, SOCKET, patienceSecs, takeoverSecs].map(String)],
    env: [
      from('RINGFENCE_CERTIFICATE', 'certificate'),
      from('RINGFENCE_KEY', 'key'),
      from('RINGFENCE_AUTHORITY', 'authority'),
    ],
    ports: [{ name: 'channel', containerPort: settings.port, protocol: 'TCP' }],
    securityContext: { ...CONFINED },
    resources: amounts({ ...HELPER, diskMb: HELPER.diskMb + sentMounts(plan).length * SENT_MB }),
    volumeMounts: [
      { name: 'channel', mountPath: CHANNEL_DIR },
      ...sentMounts(plan).map((_, index) => ({
        name: `mount-${index}`,
        mountPath: `${MOUNTS_DIR}/${index}`,
      })),
    ],
  }
}

function sandbox(plan: Plan, settings: KubernetesSettings, { image }: PodContext): V1Container {
  const { cpus, memoryMb, diskMb } = resourcesOf(plan, settings)
  const cpu = `${Math.max(1, Math.round(cpus * 1000))}m`
  return {
    name: 'sandbox',
    image,
    imagePullPolicy: settings.pullPolicy,
    command: [`${AGENT_DIR}/agent`, 'pod', SOCKET],
    workingDir: '/',
    securityContext: { ...CONFINED },
    resources: amounts({ cpu, memoryMb: memoryMb + AGENT_MB, diskMb }),
    volumeMounts: [
      { name: 'agent', mountPath: AGENT_DIR, readOnly: true },
      ...['passwd', 'group'].map((file) => ({
        name: 'agent',
        mountPath: `/etc/${file}`,
        subPath: file,
        readOnly: true,
      })),
      { name: 'channel', mountPath: CHANNEL_DIR, readOnly: true },
      { name: 'tmp', mountPath: '/tmp' },
      ...volumesFor(plan).map(({ name, target, subPath, readOnly }) => ({
        name,
        mountPath: target,
        subPath,
        ...(readOnly ? { readOnly } : {}),
      })),
    ],
    // The agent's own output would go to the node's disk; it writes none.
    terminationMessagePolicy: 'File',
  }
}

/**
 * The directories that only the sandbox has, besides `/tmp`: its private ones, and those of the plan's small files, which are sent over
 * the channel before any command runs.
 */
const ownDirectories = (plan: Plan): readonly string[] => [
  ...new Set([...plan.own, ...plan.files.map(({ target }) => dirname(target))]),
]

/**
 * The mounts of this host's files: the container beside the sandbox fills them before the agent is configured, because inside
 * protected names could not be written, and what is read-only nothing at all.
 */
export const sentMounts = ({ mounts, own }: Plan): readonly Mount[] =>
  mounts.filter(({ target }) => !own.includes(target))

type OwnVolume = {
  readonly name: string
  readonly target: string
  /** What is mounted is inside the volume: the volume itself belongs to the node's root user. */
  readonly subPath: string
  readonly isFile: boolean
  readonly readOnly: boolean
}

const volumesFor = (plan: Plan): readonly OwnVolume[] => [
  ...ownDirectories(plan).map((target, index) => ({
    name: `own-${index}`,
    target,
    subPath: DIRECTORY_NAME,
    isFile: false,
    readOnly: false,
  })),
  ...sentMounts(plan).map(({ target, kind, mode }, index) => ({
    name: `mount-${index}`,
    target,
    subPath: kind === 'file' ? FILE_NAME : DIRECTORY_NAME,
    isFile: kind === 'file',
    readOnly: mode === 'ro',
  })),
]

function volumesOf(plan: Plan, settings: KubernetesSettings): V1Volume[] {
  const { diskMb } = resourcesOf(plan, settings)
  const sizeLimit = `${diskMb}Mi`
  return [
    { name: 'agent', emptyDir: { sizeLimit: '8Mi' } },
    { name: 'channel', emptyDir: { medium: 'Memory', sizeLimit: '1Mi' } },
    { name: 'tmp', emptyDir: { sizeLimit } },
    ...ownDirectories(plan).map((_, index) => ({ name: `own-${index}`, emptyDir: { sizeLimit } })),
    ...sentMounts(plan).map((_, index) => ({ name: `mount-${index}`, emptyDir: {} })),
  ]
}

/** The key of one Pod. The cluster removes it with the Pod, and we remove it as soon as the channel stands. */
export const secretOf = (
  pod: { readonly name: string; readonly uid: string },
  data: Readonly<Record<string, string>>,
): V1Secret => ({
  apiVersion: 'v1',
  kind: 'Secret',
  metadata: {
    name: pod.name,
    labels: { ...MANAGED },
    ownerReferences: [{ apiVersion: 'v1', kind: 'Pod', name: pod.name, uid: pod.uid }],
  },
  immutable: true,
  stringData: { ...data },
})

/** Sandboxes connect to nothing, and only the channel's port is open: the way out is through the channel, to our proxy. */
export const policyOf = ({ port }: KubernetesSettings): V1NetworkPolicy => ({
  apiVersion: 'networking.k8s.io/v1',
  kind: 'NetworkPolicy',
  metadata: { name: POLICY_NAME, labels: { ...MANAGED } },
  spec: {
    podSelector: { matchLabels: { ...SANDBOX } },
    policyTypes: ['Ingress', 'Egress'],
    ingress: [{ ports: [{ protocol: 'TCP', port }] }],
    egress: [],
  },
})
