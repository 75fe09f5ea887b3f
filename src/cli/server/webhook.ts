import { visible } from '../../model/text/visible.ts'
import { parseOptions, usage } from '../options/options.ts'
import { err } from '../terminal/output.ts'
import { print, server, table } from './remote.ts'

const OPTIONS = { event: { type: 'string', multiple: true } } as const

/** `ringfence webhook create|ls|rm`, against a server. */
export async function webhook(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('webhook', args, OPTIONS)
  const [action, ...rest] = positionals
  if (action === 'create' && rest.length === 1) return create(rest[0] as string, values.event, values.json)
  if (action === 'ls' && rest.length === 0) return list(values.json)
  if (action === 'rm' && rest.length > 0) return remove(rest, values.json)
  throw usage('webhook', 'use `webhook create URL`, `webhook ls` or `webhook rm ID…`')
}

async function create(url: string, events: readonly string[] = [], json?: boolean): Promise<number> {
  const made = await server().createWebhook({ url, events })
  print(json, made, () => `${visible(made.id)}\n`)
  if (!json) err(`secret ${visible(made.secret)}; store it now, it is not shown again\n`)
  return 0
}

async function list(json: boolean | undefined): Promise<number> {
  const page = await server().webhooks()
  print(json, page, () =>
    table([
      ['ID', 'URL', 'EVENTS', 'FAILURES'],
      ...page.items.map(({ id, url, events, failures }) => [
        id,
        url,
        events.length > 0 ? events.join(',') : 'all',
        String(failures),
      ]),
    ]),
  )
  return 0
}

async function remove(ids: readonly string[], json: boolean | undefined): Promise<number> {
  for (const id of ids) await server().removeWebhook(id)
  print(json, { removed: ids }, () => ids.map((id) => `${visible(id)}: removed\n`).join(''))
  return 0
}
