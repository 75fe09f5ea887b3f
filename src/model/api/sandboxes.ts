import { LEVELS } from '../guarantee.ts'
import { boolean, type Infer, number, object, oneOf, optional, record, text } from '../shape.ts'
import { limitsShape, NETWORK_MODES, PRESETS, UNLISTED } from '../spec.ts'
import { arrayOf, described, nullable, pageOf, string, time } from './fields.ts'

/** Sandboxes, their isolation, their connections and their snapshots. */

const integer = () => number({ integer: true })

/** The states of a sandbox as they are stored. */
export const STATES = [
  'requested',
  'provisioning',
  'ready',
  'paused',
  'destroying',
  'destroyed',
  'failed',
] as const
/** The states of a sandbox as callers see them; `executing` is ready with a command running, and never stored. */
export const SHOWN_STATES = [...STATES, 'executing'] as const
/** The state of a sandbox as callers see it. */
export type SandboxState = (typeof SHOWN_STATES)[number]

const networkShape = object({
  mode: oneOf(...NETWORK_MODES),
  allow_hosts: arrayOf(string()),
  /** Present if a person is asked about other hosts. */
  unlisted: optional(oneOf(...UNLISTED)),
})

/** What every answer about a sandbox has. */
export const sandboxFields = {
  id: string(),
  state: oneOf(...SHOWN_STATES),
  reason: nullable(string()),
  backend: nullable(string()),
  level: nullable(oneOf(...LEVELS)),
  layers: described('the isolation layers as the kernel reports them', arrayOf(string())),
  created_at: time(),
  expires_at: nullable(time()),
  ended_at: nullable(time()),
  limits: limitsShape,
  network: networkShape,
  volumes: arrayOf(object({ name: string(), target: string(), mode: oneOf('ro', 'rw') })),
  metadata: record(string()),
  public_ports: described('ports are reachable without a key', boolean()),
  review: described('changes to host directories need approval', boolean()),
  restart: described('another node starts it again when its node is lost', boolean()),
  generation: described('1, and one more each time another node takes the sandbox over', integer()),
  agent_id: nullable(string()),
  tenant: string(),
}
const token = described('a key for this sandbox only; shown once', optional(string()))

/** A sandbox. */
export const sandboxShape = object(sandboxFields)
/** A page of sandboxes. */
export const sandboxPage = pageOf(sandboxShape)
/** The answer to creating or forking a sandbox. */
export const createdSandboxShape = object({ ...sandboxFields, token })
/** A sandbox; `token` is only in the answer to its creation. */
export type SandboxInfo = Infer<typeof createdSandboxShape>

/** The policy's verdict on one host of a sandbox's list. */
const hostVerdictShape = object({ host: string(), verdict: oneOf('allow', 'deny'), reason: string() })
/** The policy's verdict on one host of a sandbox's list. */
export type HostVerdict = Infer<typeof hostVerdictShape>
/** The answer to a new list of allowed hosts. */
export const networkChangeShape = object({ ...sandboxFields, hosts: arrayOf(hostVerdictShape) })
/** A sandbox with the verdict on each of its hosts. */
export type NetworkChange = Infer<typeof networkChangeShape>

/** What a sandbox is doing now. */
export const sandboxMetricsShape = object({
  id: string(),
  state: oneOf(...SHOWN_STATES),
  running: integer(),
  execs: integer(),
  ttl_left_ms: nullable(number()),
  idle_left_ms: nullable(number()),
  uptime_ms: number(),
  cpu_ms: described(
    'processor time used so far; null where the backend cannot measure it',
    nullable(number()),
  ),
  memory_bytes: described('memory in use; null where the backend cannot measure it', nullable(number())),
})

/** What a sandbox is doing and using now. */
export type SandboxMetrics = Infer<typeof sandboxMetricsShape>

/** What a sandbox used at one time. */
const usageShape = object({
  at: time(),
  cpus: described('average number of busy CPUs since the sample before', number()),
  memory_bytes: integer(),
})
/** What a sandbox used at one time. */
export type UsageView = Infer<typeof usageShape>
/** The use of a sandbox over its whole life, oldest first. */
export const usagePage = pageOf(usageShape)

/** The files of a sandbox at one moment. */
export const snapshotShape = object({
  id: described('the value of `template` when a sandbox is created', string()),
  name: nullable(string()),
  sandbox_id: nullable(string()),
  backend: string(),
  created_at: time(),
})
/** The files of a sandbox at one moment; its id is a `template` for other sandboxes. */
export type SnapshotInfo = Infer<typeof snapshotShape>
/** A page of snapshots. */
export const snapshotPage = pageOf(snapshotShape)

/** Files and settings that a build made; its id or name is a `template` for sandboxes. */
export const templateShape = object({
  id: string(),
  name: nullable(string()),
  tags: arrayOf(string()),
  backend: string(),
  created_at: time(),
})
/** What a build made; its id or name is a `template` for sandboxes. */
export type TemplateInfo = Infer<typeof templateShape>
/** A page of templates. */
export const templatePage = pageOf(templateShape)

/** The body that builds a template. */
export const newTemplateShape = object({
  name: text({ max: 128 }),
  /** An image of a registry; one of `image`, `template` and `dockerfile`. */
  image: optional(text({ max: 512 })),
  /** A template to start from. */
  template: optional(text({ max: 256 })),
  dockerfile: optional(text({ max: 256 * 1024 })),
  /** The hash under which the files for COPY were uploaded, as an archive of the directory. */
  context: optional(text({ max: 128 })),
  /** For a registry that asks for them. Not kept. */
  credentials: optional(object({ username: text({ max: 1024 }), password: text({ max: 65_536 }) })),
  start_command: optional(text({ max: 65_536 })),
  ready_command: optional(text({ max: 65_536 })),
  cpus: optional(number({ integer: true, min: 1, max: 4096 })),
  memory_mb: optional(number({ integer: true, min: 1, max: 2 ** 30 })),
  /** Runs every step again. */
  no_cache: optional(boolean()),
})

/** A build of a template, with the lines of its log after a position. */
export const buildShape = object({
  id: string(),
  template_id: string(),
  name: string(),
  status: oneOf('waiting', 'building', 'ready', 'error'),
  log: arrayOf(object({ time: time(), level: string(), message: string() })),
  next: described('the position after these lines', integer()),
  reason: nullable(object({ message: string(), step: nullable(string()) })),
})
/** A build of a template. */
export type TemplateBuild = Infer<typeof buildShape>

const wallMountShape = object({
  /** The host's path; only the operator sees it. */
  source: nullable(string()),
  target: string(),
  mode: oneOf('ro', 'rw'),
  kind: string(),
  own: boolean(),
  review: boolean(),
})
/** A host path that is mounted in a sandbox. */
export type WallMount = Infer<typeof wallMountShape>

/** What isolates a sandbox: all of it while the sandbox is open, the layers afterwards. */
export const wallShape = object({
  id: string(),
  open: boolean(),
  layers: arrayOf(string()),
  backend: optional(string()),
  level: optional(oneOf(...LEVELS)),
  preset: optional(oneOf(...PRESETS)),
  image: optional(nullable(string())),
  cwd: optional(string()),
  run_as: optional(nullable(object({ uid: integer(), gid: integer() }))),
  mounts: optional(arrayOf(wallMountShape)),
  masks: optional(arrayOf(string())),
  network: optional(networkShape),
  unix_sockets: optional(arrayOf(string())),
  files: optional(arrayOf(string())),
  env: optional(arrayOf(string())),
  limits: optional(limitsShape),
  nets: optional(arrayOf(string())),
  needs: optional(arrayOf(string())),
  waived: optional(arrayOf(string())),
  protection: optional(arrayOf(string())),
  secrets: optional(arrayOf(object({ name: string(), host: string() }))),
})
/** What isolates a sandbox. */
export type Wall = Infer<typeof wallShape>

/** One connection through a sandbox's proxy. */
const egressShape = object({
  host: string(),
  port: integer(),
  address: nullable(string()),
  protocol: string(),
  verdict: oneOf('allow', 'deny'),
  reason: string(),
  bytes_in: integer(),
  bytes_out: integer(),
  duration_ms: integer(),
  at: nullable(time()),
})
/** One connection through a sandbox's proxy. */
export type EgressView = Infer<typeof egressShape>
/** The latest connections of a sandbox. */
export const egressPage = pageOf(egressShape)
