import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type RunningServer, type ServeOptions, startServer } from '../../src/compose/serve.ts'
import type { Scope } from '../../src/supervisor/access/keys.ts'
import { answerContract, checkEvents } from './answer-contract.ts'

/** A real server on a port of its own with a state directory of its own. */
export type TestServer = {
  readonly server: RunningServer
  readonly dir: string
  readonly admin: string
  readonly key: (scopes: readonly Scope[], tenant?: string) => Promise<string>
  readonly call: (method: string, path: string, options?: CallOptions) => Promise<Answer>
  readonly close: () => Promise<void>
}
export type CallOptions = {
  readonly key?: string
  readonly body?: unknown
  readonly headers?: Readonly<Record<string, string>>
}
export type Answer = {
  readonly status: number
  readonly headers: Headers
  readonly text: string
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers freely
  readonly json: any
}

export const FULL = process.env.RINGFENCE_FULL === '1'

export async function startTestServer(config = '', options: ServeOptions = {}): Promise<TestServer> {
  const dir = mkdtempSync(join(tmpdir(), 'rf-server-'))
  const file = join(dir, 'ringfence.toml')
  writeFileSync(file, config)
  const server = await startServer({
    port: 0,
    config: file,
    env: { PATH: process.env.PATH, HOME: dir, RINGFENCE_HOME: join(dir, 'state') },
    cwd: dir,
    ...options,
    mounts: [answerContract, ...(options.mounts ?? [])],
  })
  const key = async (scopes: readonly Scope[], tenant?: string): Promise<string> =>
    (await server.parts.keys.create({ scopes, tenant })).secret
  const admin = await key(['create', 'exec', 'read', 'admin'])
  return {
    server,
    dir,
    admin,
    key,
    call: (method, path, { key: with_ = admin, body, headers = {} } = {}) =>
      callAt(server.url, method, path, { key: with_, body, headers }),
    close: async () => {
      await server.close()
      rmSync(dir, { recursive: true, force: true })
    },
  }
}

export async function callAt(
  url: string,
  method: string,
  path: string,
  { key, body, headers = {} }: CallOptions,
): Promise<Answer> {
  const raw = body instanceof Uint8Array || typeof body === 'string'
  const response = await fetch(`${url}${path}`, {
    method,
    headers: {
      ...(key ? { authorization: `Bearer ${key}` } : {}),
      ...(body !== undefined && !raw ? { 'content-type': 'application/json' } : {}),
      ...headers,
    },
    ...(body === undefined ? {} : { body: raw ? body : JSON.stringify(body) }),
  })
  const text = await response.text()
  if (response.headers.get('content-type')?.startsWith('text/event-stream')) checkEvents(method, path, text)
  let json: unknown
  try {
    json = JSON.parse(text)
  } catch {
    json = undefined
  }
  return { status: response.status, headers: response.headers, text, json }
}
