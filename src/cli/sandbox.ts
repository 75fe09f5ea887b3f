import { createReadStream, createWriteStream } from 'node:fs'
import { constants } from 'node:os'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { RemoteSandbox } from '../client/sandbox.ts'
import type { SandboxInfo, SandboxSpec, StreamEnd } from '../client/types.ts'
import { exitCodeOf } from '../model/command.ts'
import { SandboxError } from '../model/errors.ts'
import { visible, visibleJson } from '../model/visible.ts'
import { numberOption, parseOptions, usage } from './options.ts'
import { print, server, table } from './remote.ts'
import { err, out } from './terminal/output.ts'

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
  print: { type: 'boolean' },
} as const

type Parsed = ReturnType<typeof parseOptions<typeof OPTIONS>>
type Values = Parsed['values']
type Action = (values: Values, rest: readonly string[]) => Promise<number>

const ACTIONS: Readonly<Record<string, Action>> = {
  create,
  ls: list,
  get: (values, [id]) => show(values, async () => (await find(id)).info),
  exec,
  cp: copy,
  logs,
  pause: (values, [id]) => show(values, async () => (await find(id)).pause()),
  resume: (values, [id]) => show(values, async () => (await find(id)).resume()),
  snapshot: (values, [id]) => other(values, async () => (await find(id)).snapshot(values.name)),
  fork: (values, [id]) => other(values, async () => (await find(id)).fork()),
  port,
  ssh: async (values, rest) => (await import('./sandbox-ssh.ts')).ssh(values.print ?? false, rest),
  'ssh-proxy': async (_, rest) => (await import('./sandbox-ssh.ts')).sshProxy(rest),
  rm: remove,
}

/** `ringfence sandbox …`, against a server. */
export async function sandbox(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('sandbox', args, OPTIONS)
  const [name, ...rest] = positionals
  const action = name !== undefined && Object.hasOwn(ACTIONS, name) ? ACTIONS[name] : undefined
  if (!action)
    throw usage(
      'sandbox',
      `${name === undefined ? 'missing action' : `unknown action \`${name}\``}: ${Object.keys(ACTIONS).join(', ')}`,
    )
  return action(values, rest)
}

function find(id: string | undefined): Promise<RemoteSandbox> {
  if (id === undefined) throw usage('sandbox', 'missing sandbox id')
  return server().get(id)
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

const seconds = (flag: string, value: string | undefined): number | undefined => {
  const given = numberOption(flag, value)
  return given === undefined ? undefined : Math.round(given * 1000)
}

function specOf(values: Values): SandboxSpec {
  const limits = defined({
    cpus: numberOption('--cpus', values.cpus),
    memoryMb: numberOption('--memory', values.memory),
    diskMb: numberOption('--disk', values.disk),
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
    metadata: values.metadata && pairs('--metadata', values.metadata),
    timeout_ms: seconds('--timeout', values.timeout),
    idle_ms: seconds('--idle', values.idle),
    review: values.review,
    agent_id: values['agent-id'],
  }) as SandboxSpec
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
  const state = values.state as SandboxInfo['state'] | undefined
  const page = await server().list({ ...(limit && { limit }), ...(state && { state }) })
  print(values.json, page, () =>
    table([
      ['ID', 'STATE', 'BACKEND', 'CREATED', 'EXPIRES'],
      ...page.items.map((one) => [
        one.id,
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
    throw new SandboxError('no-command', 'no command given: use `sandbox exec ID -- argv…` or `-c "line"`')
  const target = await find(id)
  const timeout = seconds('--timeout', values.timeout)
  const options = { ...(values.cwd && { cwd: values.cwd }), ...(timeout && { timeout_ms: timeout }) }
  if (values.json) {
    const done = await target.exec(command, options)
    out(`${visibleJson(done)}\n`)
    sayCut(done.cut)
    return done.outcome ? exitCodeOf(done.outcome, constants.signals) : 125
  }
  for await (const event of target.stream(command, options)) {
    if (event.type === 'stdout' || event.type === 'stderr') process[event.type].write(event.data)
    else if (event.type === 'approval')
      err(`ringfence: waiting for approval; answer with \`ringfence approve ${visible(event.id)}\`\n`)
    else if (event.type === 'end') {
      sayCut(event.result.cut)
      if (event.result.outcome) return exitCodeOf(event.result.outcome, constants.signals)
    }
  }
  return 125
}

/** Prints why the server ended the stream before the command exited. */
function sayCut(cut: StreamEnd | undefined): void {
  if (cut) err(`ringfence: ${visible(cut.message)}\n`)
}

/** `ID:/path` is a path in the sandbox, anything else a local path. */
async function copy(_: Values, [from, to]: readonly string[]): Promise<number> {
  const [inside, outside] = [from, to].map((word) => /^(sb_\w+):(\/.*)$/.exec(word ?? ''))
  if (!from || !to || (inside === null) === (outside === null))
    throw usage('sandbox', 'use one local path and one path in a sandbox: `sandbox cp FILE ID:/path`')
  if (inside) {
    const source = await (await find(inside[1])).files.readStream(inside[2] as string)
    await pipeline(Readable.fromWeb(source as Parameters<typeof Readable.fromWeb>[0]), createWriteStream(to))
    return 0
  }
  const target = await find(outside?.[1])
  const stream = Readable.toWeb(createReadStream(from)) as unknown as ReadableStream<Uint8Array>
  await target.files.write(outside?.[2] as string, stream)
  return 0
}

async function logs(values: Values, [id]: readonly string[]): Promise<number> {
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
  const url = (await find(id)).portUrl(Number(number))
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
