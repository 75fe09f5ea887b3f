import { egressPage, type Wall, wallShape } from '../../model/api/sandboxes.ts'
import { ownedTargets } from '../../model/plan.ts'
import { isOperator } from '../../supervisor/access/keys.ts'
import type { LiveSandbox } from '../../supervisor/lifecycle/live-sandbox.ts'
import type { OpenSandbox } from '../../supervisor/open-sandbox.ts'
import type { Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { layersOf } from '../views.ts'

/** What isolates a sandbox, and its connections. */

const base = { method: 'GET', scope: 'read', sandboxToken: true } as const

/** Routes that show how a sandbox is isolated and what it connected to. */
export const isolationRoutes: readonly Route[] = [
  route({
    ...base,
    path: '/v1/sandboxes/:id/wall',
    summary:
      'Get the isolation of a sandbox: mounts, network, limits, and the layers as the kernel reports them',
    answers: { 200: { description: 'the isolation', shape: wallShape } },
    async handle({ parts, principal, params }) {
      const { row, live } = await parts.supervisor.get(principal, params.id)
      const sandbox = live?.sandbox
      if (!live || !sandbox) return reply(200, { id: row.id, open: false, layers: layersOf(row) })
      return reply(200, {
        id: row.id,
        open: true,
        backend: sandbox.backend,
        level: sandbox.level,
        layers: layersOf(row),
        ...planJson(sandbox, isOperator(principal)),
        secrets: secretsOf(live),
      })
    },
  }),
  route({
    ...base,
    path: '/v1/sandboxes/:id/egress',
    summary: "List the latest connections through the sandbox's proxy, allowed and refused, newest first",
    answers: { 200: { description: 'a page', shape: egressPage } },
    async handle({ parts, principal, params }) {
      const { live } = await parts.supervisor.get(principal, params.id)
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
      return reply(200, { items: items.reverse(), next: null })
    },
  }),
]

/** SECURITY: only the operator sees paths of the host. */
const planJson = ({ plan }: OpenSandbox, operator: boolean): Omit<Wall, 'id' | 'open' | 'layers'> => ({
  preset: plan.preset,
  image: plan.image ?? null,
  cwd: plan.cwd,
  run_as: plan.runAs ?? null,
  mounts: plan.mounts.map(({ real, target, mode, kind, overlay }) => ({
    source: operator ? real : null,
    target,
    mode,
    kind,
    own: ownedTargets(plan).includes(target),
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
