import { visible } from '../../model/text/visible.ts'
import { parseOptions, usage } from '../options/options.ts'
import { print, server, table } from './remote.ts'

/** `ringfence snapshot ls|rm`, against a server. */
export async function snapshot(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('snapshot', args, {})
  const [action, ...rest] = positionals
  if (action === 'ls' && rest.length === 0) return list(values.json)
  if (action === 'rm' && rest.length > 0) return remove(values.json, rest)
  throw usage('snapshot', 'use `snapshot ls` or `snapshot rm ID…`')
}

async function list(json: boolean | undefined): Promise<number> {
  const page = await server().snapshots()
  print(json, page, () =>
    table([
      ['ID', 'NAME', 'SANDBOX', 'BACKEND', 'CREATED'],
      ...page.items.map((one) => [
        one.id,
        one.name ?? '-',
        one.sandbox_id ?? '-',
        one.backend,
        one.created_at,
      ]),
    ]),
  )
  return 0
}

async function remove(json: boolean | undefined, ids: readonly string[]): Promise<number> {
  for (const id of ids) await server().removeSnapshot(id)
  print(json, { removed: ids }, () => ids.map((id) => `${visible(id)}: removed\n`).join(''))
  return 0
}
