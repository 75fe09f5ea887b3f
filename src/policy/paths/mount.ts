import { isWithin } from '../../model/files/path.ts'
import { segmentsOf } from './text.ts'

/** Paths that no operator's list opens: host paths that are never mounted or granted, guest paths that are never covered. */

/** Kernel views of processes, devices and the kernel itself: a path there refers to another object. */
const MAGIC = ['/proc', '/sys', '/dev']

/** Sources with boot data, other users' sockets or the whole state of a container engine. */
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

/** Too broad to mount, although single files below may be granted. */
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

/** Whether `path` is the given directory or below it. Compares whole segments, so `/etcetera` is not below `/etc`. */
const withinAny = (path: string, directories: readonly string[]): boolean =>
  directories.some((directory) => isWithin(path, directory))

/** Why this real path is never granted, even if the operator allows it. */
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

/** Why this real path is never a mount source, even if the operator allows it. */
export function hardDeniedSource(real: string): string | undefined {
  if (TOO_BROAD.includes(real)) return 'a directory this broad is never mounted'
  if (withinAny(real, NEVER_MOUNTED) && !MOUNTABLE.some((path) => real !== path && isWithin(real, path))) {
    return 'system and engine directories are never mounted'
  }
  return undefined
}

/** SECURITY: `:` and `,` separate fields in mount options, `"` and `\` quote them; a plain name contains none. */
export const hasMountSyntax = (text: string): boolean => /[:,"\\\u0000-\u001f\u007f]/.test(text)

/** Top-level directories of the guest: its programs, configuration, kernel views, and Ringfence's own directories. */
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
/** Directories that a mount would hide; mounting below them is allowed. */
const GUEST_WHOLE = ['/', '/var', '/home']

/** Why a guest path cannot be a mount target, or `undefined`. */
export function refuseTarget(target: string): string | undefined {
  if (!target.startsWith('/')) return 'mount target is not absolute'
  if (hasMountSyntax(target)) return 'mount target holds mount option syntax'
  const segments = target.replace(/\/$/, '').split('/').slice(1)
  if (segments.some((segment) => segment === '' || segment === '.' || segment === '..')) {
    return 'mount target is not a plain path'
  }
  const plain = `/${segments.join('/')}`.toLowerCase()
  // Container images keep the application in `/usr/src/app`.
  const system = GUEST_SYSTEM.has((segments[0] ?? '').toLowerCase()) && !plain.startsWith('/usr/src/')
  if (system || withinAny(plain, GUEST_PARTS) || GUEST_WHOLE.includes(plain)) {
    return 'mount target covers a system directory of the sandbox'
  }
  return undefined
}
