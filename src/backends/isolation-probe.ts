import type { Guarantee } from '../model/guarantee.ts'
import type { BackendSandbox } from './backend.ts'

/** Measures whether a backend isolates the commands of a sandbox from each other. */

/** What a backend keeps that does. */
export const BETWEEN: readonly Guarantee[] = ['proc.between', 'secrets.between']

const OWN_NAMESPACES = ['pid', 'mnt', 'ipc', 'uts', 'net']
const namespaceLink = (name: string): string => `/proc/self/ns/${name}`

/** The program that tells in which namespaces it runs. */
const SHOW_NAMESPACES: readonly [string, ...string[]] = ['readlink', ...OWN_NAMESPACES.map(namespaceLink)]

/** A sandbox whose agent reports its namespaces. */
type ProbedSandbox = Pick<BackendSandbox, 'exec' | 'close'> & {
  readonly status: () => Promise<ReadonlyMap<string, string>>
}

/** Whether a command gets namespaces that are not those of its sandbox. A host that forbids it keeps everything else. */
export async function isolatesCommands(
  open: () => Promise<ProbedSandbox>,
  argv = SHOW_NAMESPACES,
): Promise<boolean> {
  try {
    const sandbox = await open()
    try {
      return await hasOwnNamespaces(sandbox, argv)
    } finally {
      await sandbox.close()
    }
  } catch {
    return false
  }
}

/** Compares with what the agent reported when it was ready. */
async function hasOwnNamespaces(
  sandbox: ProbedSandbox,
  argv: readonly [string, ...string[]],
): Promise<boolean> {
  const status = await sandbox.status()
  const { stdout } = await sandbox.exec({ argv })
  const own = Buffer.from(stdout).toString().trim().split('\n')
  return OWN_NAMESPACES.every((name, index) => {
    const [shared, found] = [status.get(`ns/${name}`), own[index]]
    return shared !== undefined && shared !== found && found?.startsWith(`${name}:`) === true
  })
}
