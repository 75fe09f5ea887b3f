import { GUARANTEE_NAMES, LEVELS } from './guarantee.ts'
import { boolean, type Infer, list, number, object, oneOf, optional, record, text } from './shape.ts'

/** A sandbox request. Untrusted input must go through `parseSpec`. */

export const PRESETS = ['read-only', 'workspace-write', 'danger-full-access'] as const
/** A file system preset. */
export type Preset = (typeof PRESETS)[number]

/** Strictest first: `offline` reaches nothing, `full` is the host's network. */
export const NETWORK_MODES = ['offline', 'loopback', 'fetch', 'full'] as const
/** How a sandbox reaches the network. */
export type NetworkMode = (typeof NETWORK_MODES)[number]

/** What happens to a connection to a host that is not on the list: it is refused, or a person is asked while it waits. */
export const UNLISTED = ['deny', 'ask'] as const
/** Refuse or ask. */
export type Unlisted = (typeof UNLISTED)[number]

/** Whether the root file system of a sandbox is its own. */
export const ROOTS = ['read-only', 'writable', 'preferred'] as const
/** What one command of a sandbox shares with the others: everything, or only the mounts. */
export const ISOLATIONS = ['sandbox', 'command'] as const
/** How the commands of a sandbox are kept apart. */
export type Isolation = (typeof ISOLATIONS)[number]
const MB_MAX = 2 ** 30
const whole = (max: number) => number({ integer: true, min: 1, max })

/** The limits of a sandbox or a command. */
export const limitsShape = object({
  cpus: optional(number({ above: 0, max: 4096 })),
  memoryMb: optional(whole(MB_MAX)),
  diskMb: optional(whole(MB_MAX)),
  pids: optional(whole(2 ** 22)),
  // Node's timers are limited to 31 bits.
  wallMs: optional(whole(2 ** 31 - 1)),
  idleMs: optional(whole(2 ** 31 - 1)),
  outputBytes: optional(whole(2 ** 40)),
  fuel: optional(whole(Number.MAX_SAFE_INTEGER)),
})
/** Limits, each with its unit in the name. Absent: not requested. */
export type Limits = Infer<typeof limitsShape>

/** One host path to mount. */
export const mountShape = object({ source: text(), target: text(), mode: optional(oneOf('ro', 'rw')) })

/** One volume to mount. */
export const volumeMountShape = object({
  name: text({ max: 128 }),
  target: text({ max: 4096 }),
  mode: optional(oneOf('ro', 'rw')),
})

/** Where in a cluster a sandbox runs. */
export const placementShape = object({
  /** The only node that fits, by id or name. */
  node: optional(text({ max: 64 })),
  /** Labels that its node has, from `labels` in [cluster]. */
  labels: optional(record(text({ empty: true, max: 256 }))),
})

/** What a caller may ask for when it creates a sandbox. */
export const specShape = object({
  backend: optional(text()),
  minIsolation: optional(oneOf(...LEVELS)),
  preset: optional(oneOf(...PRESETS)),
  /** The main writable directory; commands start there. */
  workspace: optional(text()),
  read: optional(list(text())),
  write: optional(list(text())),
  deny: optional(list(text())),
  mounts: optional(list(mountShape)),
  network: optional(
    object({
      mode: optional(oneOf(...NETWORK_MODES)),
      allowHosts: optional(list(text())),
      /** In mode `fetch`: what happens to a connection to a host that is not on the list. Default: `[network] unlisted`. */
      unlisted: optional(oneOf(...UNLISTED)),
      /** In mode `fetch`: a SOCKS5 proxy of the operator (`[[network.upstream]]`), `host:port`, through which everything leaves. */
      upstream: optional(text({ max: 512 })),
      /** Headers that the proxy sets in requests to a host. A value may name a secret: `${e2b.secrets.NAME}`. */
      headers: optional(list(object({ host: text(), headers: record(text({ empty: true })) }), 64)),
    }),
  ),
  unixSockets: optional(list(text())),
  /** `command`: every command has namespaces of its own and shares only the mounts with the others. Default: `sandbox`. */
  isolation: optional(oneOf(...ISOLATIONS)),
  /** `NAME=ENVVAR@HOST`: the sandbox gets a placeholder, the proxy has the value. */
  secrets: optional(list(text())),
  /** Paths of private directories inside the sandbox; the first is its home. The code that opens the sandbox creates them. */
  private: optional(list(text(), 8)),
  /** Volumes of the tenant, by name or id; the server knows their directories. */
  volumes: optional(list(volumeMountShape, 16)),
  /**
   * `writable`: a root file system of its own, with a root user; `preferred`: the same where the host and the backend
   * can do it, otherwise `read-only`, which is the default. On a server.
   */
  root: optional(oneOf(...ROOTS)),
  env: optional(record(text({ empty: true }), /^[A-Za-z_][A-Za-z0-9_]*$/)),
  limits: optional(limitsShape),
  waive: optional(list(oneOf(...GUARANTEE_NAMES))),
  image: optional(text()),
  template: optional(text()),
  /** On a server: ports are reachable by URL without a key. */
  publicPorts: optional(boolean()),
  /** Writes go to an overlay until they are applied or dropped. */
  review: optional(boolean()),
  /** Records file accesses and started programs. */
  learn: optional(boolean()),
  /** On a server: what happens when the time of the sandbox is over. Default: it ends. */
  atTimeout: optional(
    object({
      action: oneOf('end', 'pause'),
      /** Whether the processes stay frozen in memory (default) or only the files are kept. */
      keepMemory: optional(boolean()),
      /** Whether the next request wakes the paused sandbox. */
      wakes: optional(boolean()),
    }),
  ),
  /** On a server that is a node of a cluster. */
  placement: optional(placementShape),
  /** In a cluster: another node starts it again from its last snapshot when its node is lost or drained. */
  restart: optional(boolean()),
  agentId: optional(text({ max: 256 })),
  metadata: optional(record(text({ empty: true }))),
})
/** A parsed request for a sandbox. */
export type Spec = Infer<typeof specShape>

/** Parses a spec; throws `invalid-input` with the field that is wrong. */
export const parseSpec = (value: unknown): Spec => specShape.parse(value, '')

/** Whether sandboxes of a backend can outlive the server that created them. */
export const mayOutlive = (backend: string | null | undefined): boolean => backend === 'kubernetes'

/** Every backend that Ringfence has, on any platform. */
export const BACKENDS = [
  'bubblewrap',
  'seatbelt',
  'docker',
  'gvisor',
  'microvm',
  'kubernetes',
  'e2b',
  'openshell',
  'native',
  'mock',
] as const

/** Backends on other machines, which need no default limits to protect this host. */
export const isRemote = (backend: string | undefined): boolean => backend === 'e2b' || backend === 'openshell'
