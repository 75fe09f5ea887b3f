import { existsSync } from 'node:fs'
import { request } from 'node:http'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import type { Scope } from '../../src/supervisor/access/keys.ts'
import { startTestServer, type TestServer } from '../server/test-server.ts'

/** A real server with real bubblewrap sandboxes, and unmodified clients of E2B that talk to it. */

export const here = dirname(fileURLToPath(import.meta.url))

// biome-ignore lint/suspicious/noExplicitAny: the clients are strangers here; tests look into them freely
export type Loose = any

/** A package of the list beside this file, loaded as its users load it. */
export async function client(name: string, dir = here): Promise<Loose> {
  const require = createRequire(join(dir, 'package.json'))
  return import(pathToFileURL(require.resolve(name)).href)
}

export const hasMore = existsSync(join(here, 'more', 'node_modules'))

export type World = {
  readonly server: TestServer
  readonly options: { readonly apiKey: string; readonly apiUrl: string; readonly sandboxUrl: string }
  readonly logs: string[]
  readonly key: (tenant?: string, scopes?: readonly Scope[]) => Promise<string>
  readonly close: () => Promise<void>
}

export async function world(config = '[policy]\nallow_interactive = true\n'): Promise<World> {
  const logs: string[] = []
  const made = await startTestServer(config, { log: (line) => void logs.push(line) })
  const key = async (tenant?: string, scopes?: readonly Scope[]): Promise<string> =>
    (await made.server.parts.keys.create({ e2b: true, tenant, scopes })).secret
  const { url } = made.server
  return {
    server: made,
    options: { apiKey: await key(), apiUrl: url, sandboxUrl: url },
    logs,
    key,
    close: () => made.close(),
  }
}

/** A plain request with a `Host` of our choice, which `fetch` does not allow. */
export function get(
  url: string,
  host: string,
  headers: Readonly<Record<string, string>> = {},
): Promise<{ readonly status: number; readonly text: string }> {
  return new Promise((resolve, reject) => {
    request(url, { headers: { ...headers, host } }, (answer) => {
      const chunks: Buffer[] = []
      answer.on('data', (chunk: Buffer) => chunks.push(chunk))
      answer.on('end', () =>
        resolve({ status: answer.statusCode ?? 0, text: Buffer.concat(chunks).toString() }),
      )
    })
      .on('error', reject)
      .end()
  })
}

/** Waits for something that comes by itself. */
export async function until(check: () => unknown, what: string): Promise<void> {
  for (let tries = 0; tries < 400; tries++) {
    if (await check()) return
    await new Promise((resolve) => setTimeout(resolve, 25))
  }
  throw new Error(`waited in vain for ${what}`)
}
