import { ACTIONS } from './decision.ts'
import { GUARANTEE_NAMES } from './guarantee.ts'
import { mcpServersShape } from './mcp-config.ts'
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
} from './shape.ts'
import { BACKENDS, NETWORK_MODES, UNLISTED } from './spec.ts'

/** The shape of `ringfence.toml`. Unknown keys are errors, so that a typo never drops a rule. */

export const ruleShape = object({
  id: optional(text()),
  prefix: optional(list(text())),
  glob: optional(text()),
  regex: optional(text()),
  action: oneOf(...ACTIONS),
  why: optional(text()),
  priority: optional(number({ integer: true })),
  tags: optional(list(text())),
  /** The rule applies only to commands that run in one of these directories. */
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
  isolate_commands: optional(boolean()),
  allowed_network_modes: optional(list(oneOf(...NETWORK_MODES))),
  allow_interactive: optional(boolean()),
  default_action: optional(oneOf(...ACTIONS)),
  rule: optional(list(ruleShape)),
})

/** Sandboxes that are created in advance, for requests with exactly these settings. */
const poolShape = object({
  size: positive(1024),
  backend: optional(text()),
  template: optional(text()),
  image: optional(text()),
  network: optional(oneOf(...NETWORK_MODES)),
  cpus: optional(number({ above: 0, max: 4096 })),
  memory_mb: optional(positive(2 ** 30)),
})

/** A secret that the proxy uses for sandboxes; its value never enters a sandbox. */
const secretShape = object({
  name: text(),
  /** Source of the value: a file that only its owner can read, read again at each reload, or an environment variable. */
  file: optional(text()),
  env: optional(text()),
  /** The only hosts that it is sent to, as in `--secret`. */
  hosts: list(text()),
  /** The tenants whose sandboxes may use it; absent: only keys with the scope `admin`. */
  tenants: optional(list(text())),
})
/** One `[[secret]]`. */
export type SecretConfig = Infer<typeof secretShape>

/** What the keys of one tenant may use beyond the default. Each list replaces the default list. */
const tenantShape = object({
  name: text({ max: 64 }),
  /** Default: every isolating backend on this machine; never `native`, `mock` or a remote one. */
  backends: optional(list(text())),
  /** Default: offline, loopback, fetch. */
  network_modes: optional(list(oneOf(...NETWORK_MODES))),
  /** The hosts that its sandboxes may reach in mode `fetch`. Default: `[network] allow_hosts`. */
  allow_hosts: optional(list(text())),
  /** Host directories, files and sockets that it may mount, including everything inside. Default: none. */
  host_paths: optional(list(object({ path: absolutePath(), mode: oneOf('ro', 'rw') }))),
  /** Guarantees that it may waive. Default: none. */
  waive: optional(list(oneOf(...GUARANTEE_NAMES))),
  /** Images of the container engine that it may run, besides those of `ringfence image build`. Default: none. */
  images: optional(list(text())),
  /** Whether its sandboxes may have public ports. Default: true. */
  public_ports: optional(boolean()),
  /** How many sandboxes its keys have together. Default: `max_sandboxes_per_tenant` of the server. */
  max_sandboxes: optional(positive(1_000_000)),
  /** Maximum limits of one sandbox; they also apply to a sandbox that requests no limits. */
  max_cpus: optional(number({ above: 0, max: 4096 })),
  max_memory_mb: optional(positive(2 ** 30)),
  max_disk_mb: optional(positive(2 ** 30)),
  max_pids: optional(positive(2 ** 22)),
})
/** One `[[tenant]]`. */
export type TenantConfig = Infer<typeof tenantShape>

/** SECURITY: a relative path would depend on the directory in which the server is started. */
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

/** SECURITY: without TLS anybody on the way could replace an image. */
function mirrorUrl(): Shape<string> {
  return {
    ...text(),
    parse(value, at) {
      const said = text().parse(value, at)
      const url = URL.canParse(said) ? new URL(said) : undefined
      const isLocal = /^(127(\.\d{1,3}){3}|localhost|\[::1\])$/.test(url?.hostname ?? '')
      const isPlain = url?.pathname === '/' && url.search === '' && url.username === ''
      if (url && isPlain && (url.protocol === 'https:' || (url.protocol === 'http:' && isLocal))) return said
      return refuse(at, `\`${said}\` is not \`https://host[:port]\`, nor \`http://\` on the loopback`)
    },
  }
}

/** SECURITY: of two tables for one tenant, one would be ignored silently. */
const tenantsShape: Shape<readonly TenantConfig[]> = {
  ...list(tenantShape, 4096),
  parse(value, at) {
    const tenants = list(tenantShape, 4096).parse(value, at)
    const names = tenants.map(({ name }) => name)
    const twice = names.find((name, index) => names.indexOf(name) !== index)
    return twice === undefined ? tenants : refuse(at, `tenant \`${twice}\` stands there twice`)
  },
}

/** One answer "always" to the question about a host. */
const approvedHostShape = object({
  /** `name:port`, as the question named it. */
  host: text(),
  /** The tenant whose sandbox asked; absent: sandboxes that are not a tenant's. */
  tenant: optional(text({ max: 64 })),
})

/** Hypervisors that `[microvm] driver` selects. */
export const MICROVM_DRIVERS = ['qemu', 'firecracker', 'vz'] as const

/** What a server does in a cluster. */
export const CLUSTER_ROLES = ['all', 'api', 'node'] as const

const factor = () => number({ above: 0, max: 1000 })

/** This server as a node of a cluster. */
const clusterShape = object({
  /** How people call this node. Default: the name of the machine. */
  name: optional(text({ max: 64 })),
  /** `api` answers requests and runs no sandboxes; `node` runs sandboxes for the others. Default: all. */
  role: optional(oneOf(...CLUSTER_ROLES)),
  /** Where this node listens for the others: `host:port`. */
  listen: optional(text({ max: 256 })),
  /** Where the others reach it, if that is another address: `https://host:port`. */
  url: optional(text({ max: 256 })),
  /** The file with the cluster's key. Default: `cluster.key` in the state directory, which `cluster join` writes. */
  key_file: optional(text()),
  /** How long a node that stopped keeps its sandboxes before it is lost. Default: 10. */
  lease_secs: optional(number({ min: 1, max: 3600 })),
  /** What `placement` in a create can ask for. */
  labels: optional(record(text({ max: 256 }), /^[\w./-]{1,64}$/)),
  /** What this node has; default: what the machine has. */
  cpus: optional(number({ above: 0, max: 65_536 })),
  memory_mb: optional(positive(2 ** 40)),
  disk_mb: optional(positive(2 ** 40)),
  /** How many times that its sandboxes may reserve together. Default: processors 8, memory 1, disk 10. */
  overcommit: optional(
    object({ cpu: optional(factor()), memory: optional(factor()), disk: optional(factor()) }),
  ),
  /** What a sandbox reserves that has no limit. Default: 0.1 processors, 64 MB of memory, 64 MB of disk. */
  reserve: optional(
    object({
      cpus: optional(number({ above: 0, max: 4096 })),
      memory_mb: optional(positive(2 ** 30)),
      disk_mb: optional(positive(2 ** 30)),
    }),
  ),
  /** How many creates wait for room, and how long. Default: 256, 10. */
  max_waiting: optional(number({ integer: true, min: 0, max: 100_000 })),
  wait_secs: optional(number({ min: 0, max: 600 })),
})
/** A name as Kubernetes has them. */
const kubernetesName = () => text({ max: 253 })

/** Pods of a Kubernetes cluster as sandboxes. */
const kubernetesShape = object({
  /** The file that says how to reach the cluster. Default: the service account of the Pod that this server runs in. */
  kubeconfig: optional(text()),
  context: optional(kubernetesName()),
  namespace: optional(kubernetesName()),
  /** The image with the guest agent and the channel (`npm run image:pod`). */
  agent_image: text({ max: 512 }),
  /** The image of sandboxes that name none. */
  image: optional(text({ max: 512 })),
  image_pull_policy: optional(oneOf('Always', 'IfNotPresent', 'Never')),
  image_pull_secrets: optional(list(kubernetesName())),
  node_selector: optional(record(text({ max: 63, empty: true }), /^[\w./-]{1,317}$/)),
  tolerations: optional(
    list(
      object({
        key: optional(text({ max: 317 })),
        operator: optional(oneOf('Exists', 'Equal')),
        value: optional(text({ max: 63 })),
        effect: optional(oneOf('NoSchedule', 'PreferNoSchedule', 'NoExecute')),
      }),
    ),
  ),
  runtime_class: optional(kubernetesName()),
  /** What that RuntimeClass is. A probe inside must confirm it. */
  runtime: optional(oneOf('gvisor', 'microvm')),
  /** A namespace for each tenant, which the operator creates (`use`) or the server (`create`). */
  tenant_namespaces: optional(oneOf('use', 'create')),
  /** What the sandboxes of one tenant may have together, in a namespace that the server creates. */
  tenant_quota: optional(
    object({
      pods: optional(positive(1_000_000)),
      cpus: optional(number({ above: 0, max: 1_000_000 })),
      memory_mb: optional(positive(2 ** 40)),
      disk_mb: optional(positive(2 ** 40)),
    }),
  ),
  priority_class: optional(kubernetesName()),
  /** Limits of a sandbox that asks for none. */
  cpus: optional(number({ above: 0, max: 4096 })),
  memory_mb: optional(positive(2 ** 30)),
  disk_mb: optional(positive(2 ** 30)),
  /** How long a Pod may take to start. */
  start_secs: optional(positive(3600)),
  /** How long a Pod lives at most, also when this server is gone. */
  max_lifetime_secs: optional(positive(2 ** 31)),
  /** Pods that a server keeps ready for each kind of requested sandbox. */
  ready: optional(number({ integer: true, min: 0, max: 64 })),
  /** Where the Pod's channel listens. */
  port: optional(number({ integer: true, min: 1024, max: 65_535 })),
  /** Guarantees that sandboxes may do without although they need them. */
  waive: optional(list(oneOf(...GUARANTEE_NAMES))),
})
/** `[kubernetes]`. */
export type KubernetesConfig = Infer<typeof kubernetesShape>

/** Where a cluster keeps archives. */
const storageShape = object({
  /** `https://host/bucket`, and a prefix of names if the bucket has other things too. */
  url: text({ max: 2048 }),
  region: optional(text({ max: 64 })),
  /** Encrypts archives with the cluster's key before they leave a node. */
  encrypt: optional(boolean()),
})
/** Where a server sends its traces. */
const telemetryShape = object({
  /** A collector that accepts OTLP over HTTP. */
  traces: optional(text({ max: 2048 })),
})
/** `[cluster]`. */
export type ClusterConfig = Infer<typeof clusterShape>

/** The whole configuration file. */
export const configShape = object({
  policy: optional(policyShape),
  commands: optional(object({ allowed: optional(list(text())) })),
  router: optional(object({ always_sandbox: optional(list(text())), never_sandbox: optional(list(text())) })),
  network: optional(
    object({
      allow_private: optional(list(text())),
      allow_hosts: optional(list(text())),
      /** What a sandbox in mode `fetch` does with other hosts unless its spec says it. Default: deny, and a spec may ask. */
      unlisted: optional(oneOf(...UNLISTED)),
      /** SOCKS5 proxies that a sandbox may name as its way out; the password is in a variable of the server. */
      upstream: optional(
        list(
          object({
            address: text(),
            username: optional(text({ max: 255 })),
            password_env: optional(text()),
            /** The tenants whose sandboxes may use it; absent: only keys with the scope `admin`. */
            tenants: optional(list(text())),
          }),
        ),
      ),
    }),
  ),
  /** Hosts that a person approved for good: sandboxes that ask about unlisted hosts do not ask about these. */
  approved_host: optional(list(approvedHostShape, 4096)),
  secret: optional(list(secretShape, 256)),
  /** MCP servers of others whose tools clients use through Ringfence. */
  mcp: optional(mcpServersShape),
  tenant: optional(tenantsShape),
  sandbox: optional(
    object({
      // 0 disables WebAssembly.
      wasm_fuel_limit: optional(number({ integer: true, min: 0, max: Number.MAX_SAFE_INTEGER })),
      wasm_epoch_deadline: optional(positive(2 ** 31)),
      wasm_memory_limit_mb: optional(positive(4096)),
      wasm_stack_limit: optional(positive(2 ** 20)),
      subprocess_timeout_secs: optional(positive(2 ** 31)),
      subprocess_output_limit: optional(positive(2 ** 31)),
      subprocess_max_concurrent: optional(positive(10_000)),
    }),
  ),
  skills: optional(
    object({
      /** Whether a skill runs only after `ringfence skill inspect`. */
      require_inspection: optional(boolean()),
      /** Whether a skill runs only with a signature of a key that the user trusts. */
      require_signature: optional(boolean()),
    }),
  ),
  backends: optional(
    object({
      order: optional(list(oneOf(...BACKENDS))),
      /** Whether a server may run commands without isolation, for keys with the scope `admin` and tenants with the grant. */
      allow_native: optional(boolean()),
      /** Docker's container runtime; default: the engine's default. */
      docker_runtime: optional(oneOf('runc', 'runsc')),
      /** Containers that a server keeps ready for each kind of requested sandbox. */
      ready: optional(number({ integer: true, min: 0, max: 64 })),
      /** Whether emulated virtual machines may be selected without being named. */
      emulate: optional(boolean()),
    }),
  ),
  e2b: optional(
    object({
      /** What sandboxes of E2B's API reach whose creator names no hosts. Default: `[network] allow_hosts`. */
      internet: optional(oneOf('closed', 'registries', 'open')),
      /** Unused sandboxes with a running Python kernel that are kept once code interpreters are created. Default: 1. */
      ready: optional(number({ integer: true, min: 0, max: 16 })),
      /** Guarantees that these sandboxes may do without. gVisor cannot limit their disk. Default: none. */
      waive: optional(list(oneOf('limit.disk'))),
    }),
  ),
  /** Images of registries, for templates. */
  images: optional(
    object({
      /** Another address for a registry: `https://…`, or `http://` on this machine's loopback. */
      mirror: optional(list(object({ registry: text({ max: 256 }), url: mirrorUrl() }), 64)),
      /** The registries that may be used. Default: every public one, and those with a mirror. */
      registries: optional(list(text({ max: 256 }), 256)),
      /** The most that one image takes when it is unpacked. Default: 10240. */
      max_mb: optional(positive(2 ** 30)),
      /** The most files of one image. Default: 500000. */
      max_files: optional(positive(2 ** 30)),
      max_mb_per_tenant: optional(positive(2 ** 30)),
    }),
  ),
  /** Named directories of tenants that outlive sandboxes. */
  volumes: optional(
    object({
      /** The size of a volume that is created without one. Default: 10240. */
      default_mb: optional(positive(2 ** 30)),
      /** The largest size of one volume. Default: 102400. */
      max_mb: optional(positive(2 ** 30)),
      /** How many volumes a tenant has. Default: 100. */
      max_per_tenant: optional(positive(1_000_000)),
      /** The sizes of a tenant's volumes together. Default: 1024000. */
      tenant_mb: optional(positive(2 ** 30)),
    }),
  ),
  microvm: optional(
    object({
      /** The hypervisor. Only `qemu` runs sandboxes today; `doctor` says what the others lack on this host. */
      driver: optional(oneOf(...MICROVM_DRIVERS)),
    }),
  ),
  /** Absent: the backend `kubernetes` is off. */
  kubernetes: optional(kubernetesShape),
  /** This server is one of several on one PostgreSQL. */
  cluster: optional(clusterShape),
  storage: optional(storageShape),
  telemetry: optional(telemetryShape),
  server: optional(
    object({
      host: optional(text()),
      port: optional(number({ integer: true, min: 0, max: 65_535 })),
      database_url: optional(text({ empty: true })),
      /** Timeout of a PostgreSQL call. */
      database_timeout_secs: optional(positive(3600)),
      tls_cert: optional(text()),
      tls_key: optional(text()),
      /** Accepted Host names, besides IP addresses and `localhost`; also `*.example.com`. */
      hosts: optional(list(text())),
      /** Web origins that may call the API, such as `https://console.example.com`. */
      origins: optional(list(text())),
      requests_per_second: optional(positive(1_000_000)),
      /** Failed authentications per second and address. */
      wrong_keys_per_second: optional(positive(1_000_000)),
      max_sandboxes: optional(positive(1_000_000)),
      max_sandboxes_per_key: optional(positive(1_000_000)),
      /** Default for each tenant; half of `max_sandboxes` if absent. Does not apply to keys with the scope `admin`. */
      max_sandboxes_per_tenant: optional(positive(1_000_000)),
      max_creating: optional(positive(4096)),
      max_execs: optional(positive(100_000)),
      /** Background commands, streams and terminals; more are rejected. */
      max_background_execs: optional(positive(1_000_000)),
      max_waiting: optional(positive(1_000_000)),
      /** Command output kept in memory, for all sandboxes together. */
      kept_output_mb: optional(positive(2 ** 20)),
      default_timeout_secs: optional(positive(2 ** 31)),
      approval_timeout_secs: optional(positive(2 ** 31)),
      drain_secs: optional(positive(3600)),
      /** How long records of ended sandboxes are kept; the audit log is kept forever. */
      keep_days: optional(positive(36_500)),
      pool: optional(list(poolShape, 64)),
    }),
  ),
})
/** A parsed configuration file. */
export type Config = Infer<typeof configShape>
