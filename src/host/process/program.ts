import { accessSync, constants, statSync } from 'node:fs'
import { resolve } from 'node:path'

/** The file that a program's name resolves to. */
export type ObservedProgram = {
  readonly path: string
  readonly dev: string
  readonly ino: string
  readonly size: string
  readonly mtimeNs: string
  readonly ctimeNs: string
}

const DEFAULT_PATH = '/usr/local/bin:/usr/bin:/bin'

/** Resolves the file that `name` would start from this directory with this `PATH`; `null` if there is none. */
export function observeProgram(
  name: string,
  cwd: string,
  path: string = DEFAULT_PATH,
): ObservedProgram | null {
  if (name === '') return null
  // POSIX: an empty entry of `PATH` is the working directory.
  const dirs = name.includes('/') ? [''] : path.split(':')
  for (const dir of dirs) {
    const found = observeFile(resolve(cwd, dir, name))
    if (found) return found
  }
  return null
}

function observeFile(path: string): ObservedProgram | undefined {
  try {
    const stat = statSync(path, { bigint: true })
    if (!stat.isFile()) return undefined
    accessSync(path, constants.X_OK)
    const { dev, ino, size, mtimeNs, ctimeNs } = stat
    const text = {
      dev: `${dev}`,
      ino: `${ino}`,
      size: `${size}`,
      mtimeNs: `${mtimeNs}`,
      ctimeNs: `${ctimeNs}`,
    }
    return { path, ...text }
  } catch {
    // Unreachable and absent are the same; both are facts that an approval depends on.
    return undefined
  }
}
