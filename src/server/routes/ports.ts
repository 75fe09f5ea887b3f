import { passOn, portOf } from '../ports/ports.ts'
import type { Route } from '../route.ts'
import { route } from '../route.ts'
import { anyQuery } from '../shapes.ts'

/** Ports of programs in a sandbox. */

const PATHS = ['/v1/sandboxes/:id/ports/:port', '/v1/sandboxes/:id/ports/:port/*'] as const

/** Routes to ports of a sandbox. */
export const portRoutes: readonly Route[] = PATHS.map((path) =>
  route({
    method: 'ALL',
    path,
    summary: 'Send a request to a port inside the sandbox; also for WebSockets',
    scope: 'exec',
    sandboxToken: true,
    stream: true,
    query: anyQuery,
    answers: { 200: { description: "the program's own answer", type: '*/*' } },
    async handle({ parts, principal, params, env }) {
      const entry = await parts.supervisor.use(principal, params.id)
      return passOn(entry, env.incoming, portOf(params.port))
    },
  }),
)
