import type { Context } from 'hono'
import { SandboxError } from '../../../model/errors.ts'
import type { Template } from '../../../supervisor/snapshots/templates.ts'
import type { AppEnv } from '../../app.ts'
import { enterByMaker } from '../../auth.ts'
import { bytesOf } from '../../body.ts'
import { cursorFrom, cursorOf } from '../../views.ts'
import { templateFor } from '../create.ts'
import { same } from '../data-plane.ts'
import { restError, restProblem } from '../errors.ts'
import { fromE2bId, toE2bId } from '../ids.ts'
import { limitOf } from '../listing.ts'
import { aliveOf, bodyOf, nothing, type RestCall, type RestRoute } from '../rest.ts'
import { type E2bSurface, PRIVATE } from '../sandbox-request.ts'
import { buildShape, forkShape, newTemplateShape, snapshotShape } from '../shapes.ts'
import { accessOf, ENVD_VERSION } from '../views.ts'
import { runBuild } from './build.ts'
import { type Build, checkTemplateName, isListed, newBuild, newName } from './builds.ts'
import { checkTag, TAGS } from './tags.ts'

/** Templates, their builds, and snapshots, which are templates that a sandbox made. */

/** One name is one template; its second build replaces the first when it is ready. */
async function request(call: RestCall): Promise<Response> {
  const { surface, principal } = call
  const body = await bodyOf(call, newTemplateShape)
  const name = checkTemplateName(body.name ?? body.alias)
  const tags = (body.tags ?? []).filter((tag) => tag !== 'default').map(checkTag)
  const { templates, builds } = surface.e2b
  const sizes = { cpus: body.cpuCount, memoryMb: body.memoryMB }
  const build = await newBuild(templates, builds, { tenant: principal.tenant, name, tags, ...sizes })
  const names = { names: [name], aliases: [name], tags: tags.length > 0 ? tags : ['default'] }
  return Response.json(
    { templateID: build.templateId, buildID: build.id, public: false, ...names },
    { status: 202 },
  )
}

function buildOf({ surface, principal, params }: RestCall): Build {
  const build = surface.e2b.builds.get(principal.tenant, params.build ?? '')
  if (build?.templateId !== params.id || !build) throw new SandboxError('not-found', 'there is no such build')
  return build
}

async function start(call: RestCall): Promise<Response> {
  buildOf(call)
  const body = await bodyOf(call, buildShape)
  // SECURITY: another build may have taken its place while the body arrived, and it would run uncounted.
  const build = buildOf(call)
  if (build.status !== 'waiting') throw new SandboxError('conflict', `the build is ${build.status}`)
  void runBuild(call.surface, call.principal, build, body)
  return nothing(202)
}

/** INVARIANT: only what comes after `logsOffset`; E2B's clients ask at once again while there is anything. */
async function status(call: RestCall): Promise<Response> {
  const build = buildOf(call)
  const offset = Math.max(0, Number(call.query.get('logsOffset') ?? 0) || 0)
  const entries = build.log.entries.slice(offset, offset + 100)
  return Response.json({
    templateID: build.templateId,
    buildID: build.id,
    status: build.status,
    logs: entries.map(({ message }) => message),
    logEntries: entries,
    ...(build.reason ? { reason: { ...build.reason, logEntries: [] } } : {}),
  })
}

/** Where to put the files of a COPY: an address that opens this one file for a while, without a key. */
async function uploadLink({ surface, principal, params, context, host }: RestCall): Promise<Response> {
  const { tenant } = principal
  const { present } = surface.e2b.templates.upload(tenant, params.hash ?? '')
  const secure = 'encrypted' in (context.env?.incoming?.socket ?? {})
  const base = `${secure ? 'https' : 'http'}://${host}/templates/${params.id}/files/${params.hash}`
  const link = { tenant, key: principal.keyId, expires: String(Math.floor(Date.now() / 1000) + LINK_SECONDS) }
  const signature = surface.e2b.tokens.sign(uploadText(params.hash ?? '', link))
  const query = new URLSearchParams({ ...link, signature })
  return Response.json({ present, url: `${base}?${query}` }, { status: 201 })
}
const LINK_SECONDS = 3600

type UploadLink = { readonly tenant: string; readonly key: string; readonly expires: string }

/** INVARIANT: none of the parts can hold a blank, so no two uploads have the same text. */
const uploadText = (hash: string, { tenant, key, expires }: UploadLink): string =>
  `upload ${tenant} ${key} ${expires} ${hash}`

/** SECURITY: opened by the address alone: for one tenant and one file, for an hour, while the key is in force. */
export async function takeUpload(surface: E2bSurface, context: Context<AppEnv>): Promise<Response> {
  const { e2b, parts } = surface
  const query = new URL(context.req.url).searchParams
  const link = {
    tenant: query.get('tenant') ?? '',
    key: query.get('key') ?? '',
    expires: query.get('expires') ?? '',
  }
  const hash = context.req.param('hash') ?? ''
  try {
    await enterByMaker(parts, context, () => {
      const isSigned = same(query.get('signature') ?? '', e2b.tokens.sign(uploadText(hash, link)))
      if (isSigned && Number(link.expires) * 1000 > Date.now()) return link.key
      throw new SandboxError('unauthenticated', 'the signature is wrong or has expired')
    })
    const { body } = context.req.raw
    if (!body) throw new SandboxError('invalid-input', 'the request has no body')
    await e2b.templates.takeUpload(link.tenant, hash, bytesOf(body))
    return new Response('', { status: 200, headers: { 'content-length': '0' } })
  } catch (error) {
    return restProblem(error, parts.log)
  }
}

const templateJson = ({ id, name, data, createdAt }: Template) => ({
  templateID: id,
  buildID: id,
  cpuCount: data.cpus ?? 0,
  memoryMB: data.memoryMb ?? 0,
  diskSizeMB: 0,
  public: false,
  aliases: name === null ? [] : [name],
  names: name === null ? [] : [name],
  createdAt: new Date(createdAt).toISOString(),
  updatedAt: new Date(createdAt).toISOString(),
  createdBy: null,
  lastSpawnedAt: null,
  spawnCount: 0,
  buildCount: 1,
  envdVersion: ENVD_VERSION,
  buildStatus: 'ready',
})

async function list({ surface, principal }: RestCall): Promise<Response> {
  const found = await surface.e2b.templates.list({ tenant: principal.tenant, kind: 'template', limit: 1000 })
  return Response.json(found.map(templateJson))
}

async function one({ surface, principal, params }: RestCall): Promise<Response> {
  const found = await templateFor(surface, principal.tenant, params.id ?? '')
  if (!found) throw new SandboxError('not-found', 'it is built in')
  return Response.json({ ...templateJson(found), builds: [] })
}

async function alias({ surface, principal, params }: RestCall): Promise<Response> {
  const found = await templateFor(surface, principal.tenant, params.alias ?? '')
  return Response.json({ templateID: found?.id ?? params.alias, public: found === undefined })
}

async function remove({ surface, principal, params }: RestCall): Promise<Response> {
  const found = await surface.e2b.templates.find(principal.tenant, params.id ?? '')
  if (!isListed(found)) throw new SandboxError('not-found', `there is no template \`${params.id}\``)
  await surface.e2b.templates.remove(found)
  return nothing()
}

/** The files of the sandbox's own directories; its processes are not in it. */
async function snapshot(call: RestCall): Promise<Response> {
  const { surface, principal } = call
  const { name } = await bodyOf(call, snapshotShape)
  const seen = await aliveOf(call)
  const live = seen.live?.ready()
  if (!live) throw new SandboxError('wrong-state', 'the sandbox is not running')
  const { env } = live.plan
  const { templates } = surface.e2b
  const { template } = JSON.parse(seen.row.spec) as { template?: string }
  const image = template && (await templates.find(principal.tenant, template))?.data.image
  const kept = await templates.keep(live, PRIVATE, {
    id: newName('snp'),
    kind: 'snapshot',
    tenant: principal.tenant,
    name: name ?? null,
    sandboxId: seen.id,
    createdAt: Date.now(),
    data: { env: ownVariables(env, JSON.parse(seen.row.spec)), ...(image ? { image } : {}) },
  })
  return Response.json({ snapshotID: kept.id, names: name === undefined ? [] : [name] }, { status: 201 })
}

const ownVariables = (
  env: Readonly<Record<string, string>>,
  spec: { env?: object },
): Record<string, string> =>
  Object.fromEntries(Object.entries(env).filter(([key]) => key in (spec.env ?? {})))

async function snapshots({ surface, principal, query }: RestCall): Promise<Response> {
  const limit = limitOf(query)
  const token = query.get('nextToken')
  const sandbox = query.get('sandboxID')
  const found = await surface.e2b.templates.list({
    tenant: principal.tenant,
    kind: 'snapshot',
    idOrName: query.get('name') ?? undefined,
    sandboxId: sandbox === null ? undefined : (fromE2bId(sandbox) ?? sandbox),
    after: token === null ? undefined : cursorFrom(token),
    limit: limit + 1,
  })
  const page = found.slice(0, limit)
  const last = page.at(-1)
  const next = found.length > limit && last ? { 'x-next-token': cursorOf(last) } : {}
  const items = page.map(({ id, name, sandboxId }) => ({
    snapshotID: id,
    names: name === null ? [] : [name],
    ...(sandboxId ? { sandboxID: toE2bId(sandboxId) } : {}),
  }))
  return Response.json(items, { headers: next })
}

/** Of its files, like a snapshot; its processes stay where they are. */
async function fork(call: RestCall): Promise<Response> {
  const { surface, principal, host } = call
  const { count = 1, timeout = FORK_SECONDS } = await bodyOf(call, forkShape)
  const { id } = await aliveOf(call)
  const made = await surface.parts.snapshots.forks(principal, id, count, timeout * 1000)
  const answers = made.map((one) =>
    one.status === 'fulfilled'
      ? { sandbox: accessOf(surface, principal, one.value, host) }
      : { error: restError(one.reason, surface.parts.log) },
  )
  return Response.json(answers, { status: 201 })
}
const FORK_SECONDS = 300

/** The routes of templates, builds and snapshots. */
export const TEMPLATES: readonly RestRoute[] = [
  { method: 'POST', path: '/v3/templates', scope: 'create', handle: request },
  { method: 'POST', path: '/v2/templates', scope: 'create', handle: request },
  { method: 'POST', path: '/v2/templates/:id/builds/:build', scope: 'create', handle: start },
  { method: 'GET', path: '/templates/:id/builds/:build/status', scope: 'read', handle: status },
  { method: 'GET', path: '/templates/:id/files/:hash', scope: 'create', handle: uploadLink },
  { method: 'GET', path: '/templates', scope: 'read', handle: list },
  { method: 'GET', path: '/templates/aliases/:alias', scope: 'read', handle: alias },
  ...TAGS,
  { method: 'GET', path: '/templates/:id', scope: 'read', handle: one },
  { method: 'DELETE', path: '/templates/:id', scope: 'create', handle: remove },
  { method: 'POST', path: '/sandboxes/:id/snapshots', scope: 'create', handle: snapshot },
  { method: 'GET', path: '/snapshots', scope: 'read', handle: snapshots },
  { method: 'POST', path: '/sandboxes/:id/fork', scope: 'create', handle: fork },
]
