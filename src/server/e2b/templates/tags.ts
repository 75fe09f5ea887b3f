import { SandboxError } from '../../../model/errors.ts'
import { list, object, text } from '../../../model/shape.ts'
import type { Template, Templates } from '../../../supervisor/snapshots/templates.ts'
import { bodyOf, nothing, type RestCall, type RestRoute } from '../rest.ts'

/** Tags: a template `name:tag` is one build of `name`, and more tags can lead to it. A tag leads to one build at a time. */

const MOST = 1000
const DEFAULT = 'default'

const tagShape = () => text({ max: 128 })
const assignShape = object({ target: text({ max: 256 }), tags: list(tagShape(), 64) })
const removeShape = object({ name: text({ max: 256 }), tags: list(tagShape(), 64) })

type Name = { readonly base: string; readonly tag: string }

/** `name:tag`, in which the tag may be missing. */
function nameOf(name: string): Name {
  const [, base = name, tag = DEFAULT] = /^(.+?)(?::([^:]+))?$/.exec(name) ?? []
  return { base, tag }
}

/** Throws for a tag that is part of another name, or none. */
export function checkTag(tag: string): string {
  if (/^[A-Za-z0-9_][A-Za-z0-9_.-]*$/.test(tag)) return tag
  throw new SandboxError('invalid-input', `\`${tag.slice(0, 64)}\` is not a tag`, {
    hint: 'use letters, digits, `-`, `_` and `.`',
  })
}

async function buildsOf(templates: Templates, tenant: string, base: string): Promise<readonly Template[]> {
  const all = await templates.list({ tenant, kind: 'template', limit: MOST })
  return all.filter(({ name }) => name !== null && nameOf(name).base === base)
}

const ownTag = ({ name }: Template): string => nameOf(name ?? '').tag
const has = (template: Template, tag: string): boolean => template.data.tags?.includes(tag) ?? false

/** The build that a name with a tag leads to: the one that was given the tag, else the one that was built with it. */
export async function findTagged(
  templates: Templates,
  tenant: string,
  name: string,
): Promise<Template | undefined> {
  const { base, tag } = nameOf(name)
  const builds = await buildsOf(templates, tenant, base)
  return builds.find((one) => has(one, tag)) ?? builds.find((one) => ownTag(one) === tag)
}

/** Gives a build these tags, and takes them from other builds of the same name. */
export async function assignTags(
  templates: Templates,
  target: Template,
  tags: readonly string[],
): Promise<void> {
  const { base } = nameOf(target.name ?? '')
  for (const other of await buildsOf(templates, target.tenant, base))
    if (other.id !== target.id) await dropTags(templates, other, tags)
  const all = [...new Set([...(target.data.tags ?? []), ...tags])]
  await templates.save({ ...target, data: { ...target.data, tags: all } })
}

async function dropTags(templates: Templates, template: Template, tags: readonly string[]): Promise<void> {
  const left = (template.data.tags ?? []).filter((tag) => !tags.includes(tag))
  if (left.length === (template.data.tags ?? []).length) return
  await templates.save({ ...template, data: { ...template.data, tags: left } })
}

const noTemplate = (name: string): SandboxError =>
  new SandboxError('not-found', `there is no template \`${name.slice(0, 128)}\``)

async function assign(call: RestCall): Promise<Response> {
  const { templates } = call.surface.e2b
  const { target, tags } = await bodyOf(call, assignShape)
  if (/^:|:$/.test(target)) throw new SandboxError('invalid-input', `\`${target}\` is not \`name:tag\``)
  const wanted = tags.map(checkTag)
  const found = await findTagged(templates, call.principal.tenant, target)
  if (!found) throw noTemplate(target)
  await assignTags(templates, found, wanted)
  return Response.json({ buildID: found.id, tags: wanted }, { status: 201 })
}

async function remove(call: RestCall): Promise<Response> {
  const { templates } = call.surface.e2b
  const { name, tags } = await bodyOf(call, removeShape)
  const builds = await buildsOf(templates, call.principal.tenant, nameOf(name).base)
  if (builds.length === 0) throw noTemplate(name)
  for (const one of builds) await dropTags(templates, one, tags)
  return nothing()
}

async function all({ surface, principal, params }: RestCall): Promise<Response> {
  const { templates } = surface.e2b
  const asked = params.id ?? ''
  const named = (await templates.find(principal.tenant, asked))?.name ?? asked
  const builds = await buildsOf(templates, principal.tenant, nameOf(named).base)
  if (builds.length === 0) throw noTemplate(asked)
  const rows = builds.flatMap((one) =>
    [...new Set([ownTag(one), ...(one.data.tags ?? [])])]
      .filter((tag) => !builds.some((other) => other.id !== one.id && has(other, tag)) || has(one, tag))
      .map((tag) => ({ tag, buildID: one.id, createdAt: new Date(one.createdAt).toISOString() })),
  )
  return Response.json(rows)
}

/** The routes of tags. */
export const TAGS: readonly RestRoute[] = [
  { method: 'POST', path: '/templates/tags', scope: 'create', handle: assign },
  { method: 'DELETE', path: '/templates/tags', scope: 'create', handle: remove },
  { method: 'GET', path: '/templates/:id/tags', scope: 'read', handle: all },
]
