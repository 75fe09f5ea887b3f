import { SandboxError } from '../../model/errors.ts'
import type { Spec } from '../../model/spec.ts'
import type { Principal } from '../../supervisor/access/keys.ts'
import type { LiveSandbox } from '../../supervisor/lifecycle/live-sandbox.ts'
import type { CreateRequest, SandboxView } from '../../supervisor/provisioner.ts'
import type { Template } from '../../supervisor/snapshots/templates.ts'
import { INTERPRETER_PORT } from './ids.ts'
import { prewarm } from './interpreter/contexts.ts'
import { selectedServers } from './mcp.ts'
import { defaultHosts, headersOf, hostsOf, networkOf, secretsIn, upstreamOf } from './network.ts'
import { PRIVATE, type SandboxSurface } from './sandbox-request.ts'
import type { CreateBody } from './shapes.ts'
import { findTagged } from './templates/tags.ts'
import { type E2bOptions, masked, networkOptions, OPTIONS } from './views.ts'

/** A sandbox as E2B's clients expect one: user `user`, home `/home/user`, the host's own tools. */

/** Names of E2B's public templates that mean: nothing but the host's tools. */
const INTERPRETER = 'code-interpreter-v1'
const PLAIN = ['base', INTERPRETER, 'mcp-gateway']

const READY_MS = 60_000

/** What the client wants when the time of the sandbox is over. */
function timeoutOf({ autoPause, autoPauseMemory, autoResume }: CreateBody): Pick<Spec, 'atTimeout'> {
  if (!autoPause) return {}
  const wakes = autoResume?.enabled ?? false
  const keepMemory = autoPauseMemory ?? true
  if (wakes && !keepMemory)
    throw new SandboxError(
      'invalid-input',
      'a sandbox that is paused without its memory is not resumed by requests',
      {
        hint: 'leave `autoResume` out, or keep the memory',
      },
    )
  return { atTimeout: { action: 'pause', keepMemory, wakes } }
}

/** Whether a template is a root of its own, and not only files. */
const hasRootOf = ({ data }: Template): boolean => data.image !== undefined || data.disk === true

/** The template that a name means for a tenant; nothing for the host's tools alone. */
export async function templateFor(
  { e2b }: SandboxSurface,
  tenant: string,
  name: string,
): Promise<Template | undefined> {
  const bare = name.replace(/:default$/, '')
  if (PLAIN.includes(bare)) return undefined
  const { templates } = e2b
  const exact = /:/.test(bare) ? undefined : await templates.find(tenant, bare)
  const found = exact ?? (await findTagged(templates, tenant, name)) ?? (await templates.find(tenant, name))
  if (!found)
    throw new SandboxError('not-found', `there is no template \`${name}\``, {
      hint: 'use `base`, or build one',
    })
  return found
}

/** The hosts that a new sandbox may reach. */
const hostsFor = ({ e2b }: SandboxSurface, principal: Principal, body: CreateBody): readonly string[] =>
  hostsOf(
    body.network ?? {},
    body.allow_internet_access,
    defaultHosts(e2b.policyFor(principal), e2b.internet()),
  )

/** SECURITY: the text becomes a header of requests. */
function checkMask(mask: string): string {
  if (/^[A-Za-z0-9.-]+(:\d{1,5})?$/.test(masked(mask, 0))) return mask
  throw new SandboxError('invalid-input', 'maskRequestHost: not a host name, with or without a port')
}

/** What the request was found to mean. */
type Chosen = {
  readonly template: Template | undefined
  readonly hosts: readonly string[]
  readonly mcp: readonly string[] | undefined
}

function specFor(
  { e2b }: SandboxSurface,
  principal: Principal,
  body: CreateBody,
  { template, hosts, mcp }: Chosen,
): Spec {
  const policy = e2b.policyFor(principal)
  const { network = {}, allow_internet_access: internet } = body
  const headers = headersOf(network)
  const secrets = secretsIn(headers)
  const { cpus, memoryMb, env, workdir, user } = template?.data ?? {}
  const hasRoot = template !== undefined && hasRootOf(template)
  const options: E2bOptions = {
    template: body.templateID ?? 'base',
    ...(mcp ? { mcp } : {}),
    ...networkOptions(network, internet),
    ...(workdir === undefined ? {} : { workdir }),
    ...(user === undefined ? {} : { user }),
    ...(network.maskRequestHost === undefined ? {} : { maskHost: checkMask(network.maskRequestHost) }),
  }
  // SECURITY: their directories lie on the host's disk, which also holds the records of everything.
  const limits = {
    diskMb: Math.min(e2b.diskMb, policy.max.diskMb),
    ...(cpus ? { cpus } : {}),
    ...(memoryMb ? { memoryMb } : {}),
  }
  const waive = e2b.waive()
  return {
    private: PRIVATE,
    ...(waive.length > 0 ? { waive } : {}),
    // As with E2B: the sandbox is one's own machine, with a root user, where this server can do it.
    root: hasRoot ? 'writable' : 'preferred',
    // Its files are part of the root; those of other templates are unpacked into the sandbox.
    ...(hasRoot ? { template: template.id } : {}),
    ...timeoutOf(body),
    // As with E2B, the address of a port is enough to reach it, unless the caller or the operator closed the ports.
    publicPorts: network.allowPublicTraffic ?? policy.publicPorts ?? true,
    network: networkOf(policy.networkModes, hosts, headers, upstreamOf(network)),
    ...(secrets.length > 0 ? { secrets } : {}),
    ...(body.volumeMounts?.length
      ? { volumes: body.volumeMounts.map(({ name, path }) => ({ name, target: path, mode: 'rw' as const })) }
      : {}),
    env: { ...env, ...body.envVars },
    limits,
    metadata: { ...body.metadata, [OPTIONS]: JSON.stringify(options) },
  }
}

/** Creates a sandbox as E2B's clients expect it. */
export async function createSandbox(
  surface: SandboxSurface,
  principal: Principal,
  body: CreateBody,
  defaultSeconds: number,
): Promise<SandboxView> {
  const mcp = selectedServers(surface, principal, body)
  const template = await templateFor(surface, principal.tenant, body.templateID ?? 'base')
  const hosts = hostsFor(surface, principal, body)
  const spec = specFor(surface, principal, body, { template, hosts, mcp })
  const { supervisor } = surface.parts
  const seconds = body.timeout ?? defaultSeconds
  const prepare = preparationOf(surface, body, template)
  const made = await supervisor
    .create(principal, { spec, timeoutMs: Math.max(1, seconds * 1000), prepare })
    .catch(explained)
  surface.e2b.usage.follow(made.live as LiveSandbox, { disk: true })
  try {
    if (hosts.length === 0) await closeNetwork(made.live as LiveSandbox)
    if (prepare) void prepare((made.live as LiveSandbox).ready(), principal.tenant)
    if (template) await bringUp(surface, principal, made.live as LiveSandbox, template)
    return made
  } catch (error) {
    await supervisor.stop(principal, made.row.id).catch(() => {})
    throw error
  }
}

/** E2B's clients cannot waive anything, so the advice is for the operator. */
function explained(error: unknown): never {
  if (!(error instanceof SandboxError) || error.code !== 'missing-guarantee') throw error
  throw new SandboxError(error.code, error.message, {
    hint: 'the operator can add a backend to `[backends] order` that has it; without a limit of the disk: `[e2b] waive = ["limit.disk"]`, and the same `waive` in [[tenant]]',
    cause: error,
  })
}

/**
 * The code interpreter's template has a kernel that runs, and so have templates that wait for it. One more sandbox is kept
 * ready for the next create.
 */
function preparationOf(
  surface: SandboxSurface,
  { templateID }: CreateBody,
  template: Template | undefined,
): CreateRequest['prepare'] {
  const isWaitedFor = template?.data.readyCommand?.includes(`:${INTERPRETER_PORT}`)
  const isInterpreter = templateID?.replace(/:default$/, '') === INTERPRETER && surface.e2b.ready > 0
  if (!isInterpreter && !isWaitedFor) return undefined
  return (sandbox, tenant) => prewarm(surface, sandbox, tenant)
}

/** In a spec an empty list of hosts means the operator's. */
async function closeNetwork(entry: LiveSandbox): Promise<void> {
  const live = entry.ready()
  if (live.plan.network.allowHosts.length > 0) await live.setAllowHosts([])
}

/** What a template has beyond a spec: its files, and the program that it starts. */
async function bringUp(
  surface: SandboxSurface,
  principal: Principal,
  entry: LiveSandbox,
  template: Template,
): Promise<void> {
  if (!hasRootOf(template)) await surface.e2b.templates.restore(entry.ready(), PRIVATE, template)
  const { startCommand, readyCommand, workdir, user } = template.data
  const { supervisor } = surface.parts
  const shell = (line: string) => ({
    command: ['/bin/bash', '-l', '-c', line],
    cwd: workdir,
    ...(user === undefined || !entry.ready().plan.root ? {} : { user }),
    background: true,
  })
  if (startCommand) await supervisor.exec(principal, entry.id, shell(startCommand))
  if (!readyCommand) return
  for (const until = Date.now() + READY_MS; Date.now() < until; ) {
    const request = { ...shell(readyCommand), timeoutMs: READY_MS }
    const { session } = await supervisor.exec(principal, entry.id, request)
    const { outcome } = await session.result
    if (outcome.kind === 'exited' && outcome.code === 0) return
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
  throw new SandboxError('timeout', 'the template was not ready in time', {
    hint: 'look at its ready command',
  })
}
