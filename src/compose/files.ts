import { existsSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { readText } from '../host/system.ts'

/** Files that are shipped with the package. */

/** The guest agent. */
export const agentPath = (): string => guestProgram('ringfence-agent')

/** The native front of the command line, which is also the broker's listener. */
export const frontPath = (): string => guestProgram('ringfence-front')

/** The program with which `ringfence prove` makes system calls that no shell can make. */
export const probePath = (): string => guestProgram('ringfence-probe')

/** Compiled on this machine, or the program for this processor that the package brings. */
function guestProgram(name: string): string {
  const compiled = packageFile('dist', 'guest', name)
  if (existsSync(compiled)) return compiled
  const shipped = packageFile('dist', 'guest', `${name}-linux-${process.arch}`)
  return existsSync(shipped) ? shipped : compiled
}

/** The text of a shipped file that is used inside sandboxes; some are built. */
export const guestFile = (...names: readonly string[]): string =>
  readText(join(packageRoot(), 'guest', ...names)) ??
  readText(join(packageRoot(), 'dist', 'guest', ...names)) ??
  ''

/** A path inside the package. */
export const packageFile = (...names: readonly string[]): string => join(packageRoot(), ...names)

/** Found from the source tree and from `dist`. */
function packageRoot(): string {
  let dir = dirname(fileURLToPath(import.meta.url))
  while (!existsSync(join(dir, 'package.json')) && dir !== dirname(dir)) dir = dirname(dir)
  return dir
}
