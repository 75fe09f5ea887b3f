import { SandboxError } from '../errors.ts'
import { GUARANTEE_NAMES, LEVELS } from '../guarantee.ts'
import {
  boolean,
  type Infer,
  list,
  number,
  object,
  oneOf,
  optional,
  record,
  refuse,
  type Shape,
  text,
} from '../shape.ts'
import {
  ISOLATIONS,
  limitsShape,
  mountShape,
  NETWORK_MODES,
  PRESETS,
  placementShape,
  ROOTS,
  UNLISTED,
  volumeMountShape,
} from '../spec.ts'

/** The request for a sandbox: the server parses it, and the client's type comes from it. */

/** The longest time that a caller can ask for, about a hundred years; the end of a longer one would not be a valid date. */
export const LONGEST_MS = 100 * 365 * 24 * 3_600_000
/** Milliseconds, from zero. */
export const ms = () => number({ integer: true, min: 0, max: LONGEST_MS })
/** Text that is not empty and not long. */
export const words = (max = 1024) => text({ max })
/** Environment variables. */
export const envShape = record(text({ empty: true }), /^[A-Za-z_][A-Za-z0-9_]*$/)

/** Limits have the names of the library's spec; the snake_case spelling is accepted too. */
const LIMIT_NAMES: Readonly<Record<string, string>> = {
  memory_mb: 'memoryMb',
  disk_mb: 'diskMb',
  wall_ms: 'wallMs',
  idle_ms: 'idleMs',
  output_bytes: 'outputBytes',
}
const limits: Shape<Infer<typeof limitsShape>> = {
  schema: limitsShape.schema,
  parse(value, at) {
    if (typeof value !== 'object' || value === null || Array.isArray(value))
      return limitsShape.parse(value, at)
    const named = Object.entries(value).map(([name, one]) => [LIMIT_NAMES[name] ?? name, one] as const)
    if (new Set(named.map(([name]) => name)).size < named.length)
      throw new SandboxError('invalid-input', `${at}: a limit is given twice`)
    return limitsShape.parse(Object.fromEntries(named), at)
  },
}

/** Metadata of the caller. SECURITY: names that begin with `ringfence.` are the server's own. */
export function metadataShape(name = /^[^\0=]+$/): Shape<Readonly<Record<string, string>>> {
  const inner = record(text({ empty: true, max: 4096 }), name)
  return {
    ...inner,
    parse(value, at) {
      const given = inner.parse(value, at)
      const reserved = Object.keys(given).find((one) => one.startsWith('ringfence.'))
      return reserved === undefined
        ? given
        : refuse(at, `the name \`${reserved.slice(0, 64)}\` is reserved`, 'choose one without `ringfence.`')
    },
  }
}

/** The body that creates a sandbox. */
export const createShape = object({
  backend: optional(words()),
  min_isolation: optional(oneOf(...LEVELS)),
  preset: optional(oneOf(...PRESETS)),
  template: optional(words()),
  image: optional(words()),
  /**
   * `writable`: a root file system of its own, with a root user; `preferred`: the same where the server can do it. Default:
   * `preferred` with a template, otherwise `read-only`.
   */
  root: optional(oneOf(...ROOTS)),
  workspace: optional(words(4096)),
  read: optional(list(words(4096), 256)),
  write: optional(list(words(4096), 256)),
  deny: optional(list(words(4096), 256)),
  mounts: optional(list(mountShape, 256)),
  /** Volumes of this tenant, by name or id. */
  volumes: optional(list(volumeMountShape, 16)),
  network: optional(
    object({
      mode: optional(oneOf(...NETWORK_MODES)),
      allow_hosts: optional(list(words(), 1024)),
      /** What happens to a connection to another host in mode `fetch`; default: `[network] unlisted`. */
      unlisted: optional(oneOf(...UNLISTED)),
      /** A SOCKS5 proxy that the operator permits, `host:port`, through which everything leaves. */
      upstream: optional(text({ max: 512 })),
    }),
  ),
  unix_sockets: optional(list(words(4096), 64)),
  /** Secrets that the proxy inserts: `NAME=SECRET@HOST`, of those that the operator offers. */
  secrets: optional(list(words(1024), 64)),
  /** `command`: every command has namespaces of its own and shares only the mounts with the others. Default: `sandbox`. */
  isolation: optional(oneOf(...ISOLATIONS)),
  limits: optional(limits),
  env: optional(envShape),
  waive: optional(list(oneOf(...GUARANTEE_NAMES))),
  metadata: optional(metadataShape()),
  /** Ports are reachable without a key. */
  public_ports: optional(boolean()),
  /** Changes to host directories need approval. */
  review: optional(boolean()),
  timeout_ms: optional(ms()),
  idle_ms: optional(ms()),
  /** Where in a cluster it runs. */
  placement: optional(placementShape),
  /** In a cluster: another node starts it again from its last snapshot when its node is lost or drained. */
  restart: optional(boolean()),
  agent_id: optional(text({ max: 256 })),
})
/** A parsed create. */
export type CreateBody = Infer<typeof createShape>
