import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { makeWorld as makeWorldWith, type World } from '../../src/prove/world.ts'

export { freshWorkspace, planOf, type World } from '../../src/prove/world.ts'

/** The working copy that the tests run in. */
export function packageRoot(): string {
  let dir = process.cwd()
  while (!existsSync(join(dir, 'package.json'))) {
    if (dir === '/') throw new Error('run this from a working copy')
    dir = join(dir, '..')
  }
  return dir
}

/** The program of the attacks that need C. */
const probe = (): string => join(packageRoot(), 'dist', 'guest', 'ringfence-probe')

/** The world of the attacks, with the probe of the working copy. */
export const makeWorld = (): Promise<World> => makeWorldWith(probe())
