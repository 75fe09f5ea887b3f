/** The parts of `@anthropic-ai/sdk` that a worker uses. The package is an optional dependency of the caller. */

/** A piece of work that the environment hands out. Everything in it comes from the other side. */
export type WorkItem = {
  readonly id: string
  readonly environment_id: string
  readonly data: { readonly type?: string; readonly id: string }
  readonly secret: string | null
}

/** The answer to a heartbeat. */
type Heartbeat = {
  readonly last_heartbeat: string
  readonly lease_extended: boolean
  readonly state: string
  readonly ttl_seconds: number
}

/** A tool as the SDK's session runner calls it. */
export type SessionTool = {
  readonly name: string
  readonly description: string
  readonly input_schema: object
  readonly parse: (input: unknown) => unknown
  readonly run: (input: unknown, context?: { readonly signal?: AbortSignal | null }) => Promise<unknown>
  readonly close?: () => Promise<void>
}

type Options = { readonly signal?: AbortSignal }

/** The client of the SDK, as far as a worker needs it. */
export type AnthropicClient = {
  readonly withOptions: (options: { readonly authToken: string; readonly apiKey: null }) => AnthropicClient
  readonly beta: {
    readonly environments: {
      readonly work: {
        readonly poller: (options: object) => AsyncIterable<WorkItem>
        readonly heartbeat: (
          id: string,
          params: { readonly environment_id: string; readonly expected_last_heartbeat: string },
          options?: Options,
        ) => PromiseLike<Heartbeat>
        readonly stop: (
          id: string,
          params: { readonly environment_id: string; readonly force: boolean },
        ) => PromiseLike<unknown>
      }
    }
    readonly sessions: {
      readonly events: {
        readonly toolRunner: (
          sessionId: string,
          options: {
            readonly tools: readonly SessionTool[]
            readonly signal: AbortSignal
            readonly maxIdleMs?: number
          },
        ) => AsyncIterable<unknown>
      }
    }
  }
}

/** The module itself. */
export type AnthropicSdk = { readonly default: new (options: object) => AnthropicClient }

/** The bearer token of a work item. SECURITY: other fields of the payload, such as another address of the API, are ignored. */
export function sessionToken(secret: string | null): string | undefined {
  if (!secret) return undefined
  try {
    const payload = JSON.parse(Buffer.from(secret, 'base64url').toString('utf8')) as {
      sessions_token?: unknown
    } | null
    const token = payload?.sessions_token
    return typeof token === 'string' && token !== '' ? token : undefined
  } catch {
    return undefined
  }
}
