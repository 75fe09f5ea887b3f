import { ACTIONS } from './decision.ts'
import { GUARANTEE_NAMES } from './guarantee.ts'
import {
  boolean,
  type Infer,
  list,
  number,
  object,
  oneOf,
  optional,
  refuse,
  type Shape,
  text,
} from './shape.ts'
import { NETWORK_MODES } from './spec.ts'

/** `ringfence.toml`, exactly as an operator writes it. Unknown keys are errors, so a typo never drops a rule. */

export const ruleShape = object({
  id: optional(text()),
  prefix: optional(list(text())),
  glob: optional(text()),
  regex: optional(text()),
  action: oneOf(...ACTIONS),
  why: optional(text()),
  priority: optional(number({ integer: true })),
  tags: optional(list(text())),
  /** The rule holds only when the command runs in one of these directories. */
  dirs: optional(list(text())),
  match: optional(list(text())),
  not_match: optional(list(text())),
})
/** One `[[policy.rule]]`. */
export type RuleConfig = Infer<typeof ruleShape>

const positive = (max: number) => number({ integer: true, min: 1, max })

const policyShape = object({
  allowed_host_prefixes: optional(list(text())),
  blocked_host_patterns: optional(list(text())),
  max_cpus: optional(number({ above: 0, max: 4096 })),
  max_memory_mb: optional(positive(2 ** 30)),
  max_disk_mb: optional(positive(2 ** 30)),
  max_pids: optional(positive(2 ** 22)),
  allowed_network_modes: optional(list(oneOf(...NETWORK_MODES))),
  allow_interactive: optional(boolean()),
  default_action: optional(oneOf(...ACTIONS)),
  rule: optional(list(ruleShape)),
})

/** Sandboxes that are made beforehand, for callers who ask for exactly these. */
const poolShape = object({
  size: positive(1024),
  backend: optional(text()),
  template: optional(text()),
  image: optional(text()),
  network: optional(oneOf(...NETWORK_MODES)),
  cpus: optional(number({ above: 0, max: 4096 })),
  memory_mb: optional(positive(2 ** 30)),
})

/** A value that is lent to sandboxes and never shown to them. */
const secretShape = object({
  name: text(),
  /** Where it lies: a file that nobody else can read, which a reload reads anew, or a variable of our environment. */
  file: optional(text()),
  env: optional(text()),
  /** The only places that requests may carry it to, written as in `--secret`. */
  hosts: list(text()),
  /** The tenants whose sandboxes may use it; absent: only keys with the scope `admin`. */
  tenants: optional(list(text())),
})
/** One `[[secret]]`. */
export type SecretConfig = Infer<typeof secretShape>

/** What the keys of one tenant may have of a server beyond the default. Each list replaces the default list. */
const tenantShape = object({
  name: text({ max: 64 }),
  /** Default: every isolating backend on this machine; never `native`, `mock` or a remote one. */
  backends: optional(list(text())),
  /** Default: offline, loopback, fetch. */
  network_modes: optional(list(oneOf(...NETWORK_MODES))),
  /** The hosts that its sandboxes may reach in mode `fetch`. Default: what `[network] allow_hosts` says. */
  allow_hosts: optional(list(text())),
  /** Host directories, files and sockets that it may mount, each with everything below it. Default: none. */
  host_paths: optional(list(object({ path: absolutePath(), mode: oneOf('ro', 'rw') }))),
  /** Guarantees that it may waive. Default: none. */
  waive: optional(list(oneOf(...GUARANTEE_NAMES))),
  /** Images of the container engine that it may run, beside those of `ringfence image build`. Default: none. */
  images: optional(list(text())),
  /** Whether ports of its sandboxes may be opened to anybody who knows the address. Default: true. */
  public_ports: optional(boolean()),
  /** How many sandboxes its keys have together. Default: `max_sandboxes_per_tenant` of the server. */
  max_sandboxes: optional(positive(1_000_000)),
  /** Ceilings of one sandbox; they also hold for a sandbox that asks for none. */
  max_cpus: optional(number({ above: 0, max: 4096 })),
  max_memory_mb: optional(positive(2 ** 30)),
  max_disk_mb: optional(positive(2 ** 30)),
  max_pids: optional(positive(2 ** 22)),
})
/** One `[[tenant]]`. */
export type TenantConfig = Infer<typeof tenantShape>

/** SECURITY: a relative path would mean another directory for each place that the server is started from. */
function absolutePath(): Shape<string> {
  return {
    ...text(),
    parse(value, at) {
      const path = text().parse(value, at)
      return /^(\/|~(\/|$))/.test(path) && !path.split('/').includes('..')
        ? path
        : refuse(at, `\`${path}\` is not an absolute path`)
    },
  }
}

/** SECURITY: of two tables for one tenant, one would silently not count. */
const tenantsShape: Shape<readonly TenantConfig[]> = {
  ...list(tenantShape, 4096),
  parse(value, at) {
    const tenants = list(tenantShape, 4096).parse(value, at)
    const names = tenants.map(({ name }) => name)
    const twice = names.find((name, index) => names.indexOf(name) !== index)
    return twice === undefined ? tenants : refuse(at, `tenant \`${twice}\` stands there twice`)
  },
}

/** Hypervisors that `[microvm] driver` selects. */
export const MICROVM_DRIVERS = ['qemu', 'firecracker', 'vz'] as const

/** The whole configuration file. */
export const configShape = object({
  policy: optional(policyShape),
  commands: optional(object({ allowed: optional(list(text())) })),
  router: optional(object({ always_sandbox: optional(list(text())), never_sandbox: optional(list(text())) })),
  network: optional(object({ allow_private: optional(list(text())), allow_hosts: optional(list(text())) })),
  secret: optional(list(secretShape, 256)),
  tenant: optional(tenantsShape),
  sandbox: optional(
    object({
      // 0 means that there is none: a way to switch WebAssembly off.
      wasm_fuel_limit: optional(number({ integer: true, min: 0, max: Number.MAX_SAFE_INTEGER })),
      wasm_epoch_deadline: optional(positive(2 ** 31)),
      wasm_memory_limit_mb: optional(positive(4096)),
      wasm_stack_limit: optional(positive(2 ** 20)),
      subprocess_timeout_secs: optional(positive(2 ** 31)),
      subprocess_output_limit: optional(positive(2 ** 31)),
      subprocess_max_concurrent: optional(positive(10_000)),
    }),
  ),
  backends: optional(
    object({
      order: optional(list(text())),
      /** Whether a server may run commands without isolation, for keys with the scope `admin` and tenants that have it. */
      allow_native: optional(boolean()),
      /** What Docker starts containers with; absent: what the engine takes by itself. */
      docker_runtime: optional(oneOf('runc', 'runsc')),
      /** Containers that a server keeps ready for each kind of sandbox that was asked for. */
      ready: optional(number({ integer: true, min: 0, max: 64 })),
      /** Virtual machines may be chosen even where the processor cannot run them and a program has to. */
      emulate: optional(boolean()),
    }),
  ),
  microvm: optional(
    object({
      /** The hypervisor. Only `qemu` runs sandboxes today; `doctor` says what the others lack on this host. */
      driver: optional(oneOf(...MICROVM_DRIVERS)),
    }),
  ),
  server: optional(
    object({
      host: optional(text()),
      port: optional(number({ integer: true, min: 0, max: 65_535 })),
      database_url: optional(text({ empty: true })),
      /** How long PostgreSQL may take for an answer before that is an error. */
      database_timeout_secs: optional(positive(3600)),
      tls_cert: optional(text()),
      tls_key: optional(text()),
      /** Names by which the server may be called, beside its addresses and `localhost`; `*.example.com`. */
      hosts: optional(list(text())),
      /** Web pages that may call it, as `https://console.example.com`. */
      origins: optional(list(text())),
      requests_per_second: optional(positive(1_000_000)),
      /** How many wrong keys an address may try in a second. */
      wrong_keys_per_second: optional(positive(1_000_000)),
      max_sandboxes: optional(positive(1_000_000)),
      max_sandboxes_per_key: optional(positive(1_000_000)),
      /** For each tenant whose row says nothing else. Default: half of `max_sandboxes`. Keys with the scope admin have no such ceiling. */
      max_sandboxes_per_tenant: optional(positive(1_000_000)),
      max_creating: optional(positive(4096)),
      max_execs: optional(positive(100_000)),
      /** Commands in the background, streams and terminals; more are refused. */
      max_background_execs: optional(positive(1_000_000)),
      max_waiting: optional(positive(1_000_000)),
      /** How much of what commands printed is kept in memory, for all sandboxes together. */
      kept_output_mb: optional(positive(2 ** 20)),
      default_timeout_secs: optional(positive(2 ** 31)),
      approval_timeout_secs: optional(positive(2 ** 31)),
      drain_secs: optional(positive(3600)),
      /** How long the records of what ended are kept; the trail stays for ever. */
      keep_days: optional(positive(36_500)),
      pool: optional(list(poolShape, 64)),
    }),
  ),
})
/** A parsed configuration file. */
export type Config = Infer<typeof configShape>
