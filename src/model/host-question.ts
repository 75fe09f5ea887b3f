/** The question whether a sandbox may reach a host that is not on its list. */

/** How far a yes reaches: the connections that wait, this sandbox until it ends, or every sandbox that asks. */
export const HOST_SCOPES = ['once', 'sandbox', 'always'] as const
/** How far a yes reaches. */
export type HostScope = (typeof HOST_SCOPES)[number]

/** A host as the question names it. */
export type AskedHost = {
  readonly host: string
  readonly port: number
  /** How the program asked the proxy for it. */
  readonly protocol: string
}

/**
 * The text that an answer "always" adds to the policy file. A table of its own at the end of the file is valid TOML after
 * anything else, so nothing that the operator wrote is touched.
 */
export function approvedHostText(entry: string, tenant: string | null): string {
  const owner = tenant === null ? '' : `tenant = ${JSON.stringify(tenant)}\n`
  return `\n[[approved_host]]\nhost = ${JSON.stringify(entry)}\n${owner}`
}

/** A policy file with such a text at its end. */
export const withText = (policy: string, added: string): string =>
  `${policy}${policy === '' || policy.endsWith('\n') ? '' : '\n'}${added}`
