import { SandboxError } from '../../model/errors.ts'
import type { RestCall, RestRoute } from './rest.ts'
import type { LentSecret } from './sandbox-request.ts'

/**
 * E2B's secrets: those that the operator declared and lent to the caller's tenant, without their values. `${e2b.secrets.NAME}` in a header
 * rule uses them. SECURITY: a key of a tenant neither adds nor replaces a value: the operator decides what is sent where.
 */

const PREFIX = 'sec_'

const infoOf = ({ name, hosts, since }: LentSecret) => ({
  secretID: `${PREFIX}${name}`,
  name,
  currentVersion: 1,
  metadata: { hosts: hosts.join(' ') },
  createdAt: new Date(since).toISOString(),
  updatedAt: new Date(since).toISOString(),
})

function find({ surface, principal, params }: RestCall): LentSecret {
  const asked = (params.id ?? '').replace(PREFIX, '')
  const found = surface.e2b.secretsFor(principal).find(({ name }) => name === asked)
  if (found) return found
  throw new SandboxError('not-found', `there is no secret \`${asked.slice(0, 64)}\` for this tenant`, {
    hint: 'the operator declares secrets with [[secret]] and names their `tenants`',
  })
}

async function refuseChange(): Promise<Response> {
  throw new SandboxError('unsupported', 'secrets are declared by the operator, not by the API', {
    hint: 'ask the operator for a [[secret]] with this name, its hosts and your tenant',
  })
}

/** The routes of secrets. */
export const SECRETS: readonly RestRoute[] = [
  {
    method: 'GET',
    path: '/secrets',
    scope: 'read',
    handle: async ({ surface, principal }) => Response.json(surface.e2b.secretsFor(principal).map(infoOf)),
  },
  {
    method: 'GET',
    path: '/secrets/:id',
    scope: 'read',
    handle: async (call) => Response.json(infoOf(find(call))),
  },
  { method: 'POST', path: '/secrets', scope: 'create', handle: refuseChange },
  { method: 'POST', path: '/secrets/:id', scope: 'create', handle: refuseChange },
  { method: 'DELETE', path: '/secrets/:id', scope: 'create', handle: refuseChange },
]
