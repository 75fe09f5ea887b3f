import { createHash, randomBytes } from 'node:crypto'
import {
  chmodSync,
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { cp } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { USER_UID } from '../guest/protocol.ts'
import { hostFingerprint, observeLayout, readText } from '../system.ts'

/**
 * The read-only half of a root over the host's programs: `/usr` and the database of `dpkg` are the host's own; of `/etc` and
 * `/var` there is a copy of what programs, `apt` and `useradd` need. SECURITY: only what is listed here, and of that only what every user of the host
 * may read; nothing that holds credentials.
 */

/** Raise it when the content of the tree changes. */
const RECIPE = '5'

const ETC = [
  ...['alternatives', 'ld.so.cache', 'ld.so.conf', 'ld.so.conf.d', 'localtime', 'timezone'],
  ...['debian_version', 'os-release', 'issue', 'bash.bashrc', 'profile.d', 'skel', 'inputrc'],
  ...['login.defs', 'adduser.conf', 'deluser.conf', 'pam.conf', 'pam.d', 'security', 'shells'],
  ...['default/useradd', 'default/locale', 'init.d', 'rc0.d', 'rc1.d', 'rc2.d', 'rc3.d', 'rc4.d', 'rc5.d'],
  ...['rc6.d', 'rcS.d', 'services', 'protocols', 'rpc', 'networks', 'host.conf', 'gai.conf', 'mime.types'],
  ...['dpkg', 'apt/apt.conf.d', 'apt/preferences.d', 'apt/keyrings', 'apt/trusted.gpg.d', 'apt/sources.list'],
  ...['apt/sources.list.d', 'debconf.conf', 'ucf.conf', 'ca-certificates', 'ca-certificates.conf'],
  ...['ssl/certs', 'ssl/openssl.cnf', 'pki/tls/certs', 'perl', 'fonts', 'matplotlibrc', 'terminfo'],
  ...['locale.alias', 'locale.gen', 'magic', 'manpath.config', 'vim', 'groff', 'java-17-openjdk', 'R'],
  ...['xdg', 'dbus-1', 'X11'],
]
const ETC_PATTERN = /^(python3(\.\d+)?|java-\d+-openjdk)$/
const VAR = [
  ...['lib/apt/extended_states', 'lib/ucf', 'lib/pam', 'lib/python', 'lib/xml-core'],
  ...['lib/sgml-base', 'lib/vim', 'lib/shells.state', 'lib/ca-certificates-java', 'cache/debconf'],
]
const DIRECTORIES = [
  ...['dev', 'proc', 'sys', 'run', 'tmp', 'boot', 'home', 'media', 'mnt', 'opt', 'srv', 'root', 'usr'],
  ...['var/lib/apt/lists/partial', 'var/lib/apt/mirrors/partial', 'var/cache/apt/archives/partial'],
  ...[
    'var/lib/dpkg',
    'var/lib/misc',
    'var/lib/systemd',
    'var/log/apt',
    'var/backups',
    'var/local',
    'var/mail',
    'var/opt',
  ],
  ...['var/spool', 'var/tmp', 'etc/default', 'etc/apt', 'etc/cron.d', 'etc/cron.daily', 'etc/logrotate.d'],
]

/** For login shells. Unlike Debian's it keeps `PATH`, which the sandbox sets. */
const PROFILE = `if [ "\${BASH-}" ] && [ "$BASH" != /bin/sh ] && [ -f /etc/bash.bashrc ]; then . /etc/bash.bashrc; fi
for file in /etc/profile.d/*.sh; do if [ -r "$file" ]; then . "$file"; fi; done
unset file
`

/** In apt's files: another proxy than the sandbox's, or a name with a password. */
const UNWANTED_APT = /proxy|:\/\/[^\s/]*@|password/i

const isPublic = (path: string): boolean => {
  const stat = lstatSync(path)
  if (stat.isSymbolicLink()) return true
  if (stat.isDirectory()) return (stat.mode & 0o005) === 0o005
  if (!stat.isFile() || (stat.mode & 0o004) === 0) return false
  return !path.startsWith('/etc/apt/') || !UNWANTED_APT.test(readText(path) ?? '')
}

/** With all its parents. The modes do not depend on the umask of this process. */
function makeDirectory(root: string, path: string, mode = 0o755): void {
  const full = join(root, path)
  if (existsSync(full)) return
  if (path !== '.') makeDirectory(root, dirname(path))
  mkdirSync(full, { recursive: true })
  chmodSync(full, mode)
}

function writeText(root: string, path: string, content: string | Buffer, mode = 0o644): void {
  makeDirectory(root, dirname(path))
  writeFileSync(join(root, path), content)
  chmodSync(join(root, path), mode)
}

async function copy(root: string, path: string): Promise<void> {
  if (!lstatSync(path, { throwIfNoEntry: false }) || !isPublic(path)) return
  makeDirectory(root, dirname(path.slice(1)))
  await cp(path, join(root, path), {
    recursive: true,
    preserveTimestamps: true,
    verbatimSymlinks: true,
    filter: isPublic,
  })
}

/** System users and groups of the host, so that packages find theirs; nobody can sign in as one. */
const systemLines = (file: string): readonly string[] =>
  (readText(file) ?? '').split('\n').filter((line) => {
    const [name = '', , id = ''] = line.split(':')
    return name !== '' && name !== 'user' && (Number(id) < USER_UID || id === '65534')
  })

const nameOf = (line: string): string => line.split(':')[0] as string

function withoutPassword(line: string): string {
  const [name, , ...rest] = line.split(':')
  return [name, 'x', ...rest].join(':')
}

/** A group without the host's members. */
function ownGroup(line: string): string {
  const [name, , gid] = line.split(':')
  return `${name}:x:${gid}:${name === 'sudo' ? 'user' : ''}`
}

function writeUsers(root: string): void {
  const users = systemLines('/etc/passwd').map(withoutPassword)
  const known = users.some((line) => nameOf(line) === 'root')
    ? users
    : ['root:x:0:0:root:/root:/bin/bash', ...users]
  const groups = systemLines('/etc/group').map(ownGroup)
  const shadow = Number(groups.find((line) => nameOf(line) === 'shadow')?.split(':')[2] ?? 0)
  const write = (name: string, lines: readonly string[], mode: number, gid = 0): void => {
    writeText(root, `etc/${name}`, `${lines.join('\n')}\n`, mode)
    chownSync(join(root, 'etc', name), 0, gid)
  }
  const all = [...known, `user:x:${USER_UID}:${USER_UID}::/home/user:/bin/bash`]
  const allGroups = [...groups, `user:x:${USER_UID}:`]
  write('passwd', all, 0o644)
  write('group', allGroups, 0o644)
  write(
    'shadow',
    all.map((line) => `${nameOf(line)}:*:19000:0:99999:7:::`),
    0o640,
    shadow,
  )
  write(
    'gshadow',
    allGroups.map((line) => `${nameOf(line)}:*::${nameOf(line) === 'sudo' ? 'user' : ''}`),
    0o640,
    shadow,
  )
}

function writeFiles(root: string): void {
  const text = (name: string, content: string): void => writeText(root, name, content)
  text('etc/hostname', 'sandbox\n')
  text('etc/hosts', '127.0.0.1 localhost sandbox\n::1 localhost\n')
  text('etc/nsswitch.conf', 'passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n')
  text('etc/resolv.conf', '# The proxy resolves names.\n')
  text('etc/environment', '')
  text('etc/profile', PROFILE)
  text('etc/fstab', '')
  text('etc/machine-id', '')
  // Nothing that a sandbox installs has to survive a crash, so that no file has to be synchronized.
  text('etc/dpkg/dpkg.cfg.d/ringfence', 'force-unsafe-io\n')
  // PLATFORM: apt would download as the user `_apt`, who may not read a local repository in a home directory.
  text(
    'etc/apt/apt.conf.d/90ringfence',
    'APT::Sandbox::User "root";\nBinary::apt::APT::Keep-Downloaded-Packages "0";\n',
  )
  for (const path of ['tmp', 'var/tmp']) chmodSync(join(root, path), 0o1777)
  symlinkSync('/run', join(root, 'var/run'))
  symlinkSync('/run/lock', join(root, 'var/lock'))
}

/** Home directories with the files that a new user gets. */
async function writeHomes(root: string): Promise<void> {
  for (const [path, id] of [
    ['root', 0],
    ['home/user', USER_UID],
  ] as const) {
    const home = join(root, path)
    makeDirectory(root, path)
    for (const name of existsSync('/etc/skel') ? readdirSync('/etc/skel') : [])
      await cp(join('/etc/skel', name), join(home, name), { recursive: true, filter: isPublic })
    for (const name of readdirSync(home)) chownSync(join(home, name), id, id)
    chownSync(home, id, id)
  }
}

async function buildRoot(root: string): Promise<void> {
  for (const path of DIRECTORIES) makeDirectory(root, path)
  for (const { path, target } of observeLayout().links)
    if (!path.slice(1).includes('/')) symlinkSync(target, join(root, path))
  const more = readdirSync('/etc').filter((name) => ETC_PATTERN.test(name))
  for (const name of new Set([...ETC, ...more])) await copy(root, `/etc/${name}`)
  for (const name of VAR) await copy(root, `/var/${name}`)
  writeUsers(root)
  writeFiles(root)
  await writeHomes(root)
}

/** What lies over every `/usr`. In some images `/usr/sbin` is a link, which a directory here would hide. */
const buildTools = (usr: string, agent: string): void =>
  writeText(usr, 'bin/sudo', readFileSync(agent), 0o755)

/** What lies over the host's: also a `python`, and that installed services are not started. */
function buildUsr(usr: string, agent: string): void {
  buildTools(usr, agent)
  writeText(usr, 'sbin/policy-rc.d', '#!/bin/sh\nexit 101\n', 0o755)
  if (!existsSync('/usr/bin/python')) symlinkSync('python3', join(usr, 'bin/python'))
}

/** A package that brings a `sudo` does not replace ours, which works: dpkg moves its file aside. */
function buildDpkg(dpkg: string): void {
  const host = readText('/var/lib/dpkg/diversions') ?? ''
  writeText(dpkg, 'diversions', `${host}/usr/bin/sudo\n/usr/bin/sudo.distrib\n:\n`)
}

/**
 * The directories of a root over the host's programs are `root`, `usr` and `dpkg` in this directory; `tools` lies over an image.
 */
export async function baseTree(dir: string, agent: string): Promise<string> {
  const seen = [
    '/var/lib/dpkg/status',
    '/etc/passwd',
    '/etc/group',
    '/etc/ld.so.cache',
    '/etc/ssl/certs',
    agent,
  ]
  const hash = createHash('sha256')
    .update(`${RECIPE}|${hostFingerprint(seen)}`)
    .digest('hex')
    .slice(0, 16)
  const path = join(dir, `base-${hash}`)
  if (existsSync(path)) return path
  const draft = join(dir, `.draft-${randomBytes(6).toString('hex')}`)
  try {
    await buildRoot(join(draft, 'root'))
    buildUsr(join(draft, 'usr'), agent)
    buildTools(join(draft, 'tools', 'usr'), agent)
    buildDpkg(join(draft, 'dpkg'))
    renameSync(draft, path)
  } finally {
    rmSync(draft, { recursive: true, force: true })
  }
  return path
}
