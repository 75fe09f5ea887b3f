import type { Context, Hono } from 'hono'
import { SandboxError } from '../../model/errors.ts'
import type { AppEnv, Mount, Surface } from '../app.ts'
import { clientAddress } from '../cluster/peers.ts'
import type { Upgrade, UpgradeTaker } from '../upgrade.ts'
import { headersOf, joinPort } from '../upgrade.ts'
import { CONTROL } from './control.ts'
import { mayPass, routed, serveTarget } from './data-plane.ts'
import { ENVD_PORT, INTERPRETER_PORT, targetOf } from './ids.ts'
import { serveRest } from './rest.ts'
import { awake, type E2bParts, type E2bSurface, woken } from './sandbox-request.ts'
import { SECRETS } from './secrets.ts'
import { TEMPLATES, takeUpload } from './templates/template-routes.ts'
import { maskOf } from './views.ts'
import { serveContent, VOLUME_CONTENT, VOLUMES } from './volumes.ts'

/**
 * E2B's surface beside `/v1`: an unmodified E2B client works with `E2B_API_URL` and `E2B_SANDBOX_URL` set to this server.
 * Mounted early, because a request for a sandbox is told by its headers and not by its path.
 */
export function e2bMount(e2b: E2bParts): Mount {
  const mount = (app: Hono<AppEnv>, outer: Surface): void => {
    const surface: E2bSurface = { ...outer, e2b }
    app.use('*', async (context: Context<AppEnv>, next) => {
      const target = routed(surface, context)
      return target === undefined ? next() : serveTarget(surface, context, target)
    })
    app.put('/templates/:id/files/:hash', (context) => takeUpload(surface, context))
    for (const route of [...CONTROL, ...TEMPLATES, ...VOLUMES, ...SECRETS])
      app.on(route.method, route.path, (context) => serveRest(surface, route, context))
    for (const route of VOLUME_CONTENT)
      app.on(route.method, route.path, (context) => serveContent(surface, route, context))
  }
  return Object.assign(mount, { early: true })
}

/** WebSockets of programs inside, by host name or headers. */
export function e2bUpgrades(e2b: E2bParts): UpgradeTaker {
  return async (upgrade: Upgrade) => {
    const { headers } = upgrade.request
    const one = (name: string): string | undefined => {
      const value = headers[name]
      return Array.isArray(value) ? value[0] : value
    }
    const target = targetOf(headers.host ?? '', one)
    if (!target || target.port === ENVD_PORT || target.port === INTERPRETER_PORT) return false
    const { id, port } = target
    const principal = { keyId: '', tenant: '', scopes: ['exec' as const], sandboxId: id }
    const { supervisor } = upgrade.parts
    const seen = await supervisor.get(principal, id)
    if (!seen.live || !supervisor.wakes(seen.live)) assertRunning(seen.live, id)
    const given = one('e2b-traffic-access-token')
    const open = {
      headers: headersOf(upgrade.request),
      answer: upgrade.socket,
      address: clientAddress(upgrade.request),
      byAddress: true,
    }
    if (!(await mayPass({ parts: upgrade.parts, e2b }, seen, given, open)))
      await supervisor.get(await upgrade.authenticate(id), id)
    await woken({ parts: upgrade.parts, e2b }, seen.live, id)
    await joinPort(upgrade, seen.live as NonNullable<typeof seen.live>, port, maskOf(seen.row, port))
    return true
  }
}

/** As an error that the handler of upgrades knows. */
function assertRunning(entry: Parameters<typeof awake>[0], id: string): void {
  try {
    awake(entry, id)
  } catch (cause) {
    throw new SandboxError('sandbox-not-found', `sandbox ${id} is not running`, { cause })
  }
}
