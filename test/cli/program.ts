import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../conformance/world.ts'

/**
 * How the tests start the command line: with Node, or, with `RINGFENCE_TEST_FRONT=1`, through the native front and a
 * broker. Both must behave the same, so the same tests run both ways.
 */
const THROUGH_FRONT = process.env.RINGFENCE_TEST_FRONT === '1'

/** The program and its arguments, for `spawn` and its relatives; `root` is the directory of a package. */
export function cli(args: readonly string[], root: string = packageRoot()): [string, string[]] {
  const script = join(root, 'dist', 'cli', 'ringfence.cjs')
  if (!THROUGH_FRONT) return [process.execPath, [script, ...args]]
  return [join(packageRoot(), 'test', 'cli', 'through-front.sh'), [frontOf(root), ...args]]
}

/** The same as words for a shell. */
export const cliWords = (root?: string): string => {
  const [file, args] = cli([], root)
  return [file, ...args].map((word) => `'${word}'`).join(' ')
}

/** The native front of a package. */
export function frontOf(root: string = packageRoot()): string {
  const front = join(root, 'dist', 'guest', 'ringfence-front')
  if (!existsSync(front)) throw new Error('the native front is not built: npm run setup')
  return front
}
