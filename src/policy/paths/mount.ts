import { isWithin } from '../../model/path.ts'
import { segmentsOf } from './text.ts'

/** What no operator's list opens: host places never mounted or handed out, guest places never covered. */

/** Kernel views of processes, devices and the kernel itself: a path there is a handle to something else. */
const MAGIC = ['/proc', '/sys', '/dev']

/** Sources that hold boot data, other users' sockets or an engine's whole state. */
const NEVER_MOUNTED = [
  ...MAGIC,
  '/boot',
  '/run',
  '/var/run',
  '/var/lib/docker',
  '/var/lib/containerd',
  '/var/lib/containers',
  '/var/lib/kubelet',
  '/private/var/run',
]
/** Desktops mount removable disks here. */
const MOUNTABLE = ['/run/media']

/** Too broad to mount although single files below may be granted. */
const TOO_BROAD = ['/', '/etc', '/var', '/private', '/private/etc', '/private/var', '/home', '/Users']

const CREDENTIALS = [
  '/etc/shadow',
  '/etc/gshadow',
  '/etc/sudoers',
  '/etc/sudoers.d',
  '/etc/ssh',
  '/etc/krb5.keytab',
]

const ENGINE_SOCKET =
  /^(docker|dockershim|podman|containerd|crio|cri-dockerd|buildkitd|lxd|incus)(\.raw)?\.sock$/

/** Is `path` the given directory or below it? Whole segments, so `/etcetera` is not below `/etc`. */
const withinAny = (path: string, directories: readonly string[]): boolean =>
  directories.some((directory) => isWithin(path, directory))

/** Why this real path is never handed out, whatever the operator allows. */
export function hardDenied(real: string): string | undefined {
  if (withinAny(real, MAGIC)) return 'kernel and device paths are never granted'
  const name = segmentsOf(real).at(-1) ?? ''
  if (ENGINE_SOCKET.test(name)) return 'the socket of a container engine is never granted'
  for (const prefix of ['', '/private']) {
    if (
      withinAny(
        real,
        CREDENTIALS.map((path) => prefix + path),
      )
    )
      return 'credential files of the host are never granted'
  }
  return undefined
}

/** Why this real path is never a mount source, whatever the operator allows. */
export function hardDeniedSource(real: string): string | undefined {
  if (TOO_BROAD.includes(real)) return 'a directory this broad is never mounted'
  if (withinAny(real, NEVER_MOUNTED) && !MOUNTABLE.some((path) => real !== path && isWithin(real, path))) {
    return 'system and engine directories are never mounted'
  }
  return undefined
}

/** SECURITY: `:` and `,` separate fields in mount options, `"` and `\` quote them; a plain name has none. */
export const hasMountSyntax = (text: string): boolean => /[:,"\\\u0000-\u001f\u007f]/.test(text)

/** Top directories of the guest: its programs, configuration, kernel views, the set-up's own places. */
const GUEST_SYSTEM = new Set([
  'bin',
  'sbin',
  'lib',
  'lib32',
  'lib64',
  'libx32',
  'usr',
  'etc',
  'dev',
  'proc',
  'sys',
  'boot',
  'run',
  'newroot',
  'oldroot',
  'nix',
  'private',
  'system',
  'library',
])
const GUEST_PARTS = ['/var/run', '/var/lock', '/var/lib', '/var/spool']
/** Whole places that a mount would hide; below them is fine. */
const GUEST_WHOLE = ['/', '/var', '/home']

/** Why a guest path cannot be a mount's target, or `undefined`. */
export function refuseTarget(target: string): string | undefined {
  if (!target.startsWith('/')) return 'mount target is not absolute'
  if (hasMountSyntax(target)) return 'mount target holds mount option syntax'
  const segments = target.replace(/\/$/, '').split('/').slice(1)
  if (segments.some((segment) => segment === '' || segment === '.' || segment === '..')) {
    return 'mount target is not a plain path'
  }
  const plain = `/${segments.join('/')}`.toLowerCase()
  // `/usr/src/app` is where container images keep the application.
  const system = GUEST_SYSTEM.has((segments[0] ?? '').toLowerCase()) && !plain.startsWith('/usr/src/')
  if (system || withinAny(plain, GUEST_PARTS) || GUEST_WHOLE.includes(plain)) {
    return 'mount target covers a system directory of the sandbox'
  }
  return undefined
}
