import type { HostState } from './host-state.ts'

/** One finding about a host for its administrator. */
export type HostNote = {
  readonly id: string
  /** `stops`: sandboxes cannot start. `weakens`: a layer or a limit is missing. `tells`: for information. */
  readonly weight: 'stops' | 'weakens' | 'tells'
  readonly text: string
  /** A command, or what to do; absent if nothing has to be done. */
  readonly fix?: string
}

type Check = (host: HostState) => HostNote | undefined

/** What prevents or weakens sandboxes on this host, the worst first. Pure, so that tests can use recorded hosts. */
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
        text: 'on macOS the backend is seatbelt, which has not been tested there yet',
      }
    : {
        id: 'platform',
        weight: 'stops',
        text: `no backend supports ${platform}`,
        fix: 'use WSL 2 or a Linux container',
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

/** The first version that can mount by file descriptor. */
const OLDEST = '0.8.0'
/** The first version that does not follow symbolic links of the sandbox when it creates mount points. */
const WITHOUT_HOLE = '0.12.0'

const tooOld: Check = ({ bwrap }) =>
  bwrap && isOlder(bwrap.version, OLDEST)
    ? {
        id: 'bwrap-too-old',
        weight: 'stops',
        text: `bubblewrap ${bwrap.version || 'of an unknown version'} cannot mount by file descriptor`,
        fix: `install bubblewrap ${OLDEST} or newer`,
      }
    : undefined

const symlinkHole: Check = ({ bwrap }) =>
  bwrap && !isOlder(bwrap.version, OLDEST) && isOlder(bwrap.version, WITHOUT_HOLE)
    ? {
        id: 'bwrap-symlink-hole',
        weight: 'tells',
        text: `bubblewrap ${bwrap.version} follows symbolic links when it creates mount points inside a workspace (CVE-2026-87766). Ringfence is not affected: its agent, which follows no links, creates mounts below writable directories`,
        fix: `bubblewrap ${WITHOUT_HOLE} or newer fixes it`,
      }
    : undefined

const setuid: Check = ({ bwrap }) =>
  bwrap?.setuid
    ? {
        id: 'bwrap-setuid',
        weight: 'tells',
        text: 'bubblewrap is setuid root on this host, which is unnecessary with user namespaces',
        fix: 'chmod u-s $(command -v bwrap), if user namespaces are allowed',
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
        text: 'AppArmor allows user namespaces only for programs with a profile, and bwrap has none',
        fix: `write this to /etc/apparmor.d/bwrap and run \`apparmor_parser -r /etc/apparmor.d/bwrap\`:\n${APPARMOR_PROFILE}`,
      }
    : undefined

const usernsOff: Check = ({ settings, uid, bwrap }) =>
  settings.usernsClone === '0' && uid !== 0 && !bwrap?.setuid
    ? {
        id: 'userns-off',
        weight: 'stops',
        text: 'unprivileged user namespaces are disabled',
        fix: 'sysctl -w kernel.unprivileged_userns_clone=1',
      }
    : undefined

const usernsNone: Check = ({ settings }) =>
  settings.maxUserns === '0'
    ? {
        id: 'userns-none',
        weight: 'stops',
        text: 'user namespaces are disabled on this host',
        fix: 'sysctl -w user.max_user_namespaces=15000',
      }
    : undefined

/** Bit 21: a container without it cannot mount anything. */
const CAP_SYS_ADMIN = 1n << 21n

const nested: Check = ({ container, capabilities, uid }) => {
  if (container === undefined) return undefined
  const mayMount = (BigInt(`0x${capabilities || '0'}`) & CAP_SYS_ADMIN) !== 0n
  if (mayMount || uid !== 0)
    return {
      id: 'nested',
      weight: 'tells',
      text: `this is a ${container} container: its limits also apply to every sandbox in it`,
    }
  return {
    id: 'nested-confined',
    weight: 'weakens',
    text: `this is a ${container} container that may not permit namespaces and mounts`,
    fix: 'start it with `--security-opt seccomp=unconfined --security-opt systempaths=unconfined` and a user other than root, or with `--cap-add SYS_ADMIN`',
  }
}

const cgroups: Check = ({ cgroup, uid }) => {
  if (cgroup.limits.length === 3) return undefined
  const missing = ['memoryMb', 'pids', 'cpus'].filter((limit) => !cgroup.limits.includes(limit))
  return {
    id: `cgroup-v${cgroup.version}-rights`,
    weight: 'weakens',
    text: `no permission to create cgroup v${cgroup.version} groups for ${missing.join(', ')}: the guest agent limits memory and processes instead, CPU time is not limited`,
    fix:
      cgroup.version === 2 && uid !== 0
        ? 'run in a delegated cgroup: systemd-run --user --scope -p Delegate=yes ringfence …'
        : 'delegate a cgroup to this user, or run as root',
  }
}

const landlock: Check = ({ landlock: version, kernel }) =>
  version > 0
    ? undefined
    : {
        id: 'no-landlock',
        weight: 'weakens',
        text: `kernel ${kernel} has no Landlock: files are protected by namespaces and the seccomp supervisor only`,
        fix: 'boot with `lsm=landlock,…` on Linux 5.13 or newer',
      }

const oldKernel: Check = ({ kernel }) =>
  isOlder(kernel, '5.14')
    ? {
        id: 'kernel-too-old',
        weight: 'stops',
        text: `kernel ${kernel} cannot pass file descriptors to a supervised command`,
        fix: 'use Linux 5.14 or newer',
      }
    : undefined

const wsl: Check = ({ wsl: version }) =>
  version === 1
    ? {
        id: 'wsl1',
        weight: 'stops',
        text: 'WSL 1 has no Linux kernel, so it has no namespaces',
        fix: 'wsl --set-version <distribution> 2',
      }
    : version === 2
      ? {
          id: 'wsl2',
          weight: 'tells',
          text: 'this is WSL 2: Windows controls the permissions of its drives below /mnt',
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

/** Compares versions numerically, part by part; a text that is not a version is older than every version. */
export function isOlder(version: string, other: string): boolean {
  const parts = (text: string): number[] => (/^\d+(\.\d+)*/.exec(text)?.[0] ?? '').split('.').map(Number)
  const [a, b] = [parts(version), parts(other)]
  for (let at = 0; at < Math.max(a.length, b.length); at++)
    if ((a[at] ?? 0) !== (b[at] ?? 0)) return (a[at] ?? 0) < (b[at] ?? 0)
  return false
}
