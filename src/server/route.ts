import type { IncomingMessage, ServerResponse } from 'node:http'
import type { JsonSchema, Shape } from '../model/shape.ts'
import type { Principal, Scope } from '../supervisor/access/keys.ts'
import type { ServerParts } from './parts.ts'

/** Node's own request and response, for what a web `Request` cannot carry (upgrades, proxies). */
export type Bindings = { readonly incoming: IncomingMessage; readonly outgoing: ServerResponse }

/** One request after it was authenticated, measured and parsed. */
export type Call<B = unknown, Q = unknown> = {
  readonly parts: ServerParts
  readonly principal: Principal
  readonly params: Readonly<Record<string, string>>
  readonly query: Q
  readonly body: B
  readonly request: Request
  readonly env: Bindings
  readonly requestId: string
}

type Answer = { readonly description: string; readonly schema?: JsonSchema; readonly type?: string }

/** One row of the table that is both served and described in `/openapi.json`. */
export type Route<B = unknown, Q = unknown> = {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE' | 'ALL'
  /** With `:name` for each part that varies; a last `*` takes the rest. */
  readonly path: string
  readonly summary: string
  /** What the key must be able to do; `open` needs none. */
  readonly scope: Scope | 'open'
  /** A sandbox's own token opens it too, for that sandbox. */
  readonly sandboxToken?: boolean
  readonly body?: Shape<B>
  /** The body is passed on as a stream and never gathered. */
  readonly stream?: boolean
  readonly maxBytes?: number
  readonly query?: Shape<Q>
  readonly answers: Readonly<Record<number, Answer>>
  readonly handle: (call: Call<B, Q>) => Response | Promise<Response>
}

/** Keeps the shapes' types until the handler, and forgets them for the table. */
export const route = <B = unknown, Q = unknown>(definition: Route<B, Q>): Route =>
  definition as unknown as Route
