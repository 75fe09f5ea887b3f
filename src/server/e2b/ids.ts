import { isIP } from 'node:net'

/** Which sandbox a request is for. E2B's ids go into host names, so ours travel without the underscore. */

export const toE2bId = (id: string): string => id.replace(/^sb_/, 'sb')

/** Ours, or nothing when it cannot be one. */
export const fromE2bId = (text: string): string | undefined => {
  const bare = /^sb_?([0-9a-f]{20})$/.exec(text)?.[1]
  return bare && `sb_${bare}`
}

/** The port of the sandbox's own API in E2B's addresses. */
export const ENVD_PORT = 49_983
/** The port of the code interpreter in E2B's addresses. */
export const INTERPRETER_PORT = 49_999
/** The port of the MCP gateway, as E2B's clients know it. */
export const MCP_PORT = 50_005

/** A sandbox and a port of it. */
export type Target = { readonly id: string; readonly port: number }

const PORT_HOST = /^(\d{1,5})-(sb[0-9a-f]{20})\./

/** Whether a name belongs to one port of one sandbox. */
export const isPortHost = (host: string): boolean => PORT_HOST.test(host.toLowerCase())

/**
 * `<port>-<id>.<domain>`, or the two headers. SECURITY: headers count only where the name in `Host` says nothing about a
 * sandbox, else a page that one sandbox serves could steer its own requests to another.
 */
export function targetOf(host: string, header: (name: string) => string | undefined): Target | undefined {
  const named = PORT_HOST.exec(host.toLowerCase())
  // SECURITY: such a name is never the server's own, also where no port has that number: a page there would share our origin.
  if (named) return target(named[2], named[1]) ?? { id: '', port: ENVD_PORT }
  const id = header('e2b-sandbox-id')
  return id !== undefined && isOurOwnName(host) ? target(id, header('e2b-sandbox-port')) : undefined
}

function target(id: string | undefined, port: string | undefined): Target | undefined {
  const known = fromE2bId(id ?? '')
  const number = Number(port ?? ENVD_PORT)
  // An id that cannot be ours is still for this surface: it gets the answer of a sandbox that is gone.
  return Number.isInteger(number) && number > 0 && number < 65_536
    ? { id: known ?? (id ?? '').slice(0, 64), port: number }
    : undefined
}

const isOurOwnName = (host: string): boolean => {
  const name = host.replace(/:\d+$/, '').replace(/^\[|\]$/g, '')
  return isIP(name) !== 0 || name === 'localhost' || /^(api|sandbox)\./.test(name)
}

/** What `getHost` puts after the id: the operator's wildcard name, or this machine's own. */
export function domainOf(host: string, names: readonly string[]): string {
  const port = /:\d+$/.exec(host)?.[0] ?? ''
  const wildcard = names.find((name) => name.startsWith('*.'))
  return wildcard === undefined ? `localhost${port}` : `${wildcard.slice(2)}${port}`
}
