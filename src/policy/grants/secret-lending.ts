import type { SecretConfig } from '../../model/config.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Spec } from '../../model/spec.ts'
import { parseSecretGrant, type SecretGrant } from './secret-grant.ts'

/**
 * Whether a tenant's sandbox may use these brokered secrets. SECURITY: an undeclared secret comes from the server's
 * environment, which belongs to the operator; a tenant could name any variable of it and a host of its own.
 */
export function assertLent(declared: readonly SecretConfig[], spec: Spec, tenant: string): void {
  for (const text of spec.secrets ?? []) {
    const grant = parseSecretGrant(text)
    const found = declared.find(({ name }) => name === grant.variable)
    if (!found?.tenants?.includes(tenant))
      throw new SandboxError(
        'forbidden',
        `tenant \`${tenant}\` may not use the secret \`${grant.variable}\``,
        {
          hint: `the operator can lend it: \`tenants = ["${tenant}"]\` in its [[secret]] table`,
        },
      )
    assertDeclaredHost(found, grant)
  }
}

/** A declared secret is sent only to its own hosts, for every requester. */
export function assertDeclaredHost(
  found: SecretConfig | undefined,
  { host, port, scheme, variable }: SecretGrant,
): void {
  if (!found || found.hosts.some((one) => originOf(one) === `${scheme}://${host}:${port}`)) return
  throw denied(
    `the secret \`${variable}\` is not for \`${host}:${port}\``,
    `it is for ${found.hosts.join(', ')}`,
  )
}

/** Hosts are written as in a grant: `api.example.com`, with a port, or with `http://` for plain HTTP. */
function originOf(text: string): string {
  const { scheme, host, port } = parseSecretGrant(`X=X@${text}`)
  return `${scheme}://${host}:${port}`
}

const denied = (why: string, hint: string): SandboxError =>
  new SandboxError('capability-denied', why, { hint })

/** The secrets that sandboxes of this requester may name; one without `tenants` is the operator's own. */
export const lentTo = (
  declared: readonly SecretConfig[] = [],
  { tenant, operator }: { readonly tenant: string; readonly operator: boolean },
): readonly Pick<SecretConfig, 'name' | 'hosts'>[] =>
  declared
    .filter(({ tenants }) => operator || tenants?.includes(tenant))
    .map(({ name, hosts }) => ({ name, hosts }))
