import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** The providers' real packages, installed beside these tests the first time that one of them runs. */

const here = dirname(fileURLToPath(import.meta.url))

/** With install scripts off, like every package here. */
export function installed(folder: string = here): void {
  if (existsSync(join(folder, 'node_modules', '.ringfence-list'))) return
  if (existsSync(join(folder, 'node_modules', '.package-lock.json'))) return
  // Not `ci`: it refuses where a registry lacks the builds for other platforms.
  const args = ['install', '--no-save', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error']
  execFileSync('npm', args, { cwd: folder, stdio: ['ignore', 'ignore', 'inherit'] })
}

/** Not known to the compiler: a checkout without them still has to compile. */
export async function sdk<T>(name: string): Promise<T> {
  installed()
  return (await import(/* @vite-ignore */ name)) as T
}

export const full = process.env.RINGFENCE_FULL === '1'
export const fullFolder = join(here, 'full')
export const node24 = join(fullFolder, 'node_modules', 'n24', 'bin', 'node')
