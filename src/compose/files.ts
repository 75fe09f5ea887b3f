import { existsSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { readText } from '../host/system.ts'

/** Files that are shipped with the package. */

/** The package's root directory, found from the source tree and from `dist`. */
export function agentPath(): string {
  return join(packageRoot(), 'dist', 'guest', 'ringfence-agent')
}

/** The text of a shipped file that is used inside sandboxes; some are built. */
export const guestFile = (...names: readonly string[]): string =>
  readText(join(packageRoot(), 'guest', ...names)) ??
  readText(join(packageRoot(), 'dist', 'guest', ...names)) ??
  ''

/** A path inside the package. */
export const packageFile = (...names: readonly string[]): string => join(packageRoot(), ...names)

function packageRoot(): string {
  let dir = dirname(fileURLToPath(import.meta.url))
  while (!existsSync(join(dir, 'package.json')) && dir !== dirname(dir)) dir = dirname(dir)
  return dir
}
