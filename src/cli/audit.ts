import { readFileSync, writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { loadVerifyKey } from '../audit/anchor.ts'
import { type TrailRecord, type VerifyKey, verifyKeyOf } from '../audit/chain.ts'
import { unwritable } from '../audit/files.ts'
import { checkProof } from '../audit/proof.ts'
import type { TrailFilter } from '../audit/read.ts'
import { type TrailSource, trailSource } from '../audit/source.ts'
import { ClusterKey, chainKeysOf } from '../cluster/identity.ts'
import { clusterKeyFile, compose, databaseUrl } from '../compose/compose.ts'
import { SandboxError } from '../model/errors.ts'
import { visible, visibleJson, visibleLines } from '../model/text/visible.ts'
import { openStore } from '../store/open.ts'
import { standardIo } from './check.ts'
import { remoteTrail } from './server/audit-remote.ts'
import { namedServer } from './server/remote.ts'
import type { CliIo } from './terminal/io.ts'

/** The text of `ringfence audit --help`. */
export const HELP = `ringfence audit: read and verify the audit log

Usage:
  ringfence audit tail [-n N] [--follow] [filters]   print the last records (default 10)
  ringfence audit query [filters] [--limit N]        print all matching records, oldest first
  ringfence audit verify [--against FILE]            verify the whole log; exit 1 at the first bad record
  ringfence audit export [-o FILE]                   write the canonical lines, one record each
  ringfence audit proof SEQ                          print a JSON proof that a record is in the log
  ringfence audit proof --check FILE [--key KEY]     check a proof; exit 1 if it is not valid

Filters:
  --event NAME         SandboxViolation, PolicyDecision, Exec, ... (repeatable)
  --event-type sandbox violations only
  --agent-id ID, --sandbox-id ID, --exec-id ID
  --since TIME         2026-01-31T12:00:00Z, or an age: 90s, 15m, 2h, 7d

Without RINGFENCE_URL the log of this host is read, with it the log of that server (verify, export and proof need an admin's key).

Options:
  --json               one JSON value per line
  --against FILE       a copy of anchor/head.jsonl stored elsewhere; detects a log that was rolled back together with its head
  --key KEY            public key to trust (the \`public_key\` of a proof); default: the key of this log

Examples:
  ringfence audit tail -n 20 --follow
  ringfence audit query --event-type sandbox --agent-id build-bot --since 1h --json
  ringfence audit verify
  ringfence audit export -o trail.jsonl
  ringfence audit proof 41 > proof.json && ringfence audit proof --check proof.json
`

const OPTIONS = {
  help: { type: 'boolean', short: 'h' },
  json: { type: 'boolean' },
  lines: { type: 'string', short: 'n' },
  follow: { type: 'boolean', short: 'f' },
  event: { type: 'string', multiple: true },
  'event-type': { type: 'string' },
  'agent-id': { type: 'string' },
  'sandbox-id': { type: 'string' },
  'exec-id': { type: 'string' },
  since: { type: 'string' },
  limit: { type: 'string' },
  against: { type: 'string' },
  output: { type: 'string', short: 'o' },
  check: { type: 'string' },
  key: { type: 'string' },
} as const

type Values = ReturnType<typeof parse>['values']
type Option = keyof typeof OPTIONS
type Call = {
  readonly values: Values
  readonly rest: readonly string[]
  readonly io: CliIo
  readonly json: boolean
  readonly trail: TrailSource
}
type Action = { readonly run: (call: Call) => number | Promise<number>; readonly takes: readonly Option[] }

const FILTERS: readonly Option[] = ['event', 'event-type', 'agent-id', 'sandbox-id', 'exec-id', 'since']

const ACTIONS: Readonly<Record<string, Action>> = {
  tail: { run: tail, takes: [...FILTERS, 'lines', 'follow'] },
  query: { run: query, takes: [...FILTERS, 'limit'] },
  verify: { run: verify, takes: ['against'] },
  export: { run: exportLines, takes: ['output'] },
  proof: { run: proof, takes: ['check', 'key'] },
}

/** `ringfence audit`, with the real standard streams. */
export const audit = (args: readonly string[]): Promise<number> => {
  const io = standardIo(args.includes('--json'))
  return runAudit(args, io, async () => {
    const server = namedServer()
    if (server) return remoteTrail(server)
    const { config, env } = await compose()
    const key = ClusterKey.load(clusterKeyFile(config, io.home))
    return trailSource(
      io.home,
      () => openStore({ stateDir: io.home, databaseUrl: databaseUrl(config, env) }),
      key && ((store) => chainKeysOf(store, key)),
    )
  })
}

/** `ringfence audit …`: resolves to the exit code; throws `SandboxError` on wrong usage or an unreadable log. */
export async function runAudit(
  args: readonly string[],
  io: CliIo,
  source: () => Promise<TrailSource> = () => trailSource(io.home, () => openStore({ stateDir: io.home })),
): Promise<number> {
  const { values, positionals } = parse(args)
  const [name, ...rest] = positionals
  if (values.help) {
    io.out(HELP)
    return 0
  }
  const action = Object.hasOwn(ACTIONS, name ?? '') ? ACTIONS[name ?? ''] : undefined
  if (action === undefined)
    throw usage(
      name === undefined
        ? 'missing action: tail, query, verify, export or proof'
        : `unknown action \`${name}\``,
    )
  const stray = Object.keys(values).find(
    (given) => given !== 'json' && !action.takes.includes(given as Option),
  )
  if (stray !== undefined) throw usage(`\`audit ${name}\` does not accept --${stray}`)
  if (rest.length > 0 && name !== 'proof') throw usage(`unexpected \`${rest[0]}\``)
  let trail: TrailSource | undefined
  try {
    trail = await source()
    return await action.run({ values, rest, io, trail, json: io.json || values.json === true })
  } catch (error) {
    throw unwritable(error, io.home)
  } finally {
    await trail?.close()
  }
}

function parse(args: readonly string[]) {
  try {
    return parseArgs({ args: [...args], options: OPTIONS, allowPositionals: true, strict: true })
  } catch (error) {
    throw usage((error as Error).message.split(/[.\n]/)[0] ?? 'wrong usage')
  }
}

const usage = (problem: string): SandboxError =>
  new SandboxError('invalid-input', problem, { hint: 'see `ringfence audit --help`' })

async function tail({ io, values, json, trail }: Call): Promise<number> {
  const count = wholeNumber(values.lines, '-n') ?? 10
  const follow = values.follow ? (io.signal ?? new AbortController().signal) : undefined
  for await (const record of trail.tail(count, filterOf(values), follow)) io.out(show(record, json))
  return 0
}

async function query({ io, values, json, trail }: Call): Promise<number> {
  const limit = wholeNumber(values.limit, '--limit')
  const filter = { ...filterOf(values), ...(limit === undefined ? {} : { limit }) }
  for await (const record of trail.query(filter)) io.out(show(record, json))
  return 0
}

async function verify({ io, values, json, trail }: Call): Promise<number> {
  const against = values.against === undefined ? {} : { against: headFrom(values.against) }
  const verdict = await trail.verify(against)
  if (json) io.out(`${visibleJson(verdict)}\n`)
  else if (verdict.ok) io.out(`ok: ${verdict.records} records, ${verdict.checkpoints} checkpoints\n`)
  else io.out(`bad: record ${verdict.seq}: ${visible(verdict.problem)}\n`)
  return verdict.ok ? 0 : 1
}

async function exportLines({ io, values, trail }: Call): Promise<number> {
  if (values.output !== undefined) writeFileSync(values.output, '', { mode: 0o600 })
  const write = (text: string): void =>
    values.output === undefined
      ? io.out(process.stdout.isTTY ? visibleLines(text) : text)
      : writeFileSync(values.output, text, { flag: 'a' })
  let held = ''
  for await (const line of trail.lines()) {
    held += `${line}\n`
    if (held.length < 65_536) continue
    write(held)
    held = ''
  }
  if (held !== '') write(held)
  return 0
}

async function proof({ io, values, rest, json, trail }: Call): Promise<number> {
  const [seq, extra] = rest
  if (extra !== undefined) throw usage(`unexpected \`${extra}\``)
  if (values.check === undefined) {
    const wanted = wholeNumber(seq, 'SEQ')
    if (wanted === undefined) throw usage('missing record number: `audit proof SEQ`')
    io.out(`${visibleJson(await trail.proof(wanted))}\n`)
    return 0
  }
  const verdict = checkProof(jsonIn(textFrom(values.check), values.check), trustedKey(io.home, values.key))
  if (json) io.out(`${visibleJson(verdict)}\n`)
  else if (verdict.ok)
    io.out(`ok: record ${verdict.seq} is one of ${verdict.records} signed by ${verdict.key}\n`)
  else io.out(`bad: ${visible(verdict.problem)}\n`)
  return verdict.ok ? 0 : 1
}

function trustedKey(home: string, given: string | undefined): VerifyKey {
  const key = given === undefined ? loadVerifyKey(home) : keyFrom(given)
  if (key === undefined) throw usage('no audit log on this host: name the public key to trust with --key KEY')
  return key
}

function keyFrom(x: string): VerifyKey {
  try {
    return verifyKeyOf(x)
  } catch {
    throw usage('--key: expected 32 bytes in base64url')
  }
}

/** The newest head in a copy of the anchor file, or the head of a proof. */
export function headFrom(file: string): unknown {
  type Held = { readonly head?: { readonly count?: number } } | null
  const lines = textFrom(file).trim().split('\n')
  const heads = lines.map((line) => (jsonIn(line, file) as Held)?.head)
  return heads.reduce((newest, head) => ((head?.count ?? 0) > (newest?.count ?? 0) ? head : newest)) ?? {}
}

function textFrom(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    throw usage(`\`${file}\` cannot be read`)
  }
}

function jsonIn(text: string, file: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    throw usage(`\`${file}\` is not JSON`)
  }
}

function filterOf(values: Values): TrailFilter {
  const type = values['event-type']
  if (type !== undefined && type !== 'sandbox') throw usage('--event-type: only `sandbox` is supported')
  return {
    ...(values.event === undefined ? {} : { events: values.event }),
    ...(type === undefined ? {} : { eventType: type }),
    ...(values['agent-id'] === undefined ? {} : { agentId: values['agent-id'] }),
    ...(values['sandbox-id'] === undefined ? {} : { sandboxId: values['sandbox-id'] }),
    ...(values['exec-id'] === undefined ? {} : { execId: values['exec-id'] }),
    ...(values.since === undefined ? {} : { since: momentOf(values.since) }),
  }
}

const UNIT_MS: Readonly<Record<string, number>> = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }

function momentOf(text: string): Date {
  const [, amount, unit] = /^(\d+)([smhd])$/.exec(text) ?? []
  const at = amount && unit ? Date.now() - Number(amount) * (UNIT_MS[unit] ?? 0) : Date.parse(text)
  if (!Number.isFinite(at)) throw usage(`--since: \`${text}\` is neither a timestamp nor an age such as 15m`)
  return new Date(at)
}

function wholeNumber(text: string | undefined, name: string): number | undefined {
  if (text === undefined) return undefined
  if (!/^\d{1,15}$/.test(text)) throw usage(`${name}: expected a whole number, got \`${text}\``)
  return Number(text)
}

// SECURITY: records contain agent input, which must not control the reader's terminal.
function show(record: TrailRecord, json: boolean): string {
  if (json) return `${visibleJson(record)}\n`
  const { seq, time, event, hash: _hash, prev_hash: _prev, ...rest } = record
  return `${visible(`${time} ${seq} ${event} `)}${visibleJson(rest)}\n`
}
