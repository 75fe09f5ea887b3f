import { existsSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { readText } from '../host/system.ts'

/** What our own package brings along. */

/** Beside the built code, found from the source tree as well as from `dist`. */
export function agentPath(): string {
  return join(packageRoot(), 'dist', 'guest', 'ringfence-agent')
}

/** The text of something that is shipped for the inside of sandboxes. */
export const guestFile = (...names: readonly string[]): string =>
  readText(join(packageRoot(), 'guest', ...names)) ?? ''

/** A path in our own package. */
export const packageFile = (...names: readonly string[]): string => join(packageRoot(), ...names)

function packageRoot(): string {
  let dir = dirname(fileURLToPath(import.meta.url))
  while (!existsSync(join(dir, 'package.json')) && dir !== dirname(dir)) dir = dirname(dir)
  return dir
}
