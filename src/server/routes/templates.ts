import { type TemplateInfo, templatePage, templateShape } from '../../model/api/sandboxes.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Template, Templates } from '../../supervisor/snapshots/templates.ts'
import type { Route } from '../route.ts'
import { reply, route } from '../route.ts'

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

/** Routes of templates. */
export const templateRoutes: readonly Route[] = [
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
