import type { VolumeInfo } from '../../client/types.ts'
import { visible } from '../../model/text/visible.ts'
import { parseOptions, sizeOption, usage } from '../options/options.ts'
import { print, server, table } from './remote.ts'

const OPTIONS = { size: { type: 'string' }, 'read-only': { type: 'boolean' } } as const

type Values = ReturnType<typeof parseOptions<typeof OPTIONS>>['values']
type Action = (values: Values, rest: readonly string[]) => Promise<number>

const ACTIONS: Readonly<Record<string, Action>> = { create, ls: list, cp: copy, rm: remove }

/** `ringfence volume create|ls|cp|rm`, against a server. */
export async function volume(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('volume', args, OPTIONS)
  const [name, ...rest] = positionals
  const action = name !== undefined && Object.hasOwn(ACTIONS, name) ? ACTIONS[name] : undefined
  if (!action)
    throw usage(
      'volume',
      `${name === undefined ? 'missing action' : `unknown action \`${name}\``}: ${Object.keys(ACTIONS).join(', ')}`,
    )
  return action(values, rest)
}

async function create(values: Values, [name, ...rest]: readonly string[]): Promise<number> {
  if (name === undefined || rest.length > 0) throw usage('volume', 'use `volume create NAME [--size MB]`')
  const size = sizeOption('--size', values.size)
  return show(values, await server().createVolume({ name, ...(size === undefined ? {} : { size_mb: size }) }))
}

async function copy(values: Values, [from, name, ...rest]: readonly string[]): Promise<number> {
  if (from === undefined || name === undefined || rest.length > 0)
    throw usage('volume', 'use `volume cp NAME NEW-NAME [--read-only]`')
  return show(values, await server().copyVolume(from, { name, read_only: values['read-only'] ?? false }))
}

function show(values: Values, made: VolumeInfo): number {
  print(values.json, made, () => `${visible(made.id)}\n`)
  return 0
}

async function list(values: Values): Promise<number> {
  const page = await server().volumes()
  print(values.json, page, () =>
    table([
      ['ID', 'NAME', 'SIZE', 'USED', 'SANDBOXES', 'CREATED', 'NODE', ''],
      ...page.items.map((one) => [
        one.id,
        one.name,
        `${one.size_mb} MB`,
        one.used_bytes === null ? '?' : `${Math.ceil(one.used_bytes / 1024 / 1024)} MB`,
        String(one.sandboxes.length),
        one.created_at,
        one.node ?? '',
        one.read_only ? 'read-only' : '',
      ]),
    ]),
  )
  return 0
}

async function remove(values: Values, names: readonly string[]): Promise<number> {
  if (names.length === 0) throw usage('volume', 'missing volume: `volume rm NAME…`')
  for (const name of names) await server().removeVolume(name)
  print(values.json, { removed: names }, () => names.map((name) => `${visible(name)}: removed\n`).join(''))
  return 0
}
