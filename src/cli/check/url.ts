import { hostResolve } from '../../egress/upstream/names.ts'
import { SandboxError } from '../../model/errors.ts'
import { type Infer, list, number, object, optional, record, text } from '../../model/shape.ts'
import { visible, visibleJson } from '../../model/text/visible.ts'
import { type FetchWalk, type FetchWorld, walkFetch } from '../../policy/network/fetch-walk.ts'
import { type NetworkPolicy, networkPolicyOf, type TargetKind } from '../../policy/network/network.ts'
import { parseOptions } from '../options/options.ts'
import type { CliIo } from '../terminal/io.ts'
import { jsonLine, type LoadConfig, linesOf } from './path.ts'

const answers = () => list(text({ empty: true }))
const lineShape = object({
  url: text({ empty: true }),
  kind: optional(text()),
  mode: optional(text()),
  dns: optional(record(answers())),
  dns_seq: optional(record(list(answers()))),
  responses: optional(record(object({ status: number(), location: optional(text({ empty: true })) }), /^/)),
  allowlist: optional(list(text())),
})
type Line = Infer<typeof lineShape>

/** `ringfence check url U`, or `--batch` with one JSON request on each line of stdin. */
export async function checkUrl(args: readonly string[], io: CliIo, loadConfig?: LoadConfig): Promise<number> {
  const { values, positionals } = parseOptions('check', args, { batch: { type: 'boolean' } })
  if (values.batch) return checkUrlBatch(io)
  const [url, ...more] = positionals
  if (url === undefined || more.length > 0) {
    throw new SandboxError('invalid-input', 'check url needs exactly one URL', {
      hint: 'ringfence check url https://example.com/',
    })
  }
  const { network = {} } = (await loadConfig?.(values.policy ?? values.config)) ?? {}
  const policy = networkPolicyOf({ allowHosts: network.allow_hosts, allowPrivate: network.allow_private })
  const { verdict, reason } = await walkFetch(policy, { url, kind: 'url' }, HOST_WORLD)
  io.out(
    io.json || values.json ? `${visibleJson({ verdict, reason })}\n` : `${verdict}: ${visible(reason)}\n`,
  )
  return verdict === 'allow' ? 0 : 4
}

/** The host's resolver. No connection is made, so there are no redirects. */
const HOST_WORLD: FetchWorld = {
  resolve: (host) => hostResolve(host),
  respond: () => ({ status: 200 }),
}

async function checkUrlBatch(io: CliIo): Promise<number> {
  for await (const line of linesOf(process.stdin)) {
    if (line.trim() !== '') io.out(jsonLine(await answerUrlLine(line)))
  }
  return 0
}

/** One answer for one line of `--batch`; a line that cannot be parsed is blocked, never dropped. */
export async function answerUrlLine(
  line: string,
): Promise<FetchWalk & { readonly id: unknown; readonly us: number }> {
  let id: unknown = null
  const started = performance.now()
  let walk: FetchWalk
  try {
    const { id: given, ...fields } = JSON.parse(line) as { id?: unknown }
    id = given ?? null
    const request = lineShape.parse(fields, '')
    const kind: TargetKind = request.kind === 'proxy-target' ? 'proxy-target' : 'url'
    walk = await walkFetch(policyOf(request), { url: request.url, kind }, lineWorld(request))
  } catch (error) {
    walk = { verdict: 'block', reason: error instanceof Error ? error.message : 'invalid line', connects: [] }
  }
  return { id, ...walk, us: Math.round((performance.now() - started) * 1000) }
}

function policyOf({ mode, allowlist }: Line): NetworkPolicy {
  if (mode === 'offline' || mode === 'loopback') return networkPolicyOf({ allowHosts: [] })
  return networkPolicyOf({ allowHosts: allowlist ?? (mode === 'fetch' ? [] : undefined) })
}

/** The network as the line describes it. Every answer of a DNS sequence is checked. */
function lineWorld({ dns = {}, dns_seq = {}, responses = {} }: Line): FetchWorld {
  const asked = new Map<string, number>()
  const byUrl = new Map(
    Object.entries(responses).map(([key, answer]) => [URL.canParse(key) ? new URL(key).href : key, answer]),
  )
  return {
    resolve(host) {
      const sequence = dns_seq[host] ?? dns_seq[`${host}.`]
      if (sequence === undefined) return dns[host] ?? dns[`${host}.`] ?? []
      const turn = asked.get(host) ?? 0
      asked.set(host, turn + 1)
      return sequence[Math.min(turn, sequence.length - 1)] ?? []
    },
    respond: (url) => byUrl.get(url.href) ?? { status: 200 },
    lookups: Math.max(2, ...Object.values(dns_seq).map((sequence) => sequence.length)),
  }
}
