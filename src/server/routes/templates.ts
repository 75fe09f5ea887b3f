import {
  buildShape,
  newTemplateShape,
  type TemplateBuild,
  type TemplateInfo,
  templatePage,
  templateShape,
} from '../../model/api/sandboxes.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Infer } from '../../model/shape.ts'
import type { Template, Templates } from '../../supervisor/snapshots/templates.ts'
import { bytesOf } from '../body.ts'
import { parseDockerfile } from '../dockerfile.ts'
import type { BuildBody } from '../e2b/shapes.ts'
import { type Build, checkTemplateName, newBuild } from '../e2b/templates/builds.ts'
import type { Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { buildQuery } from '../shapes.ts'

/** Templates: what builds made for new sandboxes. */

const MOST = 1000

const templateJson = ({ id, name, data, backend, createdAt }: Template): TemplateInfo => ({
  id,
  name,
  tags: data.tags ?? [],
  backend,
  created_at: new Date(createdAt).toISOString(),
})

async function templateOf(templates: Templates, tenant: string, idOrName: string): Promise<Template> {
  const found = await templates.find(tenant, idOrName)
  if (found?.kind === 'template') return found
  throw new SandboxError('not-found', `no such template \`${idOrName.slice(0, 128)}\``)
}

/** What a build starts from and does. */
function bodyOf(asked: Infer<typeof newTemplateShape>): BuildBody {
  const { image, template, dockerfile, context, credentials, no_cache } = asked
  if ([image, template, dockerfile].filter((one) => one !== undefined).length !== 1)
    throw new SandboxError('invalid-input', 'give one of `image`, `template` and `dockerfile`')
  const file = dockerfile === undefined ? undefined : parseDockerfile(dockerfile)
  const fromImage = image ?? file?.image
  const startCmd = asked.start_command ?? file?.startCommand
  return {
    ...(fromImage === undefined ? {} : { fromImage }),
    ...(template === undefined ? {} : { fromTemplate: template }),
    ...(credentials === undefined ? {} : { fromImageRegistry: { type: 'registry', ...credentials } }),
    steps: (file?.steps ?? []).map(({ type, args }) =>
      type === 'COPY' ? { type, args, filesHash: context ?? '' } : { type, args },
    ),
    ...(startCmd === undefined ? {} : { startCmd }),
    ...(asked.ready_command === undefined ? {} : { readyCmd: asked.ready_command }),
    force: no_cache ?? false,
    usesImageDefaults: true,
  }
}

function buildJson({ id, templateId, name, status, log, reason }: Build, after = 0): TemplateBuild {
  const entries = log.entries.slice(after, after + MOST_LINES)
  return {
    id,
    template_id: templateId,
    name,
    status,
    log: entries.map(({ timestamp, level, message }) => ({ time: timestamp, level, message })),
    next: after + entries.length,
    reason: reason ? { message: reason.message, step: reason.step ?? null } : null,
  }
}
const MOST_LINES = 1000

const builds: readonly Route[] = [
  route({
    method: 'PUT',
    path: '/v1/templates/files/:hash',
    summary: 'Upload the files of a build as an archive, under a hash that the caller chooses',
    scope: 'create',
    stream: true,
    answers: { 204: { description: 'stored; files that no build uses are removed after a while' } },
    async handle({ parts, principal, params, request }) {
      await parts.templates.takeUpload(principal.tenant, params.hash, bytesOf(request.body))
      return reply(204)
    },
  }),
  route({
    method: 'POST',
    path: '/v1/templates',
    summary: 'Build a template from an image, another template or a Dockerfile',
    scope: 'create',
    body: newTemplateShape,
    answers: { 202: { description: 'the build, which has started', shape: buildShape } },
    async handle({ parts, principal, body }) {
      const { templates, builder } = parts
      const asked = bodyOf(body)
      const name = checkTemplateName(body.name)
      const sizes = { cpus: body.cpus, memoryMb: body.memory_mb }
      const of = { tenant: principal.tenant, name, tags: [], ...sizes }
      const build = await newBuild(templates, builder.builds, of)
      builder.start(principal, build, asked)
      return reply(202, buildJson(build))
    },
  }),
  route({
    method: 'GET',
    path: '/v1/templates/builds/:id',
    summary: 'Get a build with the lines of its log after a position',
    scope: 'read',
    query: buildQuery,
    answers: { 200: { description: 'the build', shape: buildShape } },
    handle({ parts, principal, params, query }) {
      const build = parts.builder.builds.get(principal.tenant, params.id)
      if (!build) throw new SandboxError('not-found', `no such build \`${params.id.slice(0, 64)}\``)
      return reply(200, buildJson(build, query.after))
    },
  }),
]

/** Routes of templates. */
export const templateRoutes: readonly Route[] = [
  ...builds,
  route({
    method: 'GET',
    path: '/v1/templates',
    summary: 'List templates, newest first',
    scope: 'read',
    answers: { 200: { description: 'the latest thousand', shape: templatePage } },
    async handle({ parts, principal }) {
      const { tenant } = principal
      const found = await parts.templates.list({ tenant, kind: 'template', limit: MOST })
      return reply(200, { items: found.map(templateJson), next: null })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/templates/:id',
    summary: 'Get a template, by id or name',
    scope: 'read',
    answers: { 200: { description: 'the template', shape: templateShape } },
    handle: async ({ parts, principal, params }) =>
      reply(200, templateJson(await templateOf(parts.templates, principal.tenant, params.id))),
  }),
  route({
    method: 'DELETE',
    path: '/v1/templates/:id',
    summary: 'Delete a template; sandboxes that were created from it stay',
    scope: 'create',
    answers: { 204: { description: 'deleted' } },
    async handle({ parts, principal, params }) {
      await parts.templates.remove(await templateOf(parts.templates, principal.tenant, params.id))
      return reply(204)
    },
  }),
]
