import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Infer, Shape } from '../model/shape.ts'
import type { Principal, Scope } from '../supervisor/access/keys.ts'
import type { ServerParts } from './parts.ts'

/** Node's own request and response, for what a web `Request` cannot carry (upgrades, proxies). */
export type Bindings = { readonly incoming: IncomingMessage; readonly outgoing: ServerResponse }

/** One request after it was authenticated, measured and parsed. `Names` are the parameters in its path. */
export type Call<Names extends string = never, B = unknown, Q = unknown> = {
  readonly parts: ServerParts
  readonly principal: Principal
  readonly params: Readonly<Record<Names, string>>
  readonly query: Q
  readonly body: B
  readonly request: Request
  readonly env: Bindings
  readonly requestId: string
}

/** `'id' | 'exec'` for `/v1/sandboxes/:id/execs/:exec`. */
type ParamNames<Path extends string> = Path extends `${infer First}/${infer Rest}`
  ? ParamNames<First> | ParamNames<Rest>
  : Path extends `:${infer Name}`
    ? Name
    : never

/** The events of a stream, by name. */
type Events = Readonly<Record<string, Shape<unknown>>>

/** One event of a stream that declares these. */
export type EventOf<E extends Events> = {
  readonly [Name in keyof E & string]: {
    readonly event: Name
    readonly data: Infer<E[Name]>
    readonly id?: number | undefined
  }
}[keyof E & string]

/** One possible answer: JSON of a shape, another type of content, or nothing but its status. */
export type Answer = {
  readonly description: string
  readonly shape?: Shape<unknown>
  /** A content type beside JSON; the handler then may return a `Response` of its own. */
  readonly type?: string
  /** Of `text/event-stream`. */
  readonly events?: Events
}
type Answers = Readonly<Record<number, Answer>>

/** An answer that a handler gives: one of the statuses that its route declares, with a value of that status's shape. */
export type Reply<Status extends number = number, Value = unknown> = {
  readonly status: Status
  readonly value: Value
  readonly headers?: Readonly<Record<string, string>> | undefined
}

type ReplyTo<A extends Answers> = {
  readonly [Status in keyof A & number]:
    | (A[Status] extends { readonly shape: Shape<infer Value> } ? Reply<Status, Value> : never)
    | (A[Status] extends { readonly type: string } ? Response : never)
    | (A[Status] extends { readonly shape: unknown } | { readonly type: string }
        ? never
        : Reply<Status, undefined>)
}[keyof A & number]

/** Makes a handler's answer. */
export function reply<Status extends number>(status: Status): Reply<Status, undefined>
export function reply<Status extends number, Value>(
  status: Status,
  value: Value,
  headers?: Readonly<Record<string, string>>,
): Reply<Status, Value>
export function reply(status: number, value?: unknown, headers?: Readonly<Record<string, string>>): Reply {
  return { status, value, headers }
}

type Definition<Path extends string, B, Q, A extends Answers> = {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE' | 'ALL'
  /** With `:name` for each part that varies; a last `*` takes the rest. */
  readonly path: Path
  readonly summary: string
  /** What the key must be able to do; `open` needs none. */
  readonly scope: Scope | 'open'
  /** The sandbox's own token is accepted too, for that sandbox. */
  readonly sandboxToken?: boolean
  readonly body?: Shape<B>
  /** The body is passed on as a stream and never collected. */
  readonly stream?: boolean
  readonly maxBytes?: number
  readonly query?: Shape<Q>
  readonly answers: A
  // A method, so that rows with different shapes fit into one table; `serve` parses by the same row before it calls.
  handle(call: Call<ParamNames<Path>, B, Q>): ReplyTo<A> | Promise<ReplyTo<A>>
}

/** One row of the table that is both served and described in `/openapi.json`. */
export type Route = Omit<Definition<string, unknown, unknown, Answers>, 'handle'> & {
  handle(call: Call): Reply | Response | Promise<Reply | Response>
}

/**
 * A row of the table. Its handler gets the body, the query and the parameters of its path with their types, and has to return
 * one of the declared answers.
 */
export const route = <const Path extends string, const A extends Answers, B = undefined, Q = undefined>(
  definition: Definition<Path, B, Q, A>,
): Route => definition

/** The answer on the wire. */
export function responseOf(answer: Reply | Response): Response {
  if (answer instanceof Response) return answer
  const { status, value, headers = {} } = answer
  return value === undefined
    ? new Response(null, { status, headers })
    : Response.json(value, { status, headers })
}
