import { readlinkSync } from 'node:fs'
import { READY_GUARD, READY_IDS, READY_LANDLOCK } from '../../host/guest/protocol.ts'

const NAMESPACES = ['user', 'pid', 'mnt', 'ipc', 'uts', 'net', 'cgroup']

/** The active layers, from what the kernel reported to the agent just before the command started. */
export function layersOf(status: ReadonlyMap<string, string>, cgroup: boolean): readonly string[] {
  const spaces = NAMESPACES.filter((name) => {
    const inside = status.get(`ns/${name}`)
    return inside !== undefined && inside !== readlinkSync(`/proc/self/ns/${name}`)
  })
  const none = (field: string): boolean => /^0+$/.test(status.get(field) ?? '')
  return [
    ...(spaces.length > 0 ? [`namespaces(${spaces.join(',')})`] : []),
    ...(status.get('Seccomp') === '2' ? ['seccomp'] : []),
    ...(status.get('NoNewPrivs') === '1' ? ['no-new-privs'] : []),
    ...(none('CapEff') && none('CapBnd') ? ['no-capabilities'] : []),
    ...(status.has(READY_IDS) ? [`root-user(host id ${status.get(READY_IDS)})`] : []),
    ...(Number(status.get(READY_LANDLOCK)) > 0 ? [`landlock(abi ${status.get(READY_LANDLOCK)})`] : []),
    ...(status.get(READY_GUARD) === '1' ? ['guard'] : []),
    ...(cgroup ? ['cgroup'] : []),
  ]
}
