import {
  chmodSync,
  chownSync,
  cpSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { resolveIn } from './layer.ts'

/** What sandboxes expect of a root file system and images lack: the user `user`, `sudo`, names, settings of `apt`. */

/** Raise it when the content changes. */
export const PROVISION_RECIPE = '2'

const USER = 1000
const DIVERSIONS = 'var/lib/dpkg/diversions'
const MOST_BYTES = 1024 * 1024
const MOST_ENTRIES = 1000

/** A file of the image as text. SECURITY: only a regular file inside the tree. */
function textIn(tree: string, name: string): string {
  const path = resolveIn(tree, name)
  const stat = path === undefined ? undefined : lstatSync(path, { throwIfNoEntry: false })
  return path !== undefined && stat?.isFile() && stat.size <= MOST_BYTES ? readFileSync(path, 'utf8') : ''
}

const isIn = (tree: string, name: string): boolean => {
  const path = resolveIn(tree, name)
  return path !== undefined && lstatSync(path, { throwIfNoEntry: false }) !== undefined
}

const linesOf = (text: string): readonly string[] => text.split('\n').filter((line) => line.includes(':'))

const nameOf = (line: string): string => line.split(':')[0] ?? ''

/** The lines with one more in front of those that have the same id, so that the id has this name. */
function withLine(text: string, line: string): string {
  const id = line.split(':')[2]
  const others = linesOf(text).filter((one) => nameOf(one) !== nameOf(line))
  const at = others.findIndex((one) => one.split(':')[2] === id)
  const index = at < 0 ? others.length : at
  return `${[...others.slice(0, index), line, ...others.slice(index)].join('\n')}\n`
}

function withShadow(text: string, names: readonly string[], rest: string): string {
  const known = linesOf(text)
  const missing = names.filter((name) => !known.some((line) => nameOf(line) === name))
  return `${[...known, ...missing.map((name) => `${name}:*${rest}`)].join('\n')}\n`
}

/** Writes the layer that lies over the tree of an image. */
export function provision(tree: string, into: string, agent: string): void {
  const directory = (path: string, mode = 0o755): void => {
    mkdirSync(join(into, path), { recursive: true })
    chmodSync(join(into, path), mode)
  }
  const write = (name: string, content: string | Buffer, mode = 0o644): void => {
    // Where `/usr/sbin` is a link to `/usr/bin`, a directory of ours would hide it.
    const found = resolveIn(tree, name)
    const path = found === undefined ? name : relative(tree, found)
    directory(dirname(path))
    writeFileSync(join(into, path), content)
    chmodSync(join(into, path), mode)
  }
  writeUsers(tree, write)
  write('etc/hostname', 'sandbox\n')
  write('etc/hosts', '127.0.0.1 localhost sandbox\n::1 localhost\n')
  write('etc/resolv.conf', '# The proxy resolves names.\n')
  write('usr/bin/sudo', readFileSync(agent), 0o755)
  // A package that brings a `sudo` does not replace ours: dpkg moves its file aside.
  if (isIn(tree, DIVERSIONS))
    write(DIVERSIONS, `${textIn(tree, DIVERSIONS)}/usr/bin/sudo\n/usr/bin/sudo.distrib\n:\n`)
  if (isIn(tree, 'etc/apt')) writeAptSettings(write)
  if (isIn(tree, 'usr/bin/python3') && !isIn(tree, 'usr/bin/python'))
    symlinkSync('python3', join(into, 'usr/bin/python'))
  directory('home/user')
  const skeleton = resolveIn(tree, 'etc/skel')
  if (skeleton !== undefined && lstatSync(skeleton, { throwIfNoEntry: false })?.isDirectory())
    cpSync(skeleton, join(into, 'home/user'), {
      recursive: true,
      verbatimSymlinks: true,
      filter: withinLimits(),
    })
  directory('home/user')
  chownSync(join(into, 'home/user'), USER, USER)
}

/** SECURITY: the image may have anything there, and the server waits for the copy. */
function withinLimits(): (path: string) => boolean {
  let [entries, bytes] = [0, 0]
  return (path) => {
    const { size } = lstatSync(path)
    if (entries + 1 > MOST_ENTRIES || bytes + size > MOST_BYTES) return false
    entries++
    bytes += size
    return true
  }
}

type Write = (path: string, content: string | Buffer, mode?: number) => void

function writeUsers(tree: string, write: Write): void {
  const root = 'root:x:0:0:root:/root:/bin/bash'
  const passwd = textIn(tree, 'etc/passwd') || `${root}\n`
  const shell = isIn(tree, 'bin/bash') ? '/bin/bash' : '/bin/sh'
  write('etc/passwd', withLine(passwd, `user:x:${USER}:${USER}::/home/user:${shell}`))
  const group = withLine(textIn(tree, 'etc/group') || 'root:x:0:\n', `user:x:${USER}:`)
  write(
    'etc/group',
    group.replace(/^(sudo:[^:]*:\d+:)(.*)$/m, (_, head, rest) => `${head}${rest ? `${rest},` : ''}user`),
  )
  const names = ['root', 'user']
  write('etc/shadow', withShadow(textIn(tree, 'etc/shadow'), names, ':19000:0:99999:7:::'), 0o640)
  write('etc/gshadow', withShadow(textIn(tree, 'etc/gshadow'), names, '::'), 0o640)
}

/** The same as in sandboxes with the host's programs: nothing has to survive a crash, and no service is started. */
function writeAptSettings(write: Write): void {
  write('etc/dpkg/dpkg.cfg.d/ringfence', 'force-unsafe-io\n')
  write(
    'etc/apt/apt.conf.d/90ringfence',
    'APT::Sandbox::User "root";\nBinary::apt::APT::Keep-Downloaded-Packages "0";\n',
  )
  write('usr/sbin/policy-rc.d', '#!/bin/sh\nexit 101\n', 0o755)
}
