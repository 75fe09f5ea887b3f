import type { HostState } from './host-state.ts'

/** One thing about a host that its owner should know. */
export type HostNote = {
  readonly id: string
  /** `stops` keeps the wall from standing, `weakens` takes a fence or a limit away, `tells` is good to know. */
  readonly weight: 'stops' | 'weakens' | 'tells'
  readonly text: string
  /** A command, or what to do; absent when nothing has to be done. */
  readonly fix?: string
}

type Check = (host: HostState) => HostNote | undefined

/** What stands in the way of a wall on this host, the worst first. Pure: recorded hosts are judged like this one. */
export function diagnose(host: HostState): readonly HostNote[] {
  const checks = host.platform === 'linux' ? LINUX : [otherPlatform]
  const notes = checks.flatMap((check) => check(host) ?? [])
  return [...notes].sort((a, b) => WEIGHTS.indexOf(a.weight) - WEIGHTS.indexOf(b.weight))
}

const WEIGHTS: readonly HostNote['weight'][] = ['stops', 'weakens', 'tells']

const otherPlatform: Check = ({ platform }) =>
  platform === 'darwin'
    ? {
        id: 'macos',
        weight: 'tells',
        text: 'on macOS the wall is seatbelt, which has not been run there yet',
      }
    : {
        id: 'platform',
        weight: 'stops',
        text: `there is no wall for ${platform}`,
        fix: 'use WSL 2 or a container with Linux',
      }

const noBwrap: Check = ({ bwrap }) =>
  bwrap
    ? undefined
    : {
        id: 'no-bwrap',
        weight: 'stops',
        text: 'bubblewrap is not installed',
        fix: 'apt-get install bubblewrap',
      }

/** The first version that takes what it mounts by descriptor. */
const OLDEST = '0.8.0'
/** The first that does not follow links of the sandbox when it makes mount points. */
const WITHOUT_HOLE = '0.12.0'

const tooOld: Check = ({ bwrap }) =>
  bwrap && isOlder(bwrap.version, OLDEST)
    ? {
        id: 'bwrap-too-old',
        weight: 'stops',
        text: `bubblewrap ${bwrap.version || 'of an unknown version'} cannot mount by descriptor`,
        fix: `install bubblewrap ${OLDEST} or newer`,
      }
    : undefined

const symlinkHole: Check = ({ bwrap }) =>
  bwrap && !isOlder(bwrap.version, OLDEST) && isOlder(bwrap.version, WITHOUT_HOLE)
    ? {
        id: 'bwrap-symlink-hole',
        weight: 'tells',
        text: `bubblewrap ${bwrap.version} follows links of a workspace when it makes mount points below it (CVE-2026-87766); we never let it: mounts below a writable one are put in place by our agent, which follows no link`,
        fix: `bubblewrap ${WITHOUT_HOLE} or newer has no such hole`,
      }
    : undefined

const setuid: Check = ({ bwrap }) =>
  bwrap?.setuid
    ? {
        id: 'bwrap-setuid',
        weight: 'tells',
        text: 'bubblewrap runs with root’s rights here (setuid), which user namespaces make needless',
        fix: 'chmod u-s $(command -v bwrap), where user namespaces are allowed',
      }
    : undefined

const APPARMOR_PROFILE = `abi <abi/4.0>,
include <tunables/global>

profile bwrap /usr/bin/bwrap flags=(unconfined) {
  userns,
  include if exists <local/bwrap>
}
`

const apparmor: Check = ({ settings, bwrapProfile, uid }) =>
  settings.apparmorUserns === '1' && !bwrapProfile && uid !== 0
    ? {
        id: 'apparmor-userns',
        weight: 'stops',
        text: 'AppArmor lets only programs with a profile make user namespaces, and bwrap has none',
        fix: `write this to /etc/apparmor.d/bwrap and run \`apparmor_parser -r /etc/apparmor.d/bwrap\`:\n${APPARMOR_PROFILE}`,
      }
    : undefined

const usernsOff: Check = ({ settings, uid, bwrap }) =>
  settings.usernsClone === '0' && uid !== 0 && !bwrap?.setuid
    ? {
        id: 'userns-off',
        weight: 'stops',
        text: 'user namespaces are switched off for ordinary users',
        fix: 'sysctl -w kernel.unprivileged_userns_clone=1',
      }
    : undefined

const usernsNone: Check = ({ settings }) =>
  settings.maxUserns === '0'
    ? {
        id: 'userns-none',
        weight: 'stops',
        text: 'this host allows no user namespaces at all',
        fix: 'sysctl -w user.max_user_namespaces=15000',
      }
    : undefined

/** Bit 21: without it a container lets nobody mount. */
const CAP_SYS_ADMIN = 1n << 21n

const nested: Check = ({ container, capabilities, uid }) => {
  if (container === undefined) return undefined
  const mayMount = (BigInt(`0x${capabilities || '0'}`) & CAP_SYS_ADMIN) !== 0n
  if (mayMount || uid !== 0)
    return {
      id: 'nested',
      weight: 'tells',
      text: `this is a ${container} container: its own limits hold for every sandbox in it`,
    }
  return {
    id: 'nested-confined',
    weight: 'weakens',
    text: `this is a ${container} container that may keep us from making namespaces and mounts`,
    fix: 'start it with `--security-opt seccomp=unconfined --security-opt systempaths=unconfined` and a user other than root, or with `--cap-add SYS_ADMIN`',
  }
}

const cgroups: Check = ({ cgroup, uid }) => {
  if (cgroup.limits.length === 3) return undefined
  const missing = ['memoryMb', 'pids', 'cpus'].filter((limit) => !cgroup.limits.includes(limit))
  return {
    id: `cgroup-v${cgroup.version}-rights`,
    weight: 'weakens',
    text: `we may make no control group (version ${cgroup.version}) for ${missing.join(', ')}: our agent counts memory and processes itself, processor time has no ceiling`,
    fix:
      cgroup.version === 2 && uid !== 0
        ? 'run below a delegated group: systemd-run --user --scope -p Delegate=yes ringfence …'
        : 'give the caller a group of its own, or run as root',
  }
}

const landlock: Check = ({ landlock: version, kernel }) =>
  version > 0
    ? undefined
    : {
        id: 'no-landlock',
        weight: 'weakens',
        text: `kernel ${kernel} has no Landlock: the second fence around files is missing, namespaces and the guard hold alone`,
        fix: 'boot with `lsm=landlock,…` on Linux 5.13 or newer',
      }

const oldKernel: Check = ({ kernel }) =>
  isOlder(kernel, '5.14')
    ? {
        id: 'kernel-too-old',
        weight: 'stops',
        text: `kernel ${kernel} cannot hand descriptors to a guarded command`,
        fix: 'use Linux 5.14 or newer',
      }
    : undefined

const wsl: Check = ({ wsl: version }) =>
  version === 1
    ? {
        id: 'wsl1',
        weight: 'stops',
        text: 'WSL 1 has no Linux kernel and no namespaces',
        fix: 'wsl --set-version <distribution> 2',
      }
    : version === 2
      ? {
          id: 'wsl2',
          weight: 'tells',
          text: 'this is WSL 2: Windows drives below /mnt belong to Windows and its rights are not ours to hold',
          fix: 'keep workspaces on the Linux file system',
        }
      : undefined

const LINUX: readonly Check[] = [
  wsl,
  oldKernel,
  noBwrap,
  tooOld,
  apparmor,
  usernsOff,
  usernsNone,
  nested,
  cgroups,
  landlock,
  symlinkHole,
  setuid,
]

/** By numbers, part by part; what is no version is below every one. */
export function isOlder(version: string, other: string): boolean {
  const parts = (text: string): number[] => (/^\d+(\.\d+)*/.exec(text)?.[0] ?? '').split('.').map(Number)
  const [a, b] = [parts(version), parts(other)]
  for (let at = 0; at < Math.max(a.length, b.length); at++)
    if ((a[at] ?? 0) !== (b[at] ?? 0)) return (a[at] ?? 0) < (b[at] ?? 0)
  return false
}
