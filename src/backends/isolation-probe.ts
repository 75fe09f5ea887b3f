import type { Guarantee } from '../model/guarantee.ts'
import type { BackendSandbox } from './backend.ts'

/** Measures whether a backend isolates the commands of a sandbox from each other. */

/** What a backend keeps that does. */
export const BETWEEN: readonly Guarantee[] = ['proc.between', 'secrets.between']

const OWN_NAMESPACES = ['pid', 'mnt', 'ipc', 'uts', 'net']
const namespaceLink = (name: string): string => `/proc/self/ns/${name}`

/** The program that tells in which namespaces it runs. */
const SHOW_NAMESPACES: readonly [string, ...string[]] = ['readlink', ...OWN_NAMESPACES.map(namespaceLink)]

/** Whether a command has namespaces that are not those of its sandbox, which the agent reported when it was ready. */
export async function hasOwnNamespaces(
  sandbox: Pick<BackendSandbox, 'exec'>,
  status: ReadonlyMap<string, string>,
  argv = SHOW_NAMESPACES,
): Promise<boolean> {
  const { stdout } = await sandbox.exec({ argv })
  const own = Buffer.from(stdout).toString().trim().split('\n')
  return OWN_NAMESPACES.every((name, index) => {
    const [shared, found] = [status.get(`ns/${name}`), own[index]]
    return shared !== undefined && shared !== found && found?.startsWith(`${name}:`) === true
  })
}
