import type { SandboxInfo, SandboxSpec } from '../client/types.ts'
import { SandboxError } from '../model/errors.ts'
import { visible, visibleJson } from '../model/text/visible.ts'
import { printHelp } from './help/help.ts'
import {
  durationOption,
  numberOption,
  parseOptions,
  sizeOption,
  unknownAction,
  usage,
  withSeparator,
} from './options/options.ts'
import { copy } from './sandbox/copy.ts'
import { attachTo, execHere, execJson } from './sandbox/exec.ts'
import { allSandboxes, find, NAME } from './sandbox/find.ts'
import { openPort } from './sandbox/forward.ts'
import { followOutput, stats, wait } from './sandbox/observe.ts'
import { shellLine, terminalIn } from './sandbox/remote-terminal.ts'
import { print, server, table } from './server/remote.ts'

const OPTIONS = {
  backend: { type: 'string' },
  'min-isolation': { type: 'string' },
  image: { type: 'string' },
  template: { type: 'string' },
  workspace: { type: 'string', short: 'w' },
  mount: { type: 'string', multiple: true },
  volume: { type: 'string', multiple: true },
  network: { type: 'string' },
  'allow-host': { type: 'string', multiple: true },
  env: { type: 'string', short: 'e', multiple: true },
  secret: { type: 'string', multiple: true },
  metadata: { type: 'string', multiple: true },
  cpus: { type: 'string' },
  memory: { type: 'string' },
  disk: { type: 'string' },
  pids: { type: 'string' },
  timeout: { type: 'string' },
  idle: { type: 'string' },
  review: { type: 'boolean' },
  'agent-id': { type: 'string' },
  command: { type: 'string', short: 'c' },
  cwd: { type: 'string' },
  state: { type: 'string' },
  limit: { type: 'string' },
  name: { type: 'string' },
  label: { type: 'string', multiple: true },
  all: { type: 'boolean', short: 'a' },
  interactive: { type: 'boolean', short: 'i' },
  tty: { type: 'boolean', short: 't' },
  recursive: { type: 'boolean', short: 'r' },
  follow: { type: 'boolean', short: 'f' },
  'no-stream': { type: 'boolean' },
  open: { type: 'boolean' },
  listen: { type: 'string' },
  user: { type: 'string', short: 'u' },
  print: { type: 'boolean' },
  isolate: { type: 'boolean' },
  'use-secret': { type: 'string', multiple: true },
  'no-network': { type: 'boolean' },
  'use-port': { type: 'string', multiple: true },
} as const

type Parsed = ReturnType<typeof parseOptions<typeof OPTIONS>>
type Values = Parsed['values']
type Action = (values: Values, rest: readonly string[]) => Promise<number>

const ACTIONS: Readonly<Record<string, Action>> = {
  create,
  ls: list,
  get: (values, [id]) => show(values, async () => (await find(id)).info),
  exec,
  shell: async (values, [id]) => terminalIn((await find(id)).id, undefined, values.cwd),
  attach: async (_, [id, execId]) => attachTo(await find(id), execId),
  cp: (values, paths) => copy(values.recursive === true, paths),
  logs: async (values, [id]) => (values.follow ? followOutput(await find(id)) : logs(values, id)),
  stats: (values, ids) => stats(ids, { json: values.json === true, once: values['no-stream'] === true }),
  wait: async (values, [id, execId]) => wait(await find(id), execId, values.json),
  pause: (values, [id]) => show(values, async () => (await find(id)).pause()),
  resume: (values, [id]) => show(values, async () => (await find(id)).resume()),
  snapshot: (values, [id]) => other(values, async () => (await find(id)).snapshot(values.name)),
  fork: (values, [id]) => other(values, async () => (await find(id)).fork()),
  port,
  ssh: async (values, [id, ...command]) =>
    (await import('./sandbox/ssh.ts')).ssh(await find(id), values.print ?? false, command),
  'ssh-proxy': async (_, rest) => (await import('./sandbox/ssh.ts')).sshProxy(rest),
  rm: remove,
}

/** How many words stand before the program of `sandbox exec` and `sandbox ssh`: the action and the id. */
const BEFORE_PROGRAM = 2

/** `ringfence sandbox …`, against a server. */
export async function sandbox(args: readonly string[]): Promise<number> {
  const isFollowed = ['exec', 'ssh'].includes(args.find((arg) => !arg.startsWith('-')) ?? '')
  const own = isFollowed ? withSeparator(args, OPTIONS, BEFORE_PROGRAM) : args
  const { values, positionals } = parseOptions('sandbox', own, OPTIONS)
  if (values.help) return printHelp('sandbox')
  const [name, ...rest] = positionals
  const action = name !== undefined && Object.hasOwn(ACTIONS, name) ? ACTIONS[name] : undefined
  if (!action) throw unknownAction('sandbox', name, Object.keys(ACTIONS))
  return action(values, rest)
}

async function show(values: Values, work: () => Promise<SandboxInfo>): Promise<number> {
  const info = await work()
  print(values.json, info, () => describe(info))
  return 0
}

async function other(values: Values, work: () => Promise<unknown>): Promise<number> {
  const done = await work()
  print(values.json, done, () => `${JSON.stringify(done, null, 2)}\n`)
  return 0
}

const describe = (info: SandboxInfo): string =>
  table([
    ['id', info.id],
    ['state', info.reason ? `${info.state} (${info.reason})` : info.state],
    ['backend', `${info.backend ?? '-'} (${info.level ?? '-'})`],
    ['network', info.network.mode],
    ['created', info.created_at],
    ['expires', info.expires_at ?? 'never'],
  ])

async function create(values: Values): Promise<number> {
  const made = await server().create(specOf(values))
  print(values.json, made.info, () => `${visible(made.id)}\n`)
  return 0
}

function specOf(values: Values): SandboxSpec {
  const limits = defined({
    cpus: numberOption('--cpus', values.cpus),
    memoryMb: sizeOption('--memory', values.memory),
    diskMb: sizeOption('--disk', values.disk),
    pids: numberOption('--pids', values.pids),
  })
  const network = defined({ mode: values.network, allow_hosts: values['allow-host'] })
  return defined({
    backend: values.backend,
    min_isolation: values['min-isolation'],
    image: values.image,
    template: values.template,
    workspace: values.workspace,
    mounts: values.mount?.map(mountOf),
    volumes: values.volume?.map(volumeOf),
    network: Object.keys(network).length > 0 ? network : undefined,
    limits: Object.keys(limits).length > 0 ? limits : undefined,
    env: values.env && pairs('--env', values.env),
    secrets: values.secret,
    metadata: metadataOf(values),
    timeout_ms: durationOption('--timeout', values.timeout),
    idle_ms: durationOption('--idle', values.idle),
    review: values.review,
    isolation: values.isolate ? 'command' : undefined,
    agent_id: values['agent-id'],
  }) as SandboxSpec
}

/** Labels and the name are metadata. */
function metadataOf(values: Values): Record<string, string> | undefined {
  const labels = pairs('--label', [...(values.metadata ?? []), ...(values.label ?? [])])
  const all = values.name === undefined ? labels : { ...labels, [NAME]: values.name }
  return Object.keys(all).length > 0 ? all : undefined
}

const defined = (fields: Record<string, unknown>): Record<string, unknown> =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined))

function pairs(flag: string, given: readonly string[]): Record<string, string> {
  return Object.fromEntries(
    given.map((pair) => {
      const at = pair.indexOf('=')
      if (at < 1) throw usage('sandbox', `${flag} takes NAME=VALUE, not \`${pair}\``)
      return [pair.slice(0, at), pair.slice(at + 1)]
    }),
  )
}

function mountOf(text: string): Record<string, string> {
  const [source = '', target = '', mode = 'rw', ...rest] = text.split(':')
  if (rest.length > 0 || !source || !target || (mode !== 'ro' && mode !== 'rw'))
    throw usage('sandbox', `--mount takes SRC:DST[:ro], not \`${text}\``)
  return { source, target, mode }
}

function volumeOf(text: string): Record<string, string> {
  const [name = '', target = '', mode = 'rw', ...rest] = text.split(':')
  if (rest.length > 0 || !name || !target || (mode !== 'ro' && mode !== 'rw'))
    throw usage('sandbox', `--volume takes NAME:/path[:ro], not \`${text}\``)
  return { name, target, mode }
}

async function list(values: Values): Promise<number> {
  const limit = numberOption('--limit', values.limit)
  const state = (values.state as SandboxInfo['state'] | undefined) ?? (values.all ? undefined : 'live')
  const labels = Object.entries(pairs('--label', values.label ?? []))
  const items = await allSandboxes(state ? { state } : {}, limit, ({ metadata }) =>
    labels.every(([key, value]) => metadata?.[key] === value),
  )
  print(values.json, { items, next: null }, () =>
    table([
      ['ID', 'NAME', 'STATE', 'BACKEND', 'CREATED', 'EXPIRES'],
      ...items.map((one) => [
        one.id,
        one.metadata?.[NAME] ?? '-',
        one.reason ? `${one.state} (${one.reason})` : one.state,
        one.backend ?? '-',
        one.created_at,
        one.expires_at ?? '-',
      ]),
    ]),
  )
  return 0
}

async function exec(values: Values, [id, ...argv]: readonly string[]): Promise<number> {
  const command = values.command ?? (argv.length > 0 ? argv : undefined)
  if (command === undefined || (values.command !== undefined && argv.length > 0))
    throw new SandboxError('no-command', 'no command given: use `sandbox exec ID program…` or `-c "line"`')
  const target = await find(id)
  if (values.tty)
    return terminalIn(target.id, typeof command === 'string' ? command : shellLine(command), values.cwd)
  const timeout = durationOption('--timeout', values.timeout)
  const options = defined({
    cwd: values.cwd,
    user: values.user,
    timeout_ms: timeout || undefined,
    env: values.env && pairs('--env', values.env),
    isolation: values.isolate ? ('command' as const) : undefined,
    secrets: values['use-secret'],
    network: values['no-network'] ? false : undefined,
    ports: values['use-port']?.map(Number),
  })
  return values.json ? execJson(target, command, options) : execHere(target, command, options)
}

async function logs(values: Values, id: string | undefined): Promise<number> {
  const { items } = await (await find(id)).logs()
  print(values.json, items, () =>
    items
      .map(({ time, event, seq, hash: _hash, prev_hash: _prev, ...rest }) => {
        const text = `${time} ${seq} ${event} ${visibleJson(rest)}`
        // SECURITY: records contain agent input, which must not control the reader's terminal.
        return `${visible(text)}\n`
      })
      .join(''),
  )
  return 0
}

async function port(values: Values, [id, number]: readonly string[]): Promise<number> {
  if (number === undefined || !/^\d{1,5}$/.test(number))
    throw usage('sandbox', 'missing port: `sandbox port ID PORT`')
  const target = await find(id)
  if (values.open) return openPort(target.id, Number(number), numberOption('--listen', values.listen))
  const url = target.portUrl(Number(number))
  print(values.json, { url }, () => `${visible(url)}\n`)
  return 0
}

async function remove(values: Values, ids: readonly string[]): Promise<number> {
  if (ids.length === 0) throw usage('sandbox', 'missing sandbox id')
  const ended: SandboxInfo[] = []
  for (const id of ids) ended.push(await (await find(id)).close())
  print(values.json, ended, () => ended.map((one) => `${visible(`${one.id}: ${one.state}`)}\n`).join(''))
  return 0
}
