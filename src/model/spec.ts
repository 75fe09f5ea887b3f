import { GUARANTEE_NAMES, LEVELS } from './guarantee.ts'
import { boolean, type Infer, list, number, object, oneOf, optional, record, text } from './shape.ts'

/** What a caller asks for. Untrusted: only `parseSpec` makes one from outside data. */

export const PRESETS = ['read-only', 'workspace-write', 'danger-full-access'] as const
/** A file system preset. */
export type Preset = (typeof PRESETS)[number]

/** Weakest wall last: `offline` reaches nothing, `full` is the host's own network. */
export const NETWORK_MODES = ['offline', 'loopback', 'fetch', 'full'] as const
/** How a sandbox reaches the network. */
export type NetworkMode = (typeof NETWORK_MODES)[number]

const MB_MAX = 2 ** 30
const whole = (max: number) => number({ integer: true, min: 1, max })

/** The limits of a sandbox or a command. */
export const limitsShape = object({
  cpus: optional(number({ above: 0, max: 4096 })),
  memoryMb: optional(whole(MB_MAX)),
  diskMb: optional(whole(MB_MAX)),
  pids: optional(whole(2 ** 22)),
  // Timers in the host's event loop hold 31 bits.
  wallMs: optional(whole(2 ** 31 - 1)),
  idleMs: optional(whole(2 ** 31 - 1)),
  outputBytes: optional(whole(2 ** 40)),
  fuel: optional(whole(Number.MAX_SAFE_INTEGER)),
})
/** Ceilings, each with its unit in the name. Absent means: no ceiling was asked for. */
export type Limits = Infer<typeof limitsShape>

/** One host path to mount. */
export const mountShape = object({ source: text(), target: text(), mode: optional(oneOf('ro', 'rw')) })

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
  network: optional(object({ mode: optional(oneOf(...NETWORK_MODES)), allowHosts: optional(list(text())) })),
  unixSockets: optional(list(text())),
  /** `NAME=ENVVAR@HOST`: the sandbox holds a placeholder, the proxy the value. */
  secrets: optional(list(text())),
  /** Fresh directories of the sandbox's own at these places in it; the first is its home. Whoever opens it makes them. */
  private: optional(list(text(), 8)),
  env: optional(record(text({ empty: true }), /^[A-Za-z_][A-Za-z0-9_]*$/)),
  limits: optional(limitsShape),
  waive: optional(list(oneOf(...GUARANTEE_NAMES))),
  image: optional(text()),
  template: optional(text()),
  /** On a server: whoever knows the address of a port reaches it without a key. */
  publicPorts: optional(boolean()),
  /** Writes land in an overlay and wait for a person's word. */
  review: optional(boolean()),
  /** Notes what commands open and start. */
  learn: optional(boolean()),
  agentId: optional(text({ max: 256 })),
  metadata: optional(record(text({ empty: true }))),
})
/** A parsed request for a sandbox. */
export type Spec = Infer<typeof specShape>

/** Parses a spec; throws `invalid-input` with the field that is wrong. */
export const parseSpec = (value: unknown): Spec => specShape.parse(value, '')

/** Backends whose sandboxes are on another machine: this host needs no net that keeps it alive under them. */
export const isRemote = (backend: string | undefined): boolean => backend === 'e2b' || backend === 'openshell'
