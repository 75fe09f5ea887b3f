import { type Config, configShape } from '../config.ts'
import type { JsonSchema } from '../shape.ts'
import { MCP_SETTINGS } from './mcp-config.ts'
import type { Described, SettingPath } from './setting.ts'

/**
 * What every setting of `ringfence.toml` means, and its default. Apart from the shapes, because `ringfence run` parses
 * a configuration and never prints this (docs/decisions/0002). The type makes a setting without a sentence an error.
 */
const SETTINGS: Described<Exclude<SettingPath<Config>, `mcp.${string}`>> = {
  policy: 'What agents may do.',
  'policy.allowed_host_prefixes':
    'Host directories that may be mounted, with everything inside; `~` is the home directory. Absent: every directory that is not blocked.',
  'policy.blocked_host_patterns':
    'Path segments that never appear in a sandbox, compared without case. Absent: a built-in list of directories with credentials (`ringfence policy explain` prints it).',
  'policy.max_cpus': ['The most CPUs of one sandbox.', 4096],
  'policy.max_memory_mb': ['The most memory of one sandbox, in MiB.', 2 ** 30],
  'policy.max_disk_mb': ['The most disk space of one sandbox, in MiB.', 2 ** 30],
  'policy.max_pids': ['The most processes of one sandbox.', 2 ** 22],
  'policy.isolate_commands': [
    'Requires namespaces of its own for every command of every sandbox (`isolation: "command"`).',
    false,
  ],
  'policy.allowed_network_modes': [
    'The network modes that a sandbox may request.',
    ['offline', 'loopback', 'fetch', 'full'],
  ],
  'policy.allow_interactive': [
    'Whether a server gives terminals (`…/pty`, `terminal` of `…/exec`, `sandbox shell`, `sandbox ssh`).',
    false,
  ],
  'policy.default_action': ['What happens to a command that no rule matches.', 'sandbox'],
  'policy.rule':
    'Rules for commands, each with one of `prefix`, `glob` and `regex`. The strictest rule that matches decides.',
  'policy.rule.id': 'Name of the rule in decisions and in the audit log.',
  'policy.rule.prefix': 'Matches commands that begin with these words.',
  'policy.rule.glob': 'Matches the whole command with `*` and `?`.',
  'policy.rule.regex': 'Matches the whole command with a regular expression.',
  'policy.rule.action': 'What happens to a command that the rule matches.',
  'policy.rule.why': 'The reason that people and agents are shown.',
  'policy.rule.priority': [
    'Among equally strict rules, the highest number gives the reason that is shown.',
    0,
  ],
  'policy.rule.tags': 'Labels for your own use.',
  'policy.rule.dirs': 'The rule applies only to commands that run in one of these directories.',
  'policy.rule.match': 'Commands that the rule must match; checked when the file is loaded.',
  'policy.rule.not_match': 'Commands that the rule must not match; checked when the file is loaded.',
  commands: 'Programs.',
  'commands.allowed': 'If not empty, only these programs may run.',
  router: 'How `ringfence auto` chooses between the host and a sandbox.',
  'router.always_sandbox': 'Programs that always run in a sandbox.',
  'router.never_sandbox':
    'Programs that run on the host if no rule matches them; a rule or a finding still decides first.',
  network: 'The network of sandboxes.',
  'network.allow_private': ['Private addresses (`host`, `host:port`, CIDR) that may be reached.', []],
  'network.allow_hosts': [
    'Hosts that sandboxes in mode `fetch` may reach: `example.com`, `*.example.com`.',
    [],
  ],
  'network.unlisted':
    'What a sandbox in mode `fetch` does with other hosts unless its spec says it. Absent: deny, and a spec may ask.',
  'network.upstream': 'SOCKS5 proxies that a sandbox may name as its way out.',
  'network.upstream.address': '`host:port` of the proxy.',
  'network.upstream.username': 'User name at the proxy.',
  'network.upstream.password_env': 'Environment variable of the server that holds the password.',
  'network.upstream.tenants': 'Tenants whose sandboxes may use it. Absent: only keys with the scope `admin`.',
  approved_host:
    'Hosts that a person approved for good: sandboxes that ask about unlisted hosts do not ask about these. Written by approvals with the scope `always`.',
  'approved_host.host': '`name:port`, as the question named it.',
  'approved_host.tenant': 'The tenant whose sandbox asked; absent: sandboxes that belong to no tenant.',
  secret: 'Secrets that the egress proxy inserts into requests; the value never enters a sandbox.',
  'secret.name': 'Name of the secret.',
  'secret.file': 'File with the value, readable only by its owner; read again at each reload.',
  'secret.env': 'Environment variable of the server with the value, instead of `file`.',
  'secret.hosts': 'The only hosts that the secret is sent to.',
  'secret.tenants': 'Tenants whose sandboxes may use it. Absent: only keys with the scope `admin`.',
  mcp: 'MCP servers of others whose tools clients use through Ringfence.',
  tenant: 'What the keys of one tenant may use beyond the default. Each list replaces the default list.',
  'tenant.name': 'Name of the tenant, as in `ringfence key create --tenant`.',
  'tenant.backends':
    'Backends that it may use. Absent: every isolating backend on this machine; never `native`, `mock` or a remote one.',
  'tenant.network_modes': ['Network modes that it may request.', ['offline', 'loopback', 'fetch']],
  'tenant.allow_hosts':
    'Hosts that its sandboxes may reach in mode `fetch`. Absent: `[network] allow_hosts`.',
  'tenant.host_paths': ['Host directories, files and sockets that it may mount, with everything inside.', []],
  'tenant.host_paths.path': 'An absolute path.',
  'tenant.host_paths.mode': '`ro`: read-only, `rw`: also writable.',
  'tenant.waive': ['Guarantees that it may waive.', []],
  'tenant.images': [
    'Images of the container engine that it may run, besides those of `ringfence image build`.',
    [],
  ],
  'tenant.public_ports': ['Whether its sandboxes may have public ports.', true],
  'tenant.max_sandboxes':
    'How many sandboxes its keys have together. Absent: `[server] max_sandboxes_per_tenant`.',
  'tenant.max_cpus': 'The most CPUs of one sandbox; applies also to a sandbox that requests no limit.',
  'tenant.max_memory_mb': 'The most memory of one sandbox, in MiB; applies also without a request.',
  'tenant.max_disk_mb': 'The most disk space of one sandbox, in MiB; applies also without a request.',
  'tenant.max_pids': 'The most processes of one sandbox; applies also without a request.',
  sandbox: 'Limits of WebAssembly, skills and their subprocesses.',
  'sandbox.wasm_fuel_limit': [
    'Instructions that a WebAssembly call may execute; 0 disables WebAssembly.',
    10_000_000,
  ],
  'sandbox.wasm_epoch_deadline': ['Deadline of a WebAssembly call, in tenths of a second.', 10],
  'sandbox.wasm_memory_limit_mb': ['Memory of a WebAssembly instance, in MiB.', 64],
  'sandbox.wasm_stack_limit': ['Nested calls in WebAssembly.', 1024],
  'sandbox.subprocess_timeout_secs': ['Timeout of a skill that runs as a process.', 60],
  'sandbox.subprocess_output_limit': ['Characters of output that a skill may write.', 50_000],
  'sandbox.subprocess_max_concurrent': ['Skills that run at the same time.', 10],
  skills: 'Which skills may run.',
  'skills.require_inspection': ['Whether a skill runs only after `ringfence skill inspect`.', false],
  'skills.require_signature': ['Whether a skill runs only if it is signed with a trusted key.', false],
  backends: 'Isolation mechanisms.',
  'backends.order':
    'The backends that a server tries for a request that names none, in this order. Others are not used in their place. Default: all.',
  'backends.allow_native': [
    'Whether a server may run commands without isolation, for keys with the scope `admin` and tenants with the grant.',
    false,
  ],
  'backends.docker_runtime': "Docker's container runtime. Absent: the engine's default.",
  'backends.ready': ['Containers that a server keeps ready for each kind of requested sandbox.', 0],
  'backends.emulate': ['Whether emulated virtual machines may be selected without being named.', false],
  e2b: "E2B's API.",
  'e2b.internet':
    'What sandboxes reach whose creator names no hosts. Absent: the hosts of `[network] allow_hosts`.',
  'e2b.ready': [
    'Unused sandboxes with a running Python kernel that are kept once code interpreters are created.',
    1,
  ],
  'e2b.waive': [
    "Guarantees that these sandboxes may do without: `limit.disk` lets them run on `gvisor`, which cannot limit what they write to the server's disk. Recorded with every sandbox; a tenant needs it in its own `waive` too.",
    [],
  ],
  images: 'Images of registries, for templates.',
  'images.mirror': 'Another address for a registry.',
  'images.mirror.registry': 'Name of the registry, such as `docker.io`.',
  'images.mirror.url': "`https://host[:port]`, or `http://` on this machine's loopback.",
  'images.registries': 'The registries that may be used. Absent: every public one, and those with a mirror.',
  'images.max_mb': ['The most that one image takes when it is unpacked, in MiB.', 10_240],
  'images.max_files': ['The most files of one image.', 500_000],
  'images.max_mb_per_tenant': [
    'All images that a tenant has pulled and that are still stored, in MiB.',
    40_960,
  ],
  volumes: 'Named directories of tenants that outlive sandboxes.',
  'volumes.default_mb': ['The size of a volume that is created without one, in MiB.', 10_240],
  'volumes.max_mb': ['The largest size of one volume, in MiB.', 102_400],
  'volumes.max_per_tenant': ['How many volumes a tenant has.', 100],
  'volumes.tenant_mb': ["The sizes of a tenant's volumes together, in MiB.", 1_024_000],
  microvm: 'Virtual machines.',
  'microvm.driver':
    'The hypervisor. Only `qemu` runs sandboxes today; `ringfence doctor` says what the others lack on this host.',
  kubernetes:
    'Sandboxes as Pods of a Kubernetes cluster. Without this table the backend `kubernetes` is off. See [kubernetes.md](kubernetes.md).',
  'kubernetes.kubeconfig':
    'File that says how to reach the cluster. Absent: the service account of the Pod that the server runs in.',
  'kubernetes.context': 'The context of that file. Absent: its current one.',
  'kubernetes.namespace': ['The namespace of the Pods.', 'ringfence'],
  'kubernetes.agent_image':
    'The image with the guest agent and the channel, which `npm run image:pod` builds.',
  'kubernetes.image': 'The image of sandboxes that name none. Absent: such sandboxes are refused.',
  'kubernetes.image_pull_policy': ['When the cluster pulls images.', 'IfNotPresent'],
  'kubernetes.image_pull_secrets': 'Secrets of the namespace with the credentials of registries.',
  'kubernetes.node_selector': 'Labels of the nodes that may run sandboxes.',
  'kubernetes.tolerations': 'Taints of nodes that sandboxes tolerate.',
  'kubernetes.tolerations.key': 'The taint. Absent: every taint.',
  'kubernetes.tolerations.operator': 'Whether the value has to be equal. Absent: `Equal`.',
  'kubernetes.tolerations.value': 'The value of the taint.',
  'kubernetes.tolerations.effect': 'The effect of the taint. Absent: every effect.',
  'kubernetes.runtime_class': "The RuntimeClass of the Pods. Absent: the cluster's default.",
  'kubernetes.runtime':
    'What that RuntimeClass is. A probe inside a Pod must confirm it; otherwise the backend is not available. Absent: a container.',
  'kubernetes.tenant_namespaces':
    'A namespace for each tenant, named after `namespace` and the tenant. `use`: the operator creates it, with its quotas; `create`: the server does. Absent: all Pods are in one namespace.',
  'kubernetes.tenant_quota':
    'What the sandboxes of one tenant may have together: the ResourceQuota and the LimitRange of a namespace that the server creates.',
  'kubernetes.tenant_quota.pods': 'Sandboxes at the same time.',
  'kubernetes.tenant_quota.cpus': 'CPUs of all of them together.',
  'kubernetes.tenant_quota.memory_mb': 'Memory of all of them together, in MiB.',
  'kubernetes.tenant_quota.disk_mb': 'Disk space of all of them together, in MiB.',
  'kubernetes.priority_class': "The PriorityClass of the Pods. Absent: the cluster's default.",
  'kubernetes.cpus': ['CPUs of a sandbox that asks for no number.', 1],
  'kubernetes.memory_mb': ['Memory of a sandbox that asks for no limit, in MiB.', 1024],
  'kubernetes.disk_mb': ['Disk space of a sandbox that asks for no limit, in MiB.', 1024],
  'kubernetes.start_secs': ['How long a Pod may take to start.', 120],
  'kubernetes.max_lifetime_secs': [
    'How long a Pod lives at most. The cluster ends it then, also when the server is gone.',
    86_400,
  ],
  'kubernetes.ready': ['Pods that a server keeps ready for each kind of requested sandbox.', 0],
  'kubernetes.port': ["The port of the Pod's channel.", 7443],
  'kubernetes.waive':
    'Guarantees that sandboxes on this backend may do without, such as `net.fetch` on a cluster that does not enforce NetworkPolicy. Recorded with every sandbox.',
  storage:
    'An S3-compatible store for the archives of a cluster. Credentials come from `RINGFENCE_STORAGE_KEY_ID` and `RINGFENCE_STORAGE_SECRET`, or from `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.',
  'storage.url': 'The bucket, and a prefix if it has other things too: `https://host/bucket/prefix`.',
  'storage.region': 'The region that requests are signed for. Absent: `us-east-1`.',
  'storage.encrypt': "Encrypts archives with the cluster's key before they leave a node. Absent: no.",
  telemetry: 'What a server tells other programs about its work.',
  'telemetry.traces':
    'A collector that accepts OpenTelemetry traces over HTTP: `http://host:4318`. Needs the packages of OpenTelemetry (docs/operations.md). Absent: `OTEL_EXPORTER_OTLP_ENDPOINT`, else nothing is traced.',
  cluster: 'This server as a node of a cluster.',
  'cluster.name': 'How people call this node. Absent: the name of the machine.',
  'cluster.role': [
    '`api` answers requests and runs no sandboxes; `node` runs sandboxes for the others; `all` does both.',
    'all',
  ],
  'cluster.listen': 'Where this node listens for the others: `host:port`.',
  'cluster.url': 'Where the others reach it, if that is another address: `https://host:port`.',
  'cluster.key_file':
    "File with the cluster's key. Absent: `cluster.key` in the state directory, which `cluster join` writes.",
  'cluster.lease_secs': ['How long a node that stopped keeps its sandboxes before it is lost.', 10],
  'cluster.labels': 'Labels that `placement` in a create can ask for.',
  'cluster.cpus': 'Processors of this node. Absent: those of the machine.',
  'cluster.memory_mb': 'Memory of this node, in MiB. Absent: that of the machine.',
  'cluster.disk_mb': 'Disk space of this node, in MiB. Absent: that of the machine.',
  'cluster.overcommit': 'How many times what the node has its sandboxes may reserve together.',
  'cluster.overcommit.cpu': ['Factor for processors.', 8],
  'cluster.overcommit.memory': ['Factor for memory.', 1],
  'cluster.overcommit.disk': ['Factor for disk space.', 10],
  'cluster.reserve': 'What a sandbox reserves that has no limit.',
  'cluster.reserve.cpus': ['Reserved processors.', 0.1],
  'cluster.reserve.memory_mb': ['Reserved memory, in MiB.', 64],
  'cluster.reserve.disk_mb': ['Reserved disk space, in MiB.', 64],
  'cluster.max_waiting': ['How many creates wait for room.', 256],
  'cluster.wait_secs': ['How long a create waits for room.', 10],
  server: '`ringfence serve`. Options of the command line take precedence.',
  'server.host': [
    'Address to listen on. Other addresses than the loopback need a certificate, or `--insecure-bind`.',
    '127.0.0.1',
  ],
  'server.port': ['Port to listen on; 0 chooses a free one.', 4200],
  'server.database_url':
    '`postgres://…`. Empty or absent: SQLite in the state directory. RINGFENCE_DATABASE_URL takes precedence.',
  'server.database_timeout_secs': ['Timeout of a PostgreSQL call; slower calls fail with 503.', 10],
  'server.tls_cert': 'File with the certificate chain (PEM).',
  'server.tls_key': 'File with the private key (PEM).',
  'server.hosts': ['Accepted Host names, besides IP addresses and `localhost`; also `*.example.com`.', []],
  'server.origins': ['Web origins that may call the API, such as `https://console.example.com`.', []],
  'server.requests_per_second': ['Requests and upgrades per second and key; more get 429.', 2000],
  'server.wrong_keys_per_second':
    'Failed authentications per second and address, of requests and upgrades together. Absent: 20, and 5 for sign-ins to the console.',
  'server.max_sandboxes': ['Sandboxes at the same time.', 1000],
  'server.max_sandboxes_per_key': ['Sandboxes of one key at the same time.', 200],
  'server.max_sandboxes_per_tenant':
    'Sandboxes of one tenant at the same time. Absent: half of `max_sandboxes`. Does not apply to keys with the scope `admin`.',
  'server.max_creating': ['Sandboxes that are created at the same time.', 8],
  'server.max_execs': ['Commands that run at the same time, without background commands.', 64],
  'server.max_background_execs': [
    'Background commands, streams and terminals at the same time; more get 429.',
    1024,
  ],
  'server.max_waiting': ['Requests that wait for a free place; more get 429.', 1024],
  'server.kept_output_mb': ['Command output kept in memory, for all sandboxes together, in MiB.', 128],
  'server.default_timeout_secs': ['Lifetime of a sandbox that is created without one.', 3600],
  'server.approval_timeout_secs': ['How long a question waits for an answer before it is rejected.', 300],
  'server.drain_secs': ['How long a shutdown waits for running commands.', 30],
  'server.keep_days': ['How long records of ended sandboxes are kept; the audit log is kept forever.', 30],
  'server.pool': 'Sandboxes that are created in advance, for requests with exactly these settings.',
  'server.pool.size': 'How many are kept ready.',
  'server.pool.backend': 'Their backend.',
  'server.pool.template': 'Their template.',
  'server.pool.image': 'Their image.',
  'server.pool.network': 'Their network mode.',
  'server.pool.cpus': 'Their CPU limit.',
  'server.pool.memory_mb': 'Their memory limit, in MiB.',
}

/** The JSON Schema of `ringfence.toml` with a description and, where there is one, a default for every setting. */
export const configSchema = (): JsonSchema => annotate(configShape.schema, '')

function annotate(schema: JsonSchema, at: string): JsonSchema {
  const { properties, items } = schema as { properties?: Record<string, JsonSchema>; items?: JsonSchema }
  if (items) return { ...schema, items: annotate(items, at) }
  if (!properties) return schema
  const inner = Object.entries(properties).map(([name, one]) => {
    const path = at === '' ? name : `${at}.${name}`
    return [name, { ...textOf(path), ...annotate(one, path) }]
  })
  return { ...schema, properties: Object.fromEntries(inner) }
}

function textOf(path: string): JsonSchema {
  const entry = { ...SETTINGS, ...MCP_SETTINGS }[path as keyof typeof SETTINGS]
  return typeof entry === 'string' ? { description: entry } : { description: entry[0], default: entry[1] }
}
