import { run } from '../process/run.ts'
import { systemProgram } from '../system.ts'

const WALL_MS = 5000

/** What a file takes even if it is empty. */
const FILE_BYTES = 4096

/**
 * Bytes on disk of everything below a directory, with a block for each file that has none of its own; undefined if that takes too
 * long. PLATFORM: `du` opens each directory without following links, which a walk by path names cannot do while the sandbox
 * renames them. Where it cannot count files, only bytes count.
 */
export async function diskUsage(dir: string): Promise<number | undefined> {
  const [kilobytes, files] = await Promise.all([total(dir, '-skx'), total(dir, '-sx', '--inodes')])
  if (kilobytes === undefined || files === undefined) return undefined
  return Math.max((kilobytes.sum ?? 0) * 1024, (files.sum ?? 0) * FILE_BYTES)
}

/** The sum that `du` prints, if it knows its options; undefined if it was stopped. */
async function total(
  dir: string,
  ...options: readonly string[]
): Promise<{ readonly sum?: number } | undefined> {
  const file = systemProgram('du')
  if (!file) return undefined
  const launch = { file, args: [...options, '--', dir], env: {}, cwd: '/', control: false }
  const { stdout, stopped } = await run(launch, { wallMs: WALL_MS })
  // A directory that cannot be read, or vanishes meanwhile, is an error of `du`; its sum is still the best answer.
  const [, sum] = /^(\d+)\s/.exec(Buffer.from(stdout).toString('utf8')) ?? []
  if (sum !== undefined) return { sum: Number(sum) }
  return stopped || !options.includes('--inodes') ? undefined : {}
}
