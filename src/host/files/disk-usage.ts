import { run } from '../process/run.ts'
import { systemProgram } from '../system.ts'

const WALL_MS = 5000

/**
 * Bytes on disk of everything below a directory; undefined if that takes too long. PLATFORM: `du` opens each directory
 * without following links, which a walk by path names cannot do while the sandbox renames them.
 */
export async function diskUsage(dir: string): Promise<number | undefined> {
  const file = systemProgram('du')
  if (!file) return undefined
  const launch = { file, args: ['-skx', '--', dir], env: {}, cwd: '/', control: false }
  const { stdout } = await run(launch, { wallMs: WALL_MS })
  // A directory that cannot be read, or vanishes meanwhile, is an error of `du`; its sum is still the best answer.
  const [, kilobytes] = /^(\d+)\s/.exec(Buffer.from(stdout).toString('utf8')) ?? []
  return kilobytes === undefined ? undefined : Number(kilobytes) * 1024
}
