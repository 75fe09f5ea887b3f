import { cpus } from 'node:os'
import type { Spec } from '../../model/spec.ts'
import type { Seen } from '../../supervisor/nursery.ts'
import type { E2bSurface } from './guest.ts'
import { domainOf, toE2bId } from './ids.ts'

/** Sandboxes as E2B's clients see them. */

/** The version of E2B's own daemon whose abilities we have. */
export const ENVD_VERSION = '0.6.4'

/** What E2B knows of a sandbox and we do not; kept beside the caller's own words about it. */
export type E2bOptions = {
  readonly template: string
  readonly publicTraffic?: boolean
  readonly internet?: boolean
  readonly allowOut?: readonly string[]
}
export const OPTIONS = 'ringfence.e2b'

export const specOf = ({ row }: Seen): Spec => JSON.parse(row.spec) as Spec

export function optionsOf(spec: Spec): E2bOptions {
  const text = spec.metadata?.[OPTIONS]
  return text === undefined ? { template: 'base' } : (JSON.parse(text) as E2bOptions)
}

export const metadataOf = (spec: Spec): Record<string, string> =>
  Object.fromEntries(Object.entries(spec.metadata ?? {}).filter(([name]) => name !== OPTIONS))

/** E2B's clients cannot read a sandbox without an end. */
const NEVER = 100 * 365 * 24 * 3600 * 1000

export function infoOf(seen: Seen) {
  const { row, managed } = seen
  const spec = specOf(seen)
  const { template } = optionsOf(spec)
  const limits = managed?.live?.plan.limits ?? spec.limits ?? {}
  return {
    sandboxID: toE2bId(row.id),
    templateID: template,
    alias: template,
    clientID: 'ringfence',
    startedAt: new Date(row.createdAt).toISOString(),
    endAt: new Date(row.expiresAt ?? row.createdAt + NEVER).toISOString(),
    state: row.state === 'paused' ? 'paused' : 'running',
    cpuCount: Math.max(1, Math.ceil(limits.cpus ?? cpus().length)),
    memoryMB: limits.memoryMb ?? 0,
    diskSizeMB: limits.diskMb ?? 0,
    metadata: metadataOf(spec),
    envdVersion: ENVD_VERSION,
    volumeMounts: [],
  }
}

/** What a client needs to talk to a sandbox. */
export function accessOf(surface: E2bSurface, seen: Seen, host: string) {
  const { tokens } = surface.e2b
  return {
    sandboxID: toE2bId(seen.row.id),
    templateID: optionsOf(specOf(seen)).template,
    clientID: 'ringfence',
    envdVersion: ENVD_VERSION,
    envdAccessToken: tokens.access(seen.row.id),
    trafficAccessToken: tokens.traffic(seen.row.id),
    domain: domainOf(host, surface.parts.settings.hosts),
  }
}

export function detailOf(surface: E2bSurface, seen: Seen, host: string) {
  const { internet, publicTraffic, allowOut } = optionsOf(specOf(seen))
  return {
    ...infoOf(seen),
    ...accessOf(surface, seen, host),
    allowInternetAccess: internet ?? null,
    network: { allowPublicTraffic: publicTraffic ?? true, ...(allowOut ? { allowOut } : {}) },
    lifecycle: { onTimeout: 'kill', autoResume: false },
  }
}
