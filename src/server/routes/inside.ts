import { isOperator } from '../../supervisor/access/keys.ts'
import type { LiveSandbox } from '../../supervisor/live-sandbox.ts'
import type { OpenSandbox } from '../../supervisor/open-sandbox.ts'
import { type Call, type Route, route } from '../route.ts'
import { pageOf } from '../views.ts'

/** What stands around a sandbox and what happened in it, for people who look at it. */

const OBJECT = { type: 'object' } as const
const base = { method: 'GET', scope: 'read', sandboxToken: true } as const

export const insideRoutes: readonly Route[] = [
  route({
    ...base,
    path: '/v1/sandboxes/:id/execs',
    summary: 'Its commands, newest first: the running ones, and those on record',
    answers: { 200: { description: 'a page', schema: pageOf(OBJECT) } },
    async handle({ parts, principal, params }) {
      const { row, live } = await parts.supervisor.get(principal, params.id as string)
      const held = [...(live?.execs.values() ?? [])].map(sessionJson)
      const seen = new Set(held.map(({ exec_id }) => exec_id))
      const past = (await recorded(parts, row.id)).filter(({ exec_id }) => !seen.has(exec_id))
      const items = [...held, ...past].sort((a, b) => (a.started_at < b.started_at ? 1 : -1))
      return Response.json({ items, next: null })
    },
  }),
  route({
    ...base,
    path: '/v1/sandboxes/:id/wall',
    summary: 'What is inside, what crosses the wall, and the fences as the kernel reports them',
    answers: { 200: { description: 'the wall', schema: OBJECT } },
    async handle({ parts, principal, params }) {
      const { row, live } = await parts.supervisor.get(principal, params.id as string)
      const sandbox = live?.sandbox
      const layers = row.layers === null ? [] : (JSON.parse(row.layers) as string[])
      if (!live || !sandbox) return Response.json({ id: row.id, open: false, layers })
      return Response.json({
        id: row.id,
        open: true,
        backend: sandbox.backend,
        level: sandbox.level,
        layers,
        ...wallJson(sandbox, isOperator(principal)),
        secrets: secretsOf(live),
      })
    },
  }),
  route({
    ...base,
    path: '/v1/sandboxes/:id/egress',
    summary: 'The latest connections through its proxy, allowed and refused, newest first',
    answers: { 200: { description: 'a page', schema: pageOf(OBJECT) } },
    async handle({ parts, principal, params }) {
      const { live } = await parts.supervisor.get(principal, params.id as string)
      const items = (live?.sandbox?.connections ?? []).map((one) => ({
        host: one.host,
        port: one.port,
        address: one.address ?? null,
        protocol: one.protocol,
        verdict: one.verdict,
        reason: one.reason,
        bytes_in: one.bytesIn,
        bytes_out: one.bytesOut,
        duration_ms: Math.round(one.durationMs),
        at: one.at === undefined ? null : new Date(one.at).toISOString(),
      }))
      return Response.json({ items: items.reverse(), next: null })
    },
  }),
]

type Session = LiveSandbox['execs'] extends ReadonlyMap<string, infer S> ? S : never

const sessionJson = (session: Session) => ({
  exec_id: session.id,
  command: session.command,
  terminal: session.isTerminal,
  /** Its output can still be read. */
  held: true,
  state: session.state as string,
  started_at: new Date(session.startedAt).toISOString(),
  outcome: (session.done?.outcome ?? null) as unknown,
  duration_ms: session.done ? Math.round(session.done.durationMs) : null,
  violations: session.done?.violations.length ?? 0,
  action: session.decision.action as string,
  reason: session.decision.reason,
})
type ExecView = ReturnType<typeof sessionJson>

/** Commands that are no longer in memory, refused ones among them, from the trail. */
async function recorded(parts: Call['parts'], sandboxId: string): Promise<readonly ExecView[]> {
  const events = ['PolicyDecision', 'Exec', 'SandboxViolation']
  const records = await parts.trail.query({ sandboxId, events, order: 'desc', limit: 600 })
  const views = new Map<string, ExecView>()
  for (const record of records.reverse()) {
    const id = record.exec_id as string | undefined
    if (id === undefined) continue
    const known = views.get(id)
    if (record.event === 'PolicyDecision' && record.subject === 'command')
      views.set(id, {
        exec_id: id,
        command: String(record.command ?? ''),
        terminal: false,
        held: false,
        state: record.action === 'deny' ? 'refused' : 'unfinished',
        started_at: record.time,
        outcome: null,
        duration_ms: null,
        violations: 0,
        action: String(record.action ?? ''),
        reason: String(record.reason ?? ''),
      })
    else if (known && record.event === 'Exec')
      views.set(id, {
        ...known,
        state: String(record.state),
        outcome: record.outcome ?? null,
        duration_ms: (record.duration_ms as number | undefined) ?? null,
      })
    else if (known) views.set(id, { ...known, violations: known.violations + 1 })
  }
  return [...views.values()]
}

/** SECURITY: where something lies on the host is the operator's business. */
const wallJson = ({ plan }: OpenSandbox, operator: boolean) => ({
  preset: plan.preset,
  image: plan.image ?? null,
  cwd: plan.cwd,
  run_as: plan.runAs ?? null,
  mounts: plan.mounts.map(({ real, target, mode, kind, overlay }) => ({
    source: operator ? real : null,
    target,
    mode,
    kind,
    own: plan.own.includes(target),
    review: overlay !== undefined,
  })),
  masks: plan.masks.map(({ target }) => target),
  network: { mode: plan.network.mode, allow_hosts: plan.network.allowHosts },
  unix_sockets: plan.unixSockets.map(({ target }) => target),
  files: plan.files.map(({ target }) => target),
  env: Object.keys(plan.env).sort(),
  limits: plan.limits,
  nets: plan.nets,
  needs: plan.needs,
  waived: plan.waived,
  protection: plan.protection
    ? [...plan.protection.roots, ...plan.protection.inner, ...plan.protection.names]
    : [],
})

/** `NAME=VARIABLE@HOST`: the name inside and the host that gets the value; never the value. */
function secretsOf({ row }: LiveSandbox): readonly { readonly name: string; readonly host: string }[] {
  const { secrets = [] } = JSON.parse(row.spec) as { secrets?: readonly string[] }
  return secrets.map((text) => {
    const [, name = text, host = ''] = /^([^=]+)=[^@]*@(.+)$/.exec(text) ?? []
    return { name, host }
  })
}
