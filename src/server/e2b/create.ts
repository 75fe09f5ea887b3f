import { SandboxError } from '../../model/errors.ts'
import type { Spec } from '../../model/spec.ts'
import type { Principal } from '../../supervisor/access/keys.ts'
import type { LiveSandbox } from '../../supervisor/live-sandbox.ts'
import type { SandboxView } from '../../supervisor/provisioner.ts'
import type { Template } from '../../supervisor/snapshots/templates.ts'
import { allowHostsOf, networkOf } from './network.ts'
import { type E2bSurface, PRIVATE } from './sandbox-request.ts'
import type { CreateBody } from './shapes.ts'
import { type E2bOptions, OPTIONS } from './views.ts'

/** A sandbox as E2B's clients expect one: user `user`, home `/home/user`, the host's own tools. */

/** Names of E2B's public templates that mean: nothing but the host's tools. */
const PLAIN = ['base', 'code-interpreter-v1']

const READY_MS = 60_000

function refuseUnbuilt(body: CreateBody): void {
  const refused = (
    [
      ['autoPause', body.autoPause],
      ['autoResume', isOn(body.autoResume)],
      ['volumeMounts', (body.volumeMounts?.length ?? 0) > 0],
      ['mcp', body.mcp !== undefined],
      ['iam', body.iam !== undefined],
    ] as const
  ).find(([, asked]) => asked)
  if (refused)
    throw new SandboxError('unsupported', `\`${refused[0]}\` is not supported`, { hint: 'leave it out' })
}

const isOn = (value: unknown): boolean =>
  typeof value === 'object' && value !== null && (value as { enabled?: unknown }).enabled === true

/** The template that a name means for a tenant; nothing for the host's tools alone. */
export async function templateFor(
  { e2b }: E2bSurface,
  tenant: string,
  name: string,
): Promise<Template | undefined> {
  const bare = name.replace(/:default$/, '')
  if (PLAIN.includes(bare)) return undefined
  const found = (await e2b.templates.find(tenant, name)) ?? (await e2b.templates.find(tenant, bare))
  if (!found)
    throw new SandboxError('not-found', `there is no template \`${name}\``, {
      hint: 'use `base`, or build one',
    })
  return found
}

function specFor(
  { e2b }: E2bSurface,
  principal: Principal,
  body: CreateBody,
  template: Template | undefined,
): Spec {
  const policy = e2b.policyFor(principal)
  const { network = {}, allow_internet_access: internet } = body
  const hosts = allowHostsOf(network, internet)
  const options: E2bOptions = {
    template: body.templateID ?? 'base',
    ...(internet === undefined ? {} : { internet }),
    ...(network.allowOut ? { allowOut: network.allowOut } : {}),
  }
  const { cpus, memoryMb, env } = template?.data ?? {}
  // SECURITY: their directories lie on the host's disk, which also holds the records of everything.
  const limits = {
    diskMb: Math.min(e2b.diskMb, policy.max.diskMb),
    ...(cpus ? { cpus } : {}),
    ...(memoryMb ? { memoryMb } : {}),
  }
  return {
    private: PRIVATE,
    // As with E2B: whoever knows the address of a port reaches it, unless the caller or the operator closed them.
    publicPorts: network.allowPublicTraffic ?? policy.publicPorts ?? true,
    network: networkOf(policy.networkModes, hosts),
    env: { ...env, ...body.envVars },
    limits,
    metadata: { ...body.metadata, [OPTIONS]: JSON.stringify(options) },
  }
}

/** Creates a sandbox as E2B's clients expect it. */
export async function createSandbox(
  surface: E2bSurface,
  principal: Principal,
  body: CreateBody,
  defaultSeconds: number,
): Promise<SandboxView> {
  refuseUnbuilt(body)
  const template = await templateFor(surface, principal.tenant, body.templateID ?? 'base')
  const spec = specFor(surface, principal, body, template)
  const { supervisor } = surface.parts
  const seconds = body.timeout ?? defaultSeconds
  const made = await supervisor.create(principal, { spec, timeoutMs: Math.max(1, seconds * 1000) })
  try {
    if (isClosed(body)) await closeNetwork(made.live as LiveSandbox)
    if (template) await bringUp(surface, principal, made.live as LiveSandbox, template)
    return made
  } catch (error) {
    await supervisor.stop(principal, made.row.id).catch(() => {})
    throw error
  }
}

/** An empty list of hosts means the operator's; a client that wants none gets none. */
const isClosed = ({ network = {}, allow_internet_access }: CreateBody): boolean =>
  allowHostsOf(network, allow_internet_access)?.length === 0

async function closeNetwork(entry: LiveSandbox): Promise<void> {
  const live = entry.ready()
  if (live.plan.network.allowHosts.length > 0) await live.setAllowHosts([])
}

/** What a template has beyond a spec: its files, and the program that it starts. */
async function bringUp(
  surface: E2bSurface,
  principal: Principal,
  entry: LiveSandbox,
  template: Template,
): Promise<void> {
  await surface.e2b.templates.restore(entry.ready(), PRIVATE, template)
  const { startCommand, readyCommand, workdir } = template.data
  const { supervisor } = surface.parts
  const shell = (line: string) => ({
    command: ['/bin/bash', '-l', '-c', line],
    cwd: workdir,
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
