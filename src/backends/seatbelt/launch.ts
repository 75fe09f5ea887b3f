import { dirname } from 'node:path/posix'
import type { Command } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { type Plan, PROXY_PORT, type Protection } from '../../model/plan.ts'

/**
 * Translates a plan to a Seatbelt profile (SBPL). Everything is denied first; the last matching rule decides.
 *
 *   (deny default) · what programs need to start · mounts · masks · protected names · network
 */

export type SeatbeltContext = {
  /** The sandbox's own directory: its TMPDIR and the plan's small files. */
  readonly scratch: string
  /** In network mode `fetch`: the port on the host's loopback where the proxy listens. */
  readonly proxyPort: number | undefined
}

/** SECURITY: a path becomes part of the profile's text; characters that could end a string are escaped or rejected. */
export function quoted(text: string): string {
  if (/\p{Cc}/u.test(text))
    throw new SandboxError('invalid-input', 'a path contains a control character', { hint: 'rename it' })
  return `"${text.replace(/[\\"]/g, '\\$&')}"`
}

const literal = (path: string): string => `(literal ${quoted(path)})`
const subpath = (path: string): string => `(subpath ${quoted(path)})`
const regex = (pattern: string): string => `(regex ${quoted(pattern)})`
const rule = (action: 'allow' | 'deny', what: string, filters: readonly string[]): string =>
  [`(${action} ${what}`, ...filters.map((filter) => `  ${filter}`)].join('\n').concat(')')

/** Programs and libraries of the system; they contain no secrets. */
const PROGRAMS = [
  '/usr',
  '/bin',
  '/sbin',
  '/System',
  '/Library/Apple',
  '/opt/homebrew',
  '/private/var/db/dyld',
]
const SYSTEM_FILES = ['/private/etc/localtime', '/private/etc/shells', '/private/var/db/timezone']
const DEVICES = ['/dev/null', '/dev/zero', '/dev/random', '/dev/urandom', '/dev/tty', '/dev/ptmx', '/dev/fd']
/** User and group names, time zones, notifications; no pasteboard, no keychain, no window server. */
const SERVICES = [
  'com.apple.system.opendirectoryd.libinfo',
  'com.apple.system.notification_center',
  'com.apple.system.logger',
  'com.apple.logd',
]

/** The profile for a plan. */
export function profileOf(plan: Plan, context: SeatbeltContext): string {
  refuseUnheld(plan)
  return `${[
    '(version 1)',
    '(deny default)',
    ...basics(context),
    ...grants(plan, context),
    ...masks(plan),
    ...plan.mounts
      .filter(({ mode }) => mode === 'rw')
      .flatMap(({ real }) => (plan.protection ? protections(plan.protection, real) : [])),
    ...network(plan, context),
  ].join('\n')}\n`
}

/** The arguments that run a command under the profile. */
export function seatbeltArgs(profile: string, command: Command): readonly string[] {
  return ['-p', profile, '--', ...command.argv]
}

/** Rejects what a profile cannot do: mount a file at another path, or hold writes back. */
function refuseUnheld(plan: Plan): void {
  const moved = plan.mounts.find(({ real, target }) => real !== target)
  if (moved)
    throw new SandboxError('unsupported', `seatbelt cannot mount \`${moved.real}\` at \`${moved.target}\``, {
      hint: 'mount the path at its own location',
    })
  if (plan.mounts.some(({ overlay }) => overlay !== undefined))
    throw new SandboxError('unsupported', 'seatbelt does not support review', {
      hint: 'leave out --review',
    })
}

function basics({ scratch }: SeatbeltContext): readonly string[] {
  return [
    '(allow process-fork)',
    rule('allow', 'process-exec*', [...PROGRAMS.map(subpath), subpath(scratch)]),
    '(allow signal (target same-sandbox))',
    '(allow process-info* (target same-sandbox))',
    '(allow sysctl-read)',
    '(allow pseudo-tty)',
    '(allow ipc-posix-sem)',
    rule(
      'allow',
      'mach-lookup',
      SERVICES.map((name) => `(global-name ${quoted(name)})`),
    ),
    rule('allow', 'file-read*', [...PROGRAMS.map(subpath), ...SYSTEM_FILES.map(subpath)]),
    rule('allow', 'file-read* file-write-data file-ioctl', DEVICES.map(subpath)),
    rule('allow', 'file-read* file-write*', [subpath(scratch)]),
  ]
}

/** A path can be resolved only if the metadata of each parent directory is readable; listing is not needed. */
function ancestors(paths: readonly string[]): readonly string[] {
  const above = (path: string): readonly string[] =>
    path === '/' ? ['/'] : [...above(dirname(path)), dirname(path)]
  return [...new Set(paths.flatMap(above))].sort()
}

function grants(plan: Plan, { scratch }: SeatbeltContext): readonly string[] {
  const paths = plan.mounts.map(({ real, kind }) => (kind === 'dir' ? subpath(real) : literal(real)))
  const writable = paths.filter((_, index) => plan.mounts[index]?.mode === 'rw')
  const seen = ancestors(
    [...plan.mounts, ...plan.unixSockets].map(({ real }) => real as string).concat(scratch),
  )
  // The later rule decides: a read-only path inside a writable one is closed again.
  const readonly = plan.mounts.filter(({ mode }) => mode === 'ro').map(({ real }) => subpath(real))
  return [
    rule('allow', 'file-read-metadata', seen.map(literal)),
    ...(paths.length > 0 ? [rule('allow', 'file-read* process-exec*', paths)] : []),
    ...(writable.length > 0 ? [rule('allow', 'file-write*', writable)] : []),
    ...(readonly.length > 0 ? [rule('deny', 'file-write*', readonly)] : []),
    ...reopened(plan),
  ]
}

/** A writable path inside a read-only one is opened again: the longest path decides. */
function reopened({ mounts }: Plan): readonly string[] {
  const inner = mounts.filter(
    ({ mode, real }) =>
      mode === 'rw' && mounts.some((other) => other.mode === 'ro' && real.startsWith(`${other.real}/`)),
  )
  return inner.length > 0
    ? [
        rule(
          'allow',
          'file-write*',
          inner.map(({ real }) => subpath(real)),
        ),
      ]
    : []
}

const masks = ({ masks: hidden }: Plan): readonly string[] =>
  hidden.length > 0
    ? [
        rule(
          'deny',
          'file-read* file-write* process-exec*',
          hidden.map(({ real }) => subpath(real)),
        ),
      ]
    : []

/** The file system is case-insensitive, and so is the pattern. */
const folded = (text: string): string =>
  [...text]
    .map((char) => {
      const [lower, upper] = [char.toLowerCase(), char.toUpperCase()]
      if (lower !== upper) return `[${lower}${upper}]`
      return /[\\^$.*+?()[\]{}|]/.test(char) ? `\\${char}` : char
    })
    .join('')

const either = (names: readonly string[]): string => `(${names.map(folded).join('|')})`

/** `a` and `a/b` of `a/b/c`. */
const prefixesOf = (name: string): readonly string[] =>
  name.includes('/') ? [...prefixesOf(dirname(name)), dirname(name)] : []

/** SECURITY: names that run code later stay protected, whatever is mounted above. */
function protections(protection: Protection, root: string): readonly string[] {
  const base = `^${folded(root === '/' ? '' : root)}/(.*/)?`
  const { roots, inner, names, exceptBelow, pinned } = protection
  const prefixes = [...new Set(names.flatMap(prefixesOf))]
  return [
    rule('deny', 'file-write*', [regex(`${base}${either(names)}(/|$)`)]),
    // Packages contain such names legitimately.
    rule('allow', 'file-write*', [regex(`${base}${either(exceptBelow)}/`)]),
    rule('deny', 'file-write*', [regex(`${base}${either(names)}/(.*/)?${either(exceptBelow)}(/|$)`)]),
    // Parent directories of a protected name may not be created or renamed, or the name could be moved in ready-made.
    ...(prefixes.length > 0 ? [rule('deny', 'file-write*', [regex(`${base}${either(prefixes)}$`)])] : []),
    rule('deny', 'file-write*', [
      regex(`${base}${either(roots)}$`),
      regex(`${base}${either(inner)}(/|$)`),
      // A mounted path may itself be the repository.
      ...(inner.some((pattern) => folds(root, dirname(pattern)))
        ? [regex(`^${folded(dirname(root))}/${either(inner)}(/|$)`)]
        : []),
    ]),
    ...(pinned.length > 0 ? [rule('deny', 'file-write*', pinned.map(subpath))] : []),
  ]
}

const folds = (path: string, name: string): boolean => path.toLowerCase().endsWith(`/${name.toLowerCase()}`)

function network(
  { network: { mode }, unixSockets, mounts }: Plan,
  { proxyPort }: SeatbeltContext,
): readonly string[] {
  const own = mounts
    .filter((mount) => mount.mode === 'rw' && mount.kind === 'dir')
    .map(({ real }) => subpath(real))
  const sockets = [...own, ...unixSockets.map(({ real }) => literal(real))]
  return [
    ...(own.length > 0 ? [rule('allow', 'network-bind network-inbound', own)] : []),
    ...(sockets.length > 0 ? [rule('allow', 'network-outbound', sockets)] : []),
    ...(unixSockets.length > 0
      ? [
          rule(
            'allow',
            'file-read* file-write-data',
            unixSockets.map(({ real }) => literal(real)),
          ),
        ]
      : []),
    ...(mode === 'loopback'
      ? [
          rule('allow', 'network-bind network-inbound', ['(local ip "localhost:*")']),
          rule('allow', 'network-outbound', ['(remote ip "localhost:*")']),
        ]
      : []),
    ...(mode === 'fetch' && proxyPort !== undefined
      ? [rule('allow', 'network-outbound', [`(remote ip "localhost:${proxyPort}")`])]
      : []),
    ...(mode === 'full' ? ['(allow network*)', '(allow system-socket)'] : []),
  ]
}

/** The command's environment variables, with the proxy's real port and the real paths of the plan's files. */
export function seatbeltEnvironment(
  plan: Plan,
  command: Command,
  { scratch, proxyPort }: SeatbeltContext,
): Readonly<Record<string, string>> {
  const moved = (value: string): string => {
    const files = plan.files.reduce(
      (text, file) => text.replaceAll(file.target, fileInScratch(scratch, file.target)),
      value,
    )
    return proxyPort === undefined ? files : files.replaceAll(`:${PROXY_PORT}`, `:${proxyPort}`)
  }
  const own = Object.entries({ ...plan.env, ...command.env }).map(
    ([name, value]) => [name, moved(value)] as const,
  )
  return { ...Object.fromEntries(own), TMPDIR: scratch }
}

/** The path of a small file of the plan, which cannot be mounted. */
export const fileInScratch = (scratch: string, target: string): string =>
  `${scratch}/${target.replaceAll('/', '_')}`
