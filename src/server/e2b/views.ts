import { cpus } from 'node:os'
import { LONGEST_MS } from '../../model/api/create-sandbox.ts'
import { boolean, type Infer, list, object, optional, text } from '../../model/shape.ts'
import type { Spec } from '../../model/spec.ts'
import { timeText } from '../../model/text/time-text.ts'
import type { Principal } from '../../supervisor/access/keys.ts'
import type { SandboxView } from '../../supervisor/provisioner.ts'
import { mayHoldToken } from '../auth.ts'
import { callerMetadata } from '../views.ts'
import { domainOf, toE2bId } from './ids.ts'
import type { E2bNetwork } from './network.ts'
import type { E2bSurface } from './sandbox-request.ts'

/** Sandboxes as E2B's clients see them. */

/** The version of E2B's own daemon whose abilities we have. */
export const ENVD_VERSION = '0.6.4'

/** What E2B knows of a sandbox and we do not; kept beside the caller's own words about it. */
const optionsShape = object({
  template: text(),
  /** The MCP servers of the operator that the sandbox's creator selected. */
  mcp: optional(list(text({ max: 64 }), 64)),
  /** Where commands run that name no directory, and as whom; from the template. */
  workdir: optional(text()),
  user: optional(text()),
  internet: optional(boolean()),
  allowOut: optional(list(text())),
  denyOut: optional(list(text())),
  /** The `Host` header of requests to ports; `${PORT}` stands for the port. */
  maskHost: optional(text()),
})
/** Options of E2B's clients that are kept with a sandbox. */
export type E2bOptions = Infer<typeof optionsShape>
/** INVARIANT: reserved; callers cannot set it. */
export const OPTIONS = 'ringfence.e2b'

/** The spec of a sandbox. */
export const specOf = ({ row }: SandboxView): Spec => JSON.parse(row.spec) as Spec

/** A record of an older version, or one that somebody else wrote, never breaks a list. */
export function optionsOf(spec: Spec): E2bOptions {
  try {
    return optionsShape.parse(JSON.parse(spec.metadata?.[OPTIONS] ?? ''), '')
  } catch {
    return { template: 'base' }
  }
}

/** The `Host` header that a program on a port of the sandbox gets, if its creator chose one. */
export const maskOf = (row: SandboxView['row'], port: number): string | undefined =>
  masked(optionsOf(specOf({ row })).maskHost, port)

/** A mask with E2B's placeholder for the port filled in. */
export const masked = <Mask extends string | undefined>(mask: Mask, port: number): Mask =>
  // biome-ignore lint/suspicious/noTemplateCurlyInString: the placeholder is E2B's
  mask?.replaceAll('${PORT}', String(port)) as Mask

/** What is kept of a client's network options, to show them again. */
export const networkOptions = (
  { allowOut, denyOut }: Pick<E2bNetwork, 'allowOut' | 'denyOut'>,
  internet: boolean | undefined,
): Omit<E2bOptions, 'template'> => ({
  ...(internet === undefined ? {} : { internet }),
  ...(allowOut ? { allowOut } : {}),
  ...(denyOut ? { denyOut } : {}),
})

/** A sandbox in a list. */
export function infoOf(seen: SandboxView) {
  const { row, live } = seen
  const spec = specOf(seen)
  const { template } = optionsOf(spec)
  const limits = live?.sandbox?.limits ?? spec.limits ?? {}
  return {
    sandboxID: toE2bId(row.id),
    templateID: template,
    alias: template,
    clientID: 'ringfence',
    startedAt: new Date(row.createdAt).toISOString(),
    // E2B's clients cannot read a sandbox without an end.
    endAt: timeText(row.expiresAt ?? row.createdAt + LONGEST_MS),
    state: row.state === 'paused' ? 'paused' : 'running',
    cpuCount: Math.max(1, Math.ceil(limits.cpus ?? cpus().length)),
    memoryMB: limits.memoryMb ?? 0,
    diskSizeMB: limits.diskMb ?? 0,
    metadata: callerMetadata(spec),
    envdVersion: ENVD_VERSION,
    volumeMounts: (spec.volumes ?? []).map(({ name, target }) => ({ name, path: target })),
  }
}

/** What a client needs to talk to a sandbox. SECURITY: with its tokens only for keys that could have created it. */
export function accessOf(surface: E2bSurface, principal: Principal, seen: SandboxView, host: string) {
  return {
    sandboxID: toE2bId(seen.row.id),
    templateID: optionsOf(specOf(seen)).template,
    clientID: 'ringfence',
    envdVersion: ENVD_VERSION,
    ...(mayHoldToken(principal) ? tokensOf(surface, seen) : {}),
    domain: domainOf(host, surface.parts.settings.hosts),
  }
}

const tokensOf = ({ e2b: { tokens } }: E2bSurface, { row }: SandboxView) => ({
  envdAccessToken: tokens.access(row.id),
  trafficAccessToken: tokens.traffic(row.id),
})

/** A sandbox with its tokens and addresses. */
export function detailOf(surface: E2bSurface, principal: Principal, seen: SandboxView, host: string) {
  const spec = specOf(seen)
  const { internet, allowOut, denyOut, maskHost } = optionsOf(spec)
  return {
    ...infoOf(seen),
    ...accessOf(surface, principal, seen, host),
    allowInternetAccess: internet ?? null,
    network: {
      allowPublicTraffic: spec.publicPorts ?? false,
      ...(allowOut ? { allowOut } : {}),
      ...(denyOut ? { denyOut } : {}),
      ...(maskHost ? { maskRequestHost: maskHost } : {}),
    },
    lifecycle: {
      onTimeout: spec.atTimeout?.action === 'pause' ? 'pause' : 'kill',
      autoResume: spec.atTimeout?.wakes ?? false,
    },
  }
}
