import { existsSync, readlinkSync, statSync } from 'node:fs'
import { release } from 'node:os'
import { cgroupHost } from './process/cgroup.ts'
import { run } from './process/run.ts'
import { readText, systemProgram } from './system.ts'

/** The features and restrictions of a host that decide which backends work on it. Tests use recorded ones. */
export type HostState = {
  readonly platform: string
  readonly kernel: string
  readonly uid: number
  readonly bwrap: { readonly version: string; readonly setuid: boolean } | undefined
  /** Kernel settings; absent if this kernel does not have the setting. */
  readonly settings: Readonly<Partial<Record<Setting, string>>>
  /** Whether an AppArmor profile for bwrap is loaded. */
  readonly bwrapProfile: boolean
  /** The container runtime that we run in, if any. */
  readonly container: string | undefined
  /** Effective capabilities of this process, in the kernel's format. */
  readonly capabilities: string
  readonly cgroup: { readonly version: 1 | 2; readonly limits: readonly string[] }
  /** The Landlock ABI version; 0 without Landlock. */
  readonly landlock: number
  readonly wsl: 1 | 2 | undefined
}

const SETTINGS = {
  usernsClone: '/proc/sys/kernel/unprivileged_userns_clone',
  maxUserns: '/proc/sys/user/max_user_namespaces',
  apparmorUserns: '/proc/sys/kernel/apparmor_restrict_unprivileged_userns',
} as const
type Setting = keyof typeof SETTINGS

/** Inspects this host without changing it. */
export async function observeHost(agent: string): Promise<HostState> {
  const settings = Object.entries(SETTINGS).flatMap(([name, path]) => {
    const value = readText(path)?.trim()
    return value === undefined ? [] : [[name, value] as const]
  })
  const linux = process.platform === 'linux'
  return {
    platform: process.platform,
    kernel: release(),
    uid: process.getuid?.() ?? -1,
    bwrap: await observeBwrap(),
    settings: Object.fromEntries(settings),
    bwrapProfile: /^(bwrap|\/usr\/bin\/bwrap)\b/m.test(
      readText('/sys/kernel/security/apparmor/profiles') ?? '',
    ),
    container: containerOf(),
    capabilities: /^CapEff:\s*(\S+)/m.exec(readText('/proc/self/status') ?? '')?.[1] ?? '0',
    cgroup: linux ? cgroupOf() : { version: 2, limits: [] },
    landlock: linux ? Math.max(0, Number(await outputOf(agent, 'landlock')) || 0) : 0,
    wsl: wslOf(readText('/proc/version') ?? ''),
  }
}

async function observeBwrap(): Promise<HostState['bwrap']> {
  const path = systemProgram('bwrap')
  if (path === undefined) return undefined
  const version = /(\d+(\.\d+)+)/.exec(await outputOf(path, '--version'))?.[1] ?? ''
  return { version, setuid: (statSync(path).mode & 0o4000) !== 0 }
}

/** The first output of a program; empty if it cannot be run. */
async function outputOf(file: string, argument: string): Promise<string> {
  if (!existsSync(file)) return ''
  const launch = { file, args: [argument], env: {}, cwd: '/', control: false }
  try {
    return Buffer.from((await run(launch, { wallMs: 2000, outputBytes: 4096 })).stdout).toString('utf8')
  } catch {
    return ''
  }
}

function cgroupOf(): HostState['cgroup'] {
  try {
    const { version, parents } = cgroupHost()
    return { version, limits: Object.keys(parents) }
  } catch {
    return { version: 2, limits: [] }
  }
}

/** Linux gives the initial namespaces these inode numbers, and never to others. */
const FIRST = { pid: 'pid:[4026531836]', ipc: 'ipc:[4026531839]', uts: 'uts:[4026531838]' }

/** A virtual machine built from a container's files also has a container's marker files, but it is not in a container. */
const isFirstSystem = (): boolean =>
  Object.entries(FIRST).every(([kind, first]) => linkTo(`/proc/self/ns/${kind}`) === first)

function linkTo(path: string): string | undefined {
  try {
    return readlinkSync(path)
  } catch {
    return undefined
  }
}

function containerOf(): string | undefined {
  if (isFirstSystem()) return undefined
  if (existsSync('/.dockerenv')) return 'Docker'
  if (existsSync('/run/.containerenv')) return 'Podman'
  const cgroup = readText('/proc/1/cgroup') ?? ''
  if (/kubepods/.test(cgroup)) return 'Kubernetes'
  if (/docker|containerd/.test(cgroup)) return 'Docker'
  return /\/lxc[/.]/.test(cgroup) ? 'LXC' : undefined
}

/** PLATFORM: WSL 1 translates system calls; only WSL 2 has a Linux kernel. */
export const wslOf = (version: string): HostState['wsl'] =>
  /microsoft-standard|WSL2/i.test(version) ? 2 : /microsoft/i.test(version) ? 1 : undefined
