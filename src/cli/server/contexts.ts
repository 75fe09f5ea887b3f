import { chmodSync, existsSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { environment, stateDirectory } from '../../compose/compose.ts'
import { readPrivateFile } from '../../host/secrets/private-file.ts'
import { SandboxError } from '../../model/errors.ts'

/** A server and the key for it. */
export type Context = { readonly url: string; readonly apiKey: string }

/** The servers that `ringfence login` stored. */
export type Contexts = {
  readonly current: string | null
  readonly servers: Readonly<Record<string, Context>>
}

const NONE: Contexts = { current: null, servers: {} }

const file = (): string => join(stateDirectory(environment()), 'servers.json')

/** All stored servers; none if nothing was ever stored. */
export function readContexts(): Contexts {
  if (!existsSync(file())) return NONE
  const text = readPrivateFile('the file with the keys of servers', file()).toString()
  try {
    return JSON.parse(text) as Contexts
  } catch (cause) {
    throw new SandboxError('invalid-input', `${file()} is not JSON`, {
      hint: 'remove the file and run `ringfence login` again',
      cause,
    })
  }
}

/** Stores the servers in a file that only the user can read. */
export function writeContexts(contexts: Contexts): void {
  const path = file()
  mkdirSync(stateDirectory(environment()), { recursive: true, mode: 0o700 })
  if (Object.keys(contexts.servers).length === 0) {
    rmSync(path, { force: true })
    return
  }
  const draft = `${path}.${process.pid}`
  writeFileSync(draft, `${JSON.stringify(contexts, null, 2)}\n`, { mode: 0o600 })
  chmodSync(draft, 0o600)
  renameSync(draft, path)
}

/** The server in use, if one is stored. */
export function currentContext(): Context | undefined {
  const { current, servers } = readContexts()
  return current !== null && Object.hasOwn(servers, current) ? servers[current] : undefined
}
