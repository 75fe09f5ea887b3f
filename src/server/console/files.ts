import { readdirSync, readFileSync } from 'node:fs'
import { extname, join } from 'node:path'
import type { Context } from 'hono'
import type { AppEnv, Mount } from '../app.ts'

/** The console's files: built once, held in memory, each under a name that changes with its content. */

const TYPES: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
  '.json': 'application/json',
}

/**
 * SECURITY: scripts and styles only from our own files, nothing from anywhere else, no inline script, and no string ever
 * becomes markup (`trusted-types 'none'`).
 */
const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types 'none'",
].join('; ')

const HEADERS = {
  'content-security-policy': POLICY,
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'permissions-policy':
    'camera=(), microphone=(), geolocation=(), clipboard-read=(self), clipboard-write=(self)',
} as const

type Encoding = 'br' | 'gzip' | 'identity'
type Asset = { readonly type: string } & Readonly<Partial<Record<Encoding, Uint8Array>>>

/** Everything in a directory, by path; `x.br` and `x.gz` stand beside `x`. */
function assetsIn(dir: string): ReadonlyMap<string, Asset> {
  const assets = new Map<string, Asset>()
  let names: string[] = []
  try {
    names = readdirSync(dir, { recursive: true, encoding: 'utf8' })
  } catch {
    return assets
  }
  for (const name of names) {
    if (TYPES[extname(name)] === undefined) continue
    const read = (ending: string): Uint8Array | undefined =>
      names.includes(`${name}${ending}`) ? readFileSync(join(dir, `${name}${ending}`)) : undefined
    const [br, gzip] = [read('.br'), read('.gz')]
    assets.set(name, {
      type: TYPES[extname(name)] as string,
      identity: readFileSync(join(dir, name)),
      ...(br && { br }),
      ...(gzip && { gzip }),
    })
  }
  return assets
}

const encodingFor = (accepted: string, asset: Asset): Encoding => {
  if (asset.br && /\bbr\b/.test(accepted)) return 'br'
  return asset.gzip && /\bgzip\b/.test(accepted) ? 'gzip' : 'identity'
}

function answer(context: Context<AppEnv>, asset: Asset, lasting: boolean): Response {
  const encoding = encodingFor(context.req.header('accept-encoding') ?? '', asset)
  const body = asset[encoding] as Uint8Array<ArrayBuffer>
  return new Response(context.req.method === 'HEAD' ? null : body, {
    headers: {
      ...HEADERS,
      'content-type': asset.type,
      'cache-control': lasting ? 'public, max-age=31536000, immutable' : 'no-cache',
      'content-length': String(body.length),
      vary: 'accept-encoding',
      ...(encoding === 'identity' ? {} : { 'content-encoding': encoding }),
    },
  })
}

/** `/console/…`: files by name, and for every other path the page, which finds its way by the address. */
export function consoleMount(dir: string): Mount {
  let loaded: ReadonlyMap<string, Asset> | undefined
  return (app) => {
    app.on(['GET', 'HEAD'], '/', (context) => context.redirect('/console/', 302))
    app.on(['GET', 'HEAD'], '/console', (context) => context.redirect('/console/', 302))
    app.on(['GET', 'HEAD'], '/console/*', (context) => {
      loaded ??= assetsIn(dir)
      const name = context.req.path.slice('/console/'.length)
      const asset = loaded.get(name)
      if (asset && name !== 'index.html') return answer(context, asset, name.startsWith('assets/'))
      const page = loaded.get('index.html')
      if (!page || name.startsWith('assets/'))
        return new Response(page ? 'no such page\n' : 'the console is not built: npm run build\n', {
          status: 404,
          headers: { ...HEADERS, 'content-type': 'text/plain; charset=utf-8' },
        })
      return answer(context, page, false)
    })
  }
}
