import { RingfenceClient } from '../../client/client.ts'
import { SandboxError } from '../../model/errors.ts'
import { visible } from '../../model/text/visible.ts'
import { parseOptions, usage } from '../options/options.ts'
import { readSecret } from '../terminal/secret.ts'
import { type Context, readContexts, writeContexts } from './contexts.ts'
import { print, table } from './remote.ts'

const OPTIONS = { name: { type: 'string' }, list: { type: 'boolean' }, use: { type: 'string' } } as const
const DEFAULT_URL = 'http://127.0.0.1:4200'

/** `ringfence login`: stores the address of a server and a key, or chooses among the stored ones. */
export async function login(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('login', args, OPTIONS)
  const [url = DEFAULT_URL, ...rest] = positionals
  if (rest.length > 0) throw usage('login', `unexpected \`${rest[0]}\``)
  if (values.list) return list(values.json)
  if (values.use !== undefined) return use(values.use, values.json)
  const parsed = httpUrl(url)
  const context = {
    url: parsed.href.replace(/\/+$/, ''),
    apiKey: await readSecret(`API key for ${parsed.host}: `),
  }
  await check(context)
  const name = values.name ?? parsed.host
  const { servers } = readContexts()
  writeContexts({ current: name, servers: { ...servers, [name]: context } })
  print(
    values.json,
    { name, url: context.url },
    () => `using ${visible(context.url)} as \`${visible(name)}\`\n`,
  )
  return 0
}

function httpUrl(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (!url || !/^https?:$/.test(url.protocol))
    throw usage('login', `\`${text}\` is not the URL of a server, such as ${DEFAULT_URL}`)
  return url
}

/** A key that the server does not accept is not stored. */
async function check({ url, apiKey }: Context): Promise<void> {
  if (apiKey === '') throw new SandboxError('unauthenticated', 'no key was given')
  await new RingfenceClient({ url, apiKey }).list({ limit: 1 })
}

function list(json: boolean | undefined): number {
  const { current, servers } = readContexts()
  const rows = Object.entries(servers).map(([name, { url }]) => ({ name, url, current: name === current }))
  print(json, rows, () =>
    table([['', 'NAME', 'URL'], ...rows.map((row) => [row.current ? '*' : '', row.name, row.url])]),
  )
  return 0
}

function use(name: string, json: boolean | undefined): number {
  const { servers } = readContexts()
  if (!Object.hasOwn(servers, name)) throw unknownServer(name)
  writeContexts({ current: name, servers })
  print(json, { name }, () => `using \`${visible(name)}\`\n`)
  return 0
}

const unknownServer = (name: string): SandboxError =>
  new SandboxError('not-found', `no server is stored as \`${name}\``, {
    hint: 'see `ringfence login --list`',
  })

/** `ringfence logout`: forgets a server and its key. */
export async function logout(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('logout', args, {})
  const { current, servers } = readContexts()
  const name = positionals[0] ?? current
  if (name === null || !Object.hasOwn(servers, name)) throw unknownServer(name ?? 'default')
  const { [name]: _removed, ...left } = servers
  writeContexts({ current: current === name ? (Object.keys(left)[0] ?? null) : current, servers: left })
  print(values.json, { removed: name }, () => `removed \`${visible(name)}\`\n`)
  return 0
}
