import type { SecretConfig } from '../model/config.ts'
import { SandboxError } from '../model/errors.ts'
import type { Spec } from '../model/spec.ts'
import { parseSecretGrant, type SecretGrant } from './secret-grant.ts'

/** Who asks for a sandbox. The operator is whoever started us, or holds a key of theirs. */
export type Borrower = { readonly tenant: string; readonly operator: boolean }

/**
 * Whether a sandbox may have these secrets brokered. SECURITY: what is not declared comes from our own environment, which
 * is the operator's; anybody else could name any variable of it and a host of their own.
 */
export function assertLent(declared: readonly SecretConfig[], spec: Spec, borrower: Borrower): void {
  for (const text of spec.secrets ?? []) {
    const grant = parseSecretGrant(text)
    const found = declared.find(({ name }) => name === grant.variable)
    const theirs = found?.tenants?.includes(borrower.tenant) ?? true
    if (!borrower.operator && !(found && theirs))
      throw denied(
        `no secret \`${grant.variable}\` is lent to you`,
        'the operator declares it with [[secret]]',
      )
    assertPlace(found, grant)
  }
}

/** A declared secret goes to its own places and nowhere else, whoever asks. */
export function assertPlace(
  found: SecretConfig | undefined,
  { host, port, scheme, variable }: SecretGrant,
): void {
  if (!found || found.hosts.some((one) => placeOf(one) === `${scheme}://${host}:${port}`)) return
  throw denied(
    `the secret \`${variable}\` is not for \`${host}:${port}\``,
    `it is for ${found.hosts.join(', ')}`,
  )
}

/** Places are written as in a grant: `api.example.com`, with a port, or with `http://` for plain HTTP. */
function placeOf(text: string): string {
  const { scheme, host, port } = parseSecretGrant(`X=X@${text}`)
  return `${scheme}://${host}:${port}`
}

const denied = (why: string, hint: string): SandboxError =>
  new SandboxError('capability-denied', why, { hint })
