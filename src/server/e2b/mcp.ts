import { SandboxError } from '../../model/errors.ts'
import { hashSecret, matchesHash, type Principal } from '../../supervisor/access/keys.ts'
import type { LiveSandbox } from '../../supervisor/lifecycle/live-sandbox.ts'
import { enterByMaker } from '../auth.ts'
import type { E2bSurface, SandboxRequest, SandboxSurface } from './sandbox-request.ts'
import type { CreateBody } from './shapes.ts'
import { optionsOf, specOf } from './views.ts'

/**
 * E2B's option `mcp`: its clients start a program `mcp-gateway` in the sandbox and talk to its port. Here the servers are those of
 * the operator (`[[mcp]]`), outside of the sandbox; the option selects among them.
 */

/** The MCP servers that the creator selected. SECURITY: settings and credentials of servers are the operator's alone. */
export function selectedServers(
  { e2b }: SandboxSurface,
  principal: Principal,
  { mcp }: CreateBody,
): readonly string[] | undefined {
  if (mcp === undefined || mcp === null) return undefined
  if (typeof mcp !== 'object' || Array.isArray(mcp))
    throw new SandboxError('invalid-input', '`mcp` is an object with the names of servers')
  const granted = e2b.mcp.names(principal)
  for (const [name, settings] of Object.entries(mcp as Readonly<Record<string, unknown>>)) {
    if (!granted.includes(name))
      throw new SandboxError('invalid-input', `there is no MCP server \`${name.slice(0, 64)}\``, {
        hint:
          granted.length > 0
            ? `one of: ${granted.join(', ')}`
            : 'the operator configures and grants servers with [[mcp]]',
      })
    if (Object.keys((settings ?? {}) as object).length > 0)
      throw new SandboxError('invalid-input', `\`${name}\`: settings of MCP servers are the operator's`, {
        hint: `write \`${name}: {}\``,
      })
  }
  return Object.keys(mcp)
}

/** The hash of the token that the client chose for the gateway of a sandbox. */
const TOKENS = new WeakMap<LiveSandbox, string>()

const START = /^mcp-gateway --config /
/** What runs instead: the file from which E2B's clients read the token again. */
const STORE =
  'mkdir -p /etc/mcp-gateway && umask 077 && printf %s "$GATEWAY_ACCESS_TOKEN" > /etc/mcp-gateway/.token || true'

/** The arguments of a command; for the start of a gateway, the token is kept and another command takes its place. */
export function gatewayStart(
  { live }: SandboxRequest,
  args: readonly string[],
  envs: Readonly<Record<string, string>> | undefined,
): readonly string[] {
  const line = args.at(-1) ?? ''
  if (!START.test(line) || optionsOf(specOf(live)).mcp === undefined) return args
  const token = envs?.GATEWAY_ACCESS_TOKEN ?? ''
  if (token.length < 16)
    throw new SandboxError('invalid-input', 'GATEWAY_ACCESS_TOKEN is missing or too short')
  TOKENS.set(live, hashSecret(token))
  return [...args.slice(0, -1), STORE]
}

/** One request to the gateway's port; undefined if the sandbox has no gateway. */
export async function serveGateway(
  surface: E2bSurface,
  { context, live, request }: SandboxRequest,
): Promise<Response | undefined> {
  const names = optionsOf(specOf(live)).mcp
  if (names === undefined) return undefined
  const maker = await enterByMaker(surface.parts, context, () => {
    const hash = TOKENS.get(live)
    const given = /^Bearer (.+)$/i.exec(request.headers.get('authorization') ?? '')?.[1]
    if (hash && given && matchesHash(given, hash)) return live.row.keyId
    throw new SandboxError('unauthenticated', 'the token of the MCP gateway is missing or wrong')
  })
  return surface.e2b.mcp.serve(request, maker, live.id, names)
}
