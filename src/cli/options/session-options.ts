import { resolve } from 'node:path'

/** The sandbox of commands that serve an agent: `mcp` and `exec-server`. */

/** The options that describe the sandbox. */
export const SESSION_OPTIONS = {
  workspace: { type: 'string', short: 'w' },
  preset: { type: 'string' },
  read: { type: 'string', multiple: true },
  write: { type: 'string', multiple: true },
  deny: { type: 'string', multiple: true },
  network: { type: 'string' },
  'allow-host': { type: 'string', multiple: true },
  'ask-hosts': { type: 'boolean' },
  backend: { type: 'string' },
  'min-isolation': { type: 'string' },
  'agent-id': { type: 'string' },
  yes: { type: 'boolean', short: 'y' },
} as const

/** The parsed values of `SESSION_OPTIONS`. */
export type SessionValues = {
  readonly [Name in keyof typeof SESSION_OPTIONS]?:
    | ((typeof SESSION_OPTIONS)[Name] extends { readonly multiple: true }
        ? string[]
        : (typeof SESSION_OPTIONS)[Name] extends { readonly type: 'boolean' }
          ? boolean
          : string)
    | undefined
}

/** The spec of the sandbox. */
export function sessionSpec(values: SessionValues, agentId: string): Record<string, unknown> {
  const hosts = values['allow-host']
  const asks = values['ask-hosts']
  const mode = values.network ?? (hosts || asks ? 'fetch' : undefined)
  return {
    workspace: resolve(values.workspace ?? '.'),
    agentId,
    ...(mode && {
      network: { mode, ...(hosts && { allowHosts: hosts }), ...(asks && { unlisted: 'ask' }) },
    }),
    ...(values.preset && { preset: values.preset }),
    ...(values.read && { read: values.read.map((path) => resolve(path)) }),
    ...(values.write && { write: values.write.map((path) => resolve(path)) }),
    ...(values.deny && { deny: values.deny.map((path) => resolve(path)) }),
    ...(values.backend && { backend: values.backend }),
    ...(values['min-isolation'] && { minIsolation: values['min-isolation'] }),
  }
}
