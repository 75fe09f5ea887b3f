import { createHash } from 'node:crypto'
import {
  closeSync,
  existsSync,
  lstatSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  readSync,
  realpathSync,
  statSync,
} from 'node:fs'
import { dirname, join, posix } from 'node:path'
import { observeLayout, systemProgram } from '../../host/system.ts'
import { installedPackages, type Packages } from './dpkg.ts'
import { needsOf } from './elf.ts'
import { addHostPath, addParents, addText, type Tree } from './tree.ts'

/** The programs that an agent's shell expects. */
export const DEFAULT_PROGRAMS: readonly string[] = [
  ...['sh', 'bash', 'env', 'ls', 'awk', 'grep', 'sed', 'find', 'tar', 'gzip', 'diff', 'patch', 'ps', 'which'],
  ...['setsid', 'script', 'hostname', 'git', 'curl', 'node', 'npm', 'python3', 'openssl', 'make', 'less'],
]

/** Parts of packages that no program reads at run time. */
const LEFT_OUT =
  /^\/usr\/(share\/(doc|man|info|locale|lintian|bug|bash-completion|zsh|doc-base|menu|pixmaps|gitweb)|include|lib\/debug)\/|\.(a|la)$/
/** Packages that others depend on only for installation, or for a rarely used feature. */
const SKIPPED =
  /^(perl|perl-modules.*|libperl5.*|perl-base|debconf|dpkg|git-man|adduser|passwd|init-system-helpers|sysvinit.*|base-files|ucf|install-info|media-types|mime-support|util-linux-extra|gcc.*-base|debianutils|login|libpam.*|mount)$/

const LIBRARY_DIRS = ['/lib', '/usr/lib', '/lib64', '/usr/lib64', '/usr/local/lib']

/** The programs with everything that they need, as a tree; and those that this host does not have. */
export function hostTree(programs: readonly string[]): {
  readonly tree: Tree
  readonly missing: readonly string[]
} {
  const tree = skeleton()
  const collector = new Collector(tree, installedPackages())
  const missing = programs.filter((name) => !collector.program(name))
  collector.finish()
  return { tree, missing }
}

/** Increased when the same host should produce another image. */
const RECIPE = 2

/** Changes when packages are installed or removed, or a program is replaced. Much faster than collecting all files. */
export function hostStamp(programs: readonly string[]): string {
  const hash = createHash('sha256').update(`${RECIPE}|${programs.join(' ')}`)
  const paths = programs.map((name) => systemProgram(name)).filter((path) => path !== undefined)
  for (const path of ['/var/lib/dpkg/status', '/etc/ld.so.cache', ...paths]) {
    const stat = statSync(path, { throwIfNoEntry: false })
    hash.update(`|${path}|${stat?.size}|${stat?.mtimeMs}|${stat?.ino}`)
  }
  return hash.digest('hex')
}

/** Directories, symbolic links and small files of every image. */
export function skeleton(): Tree {
  const tree: Tree = new Map()
  for (const dir of ['/etc', '/usr', '/proc', '/sys', '/dev', '/run', '/var', '/home', '/mnt', '/.ringfence'])
    tree.set(dir, { kind: 'dir', mode: 0o755 })
  tree.set('/tmp', { kind: 'dir', mode: 0o1777 })
  tree.set('/var/tmp', { kind: 'link', target: '../tmp' })
  addText(tree, '/etc/passwd', 'root:x:0:0::/tmp:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/false\n')
  addText(tree, '/etc/group', 'root:x:0:\nnogroup:x:65534:\n')
  addText(tree, '/etc/nsswitch.conf', 'passwd: files\ngroup: files\nhosts: files dns\n')
  addText(tree, '/etc/hosts', '127.0.0.1 localhost sandbox\n::1 localhost\n')
  return tree
}

class Collector {
  readonly #tree: Tree
  readonly #packages: Packages
  readonly #links = new Map<string, string>()
  readonly #seen = new Set<string>()
  readonly #unread: string[] = []

  constructor(tree: Tree, packages: Packages) {
    this.#tree = tree
    this.#packages = packages
    for (const { path, target } of observeLayout().links)
      if (lstatSync(path).isSymbolicLink() && existsSync(path)) {
        tree.set(path, { kind: 'link', target })
        addParents(tree, posix.join('/', target, 'x'))
      }
  }

  program(name: string): boolean {
    const path = systemProgram(name)
    if (path) this.#chain(path)
    return path !== undefined
  }

  /** Adds a program, each link of its chain of symbolic links, and the package at the end. */
  #chain(path: string): void {
    for (let at = path, steps = 0; steps < 16; steps++) {
      const added = this.#add(at)
      if (!lstatSync(added).isSymbolicLink()) {
        this.#packageOf(added)
        this.#moduleOf(added)
        this.#interpreterOf(added)
        return
      }
      at = posix.resolve(dirname(added), readlinkSync(added))
    }
  }

  /**
   * Adds the whole module of a Node program: npm can replace itself, and then the file list of the package that installed it
   * names files of another version.
   */
  #moduleOf(path: string): void {
    const root = /^.*?\/node_modules\/(@[^/]+\/)?[^/]+/.exec(path)?.[0]
    if (root === undefined) return
    for (const name of readdirSync(root, { recursive: true, encoding: 'utf8' }).sort())
      this.#add(join(root, name))
  }

  /** `#!/usr/bin/env node` needs `node`. */
  #interpreterOf(path: string): void {
    const line = firstLine(path)
    const [, program, argument] = /^#!\s*(\S+)(?:\s+(\S+))?/.exec(line) ?? []
    const name = posix.basename((program?.endsWith('/env') ? argument : program) ?? '')
    if (name && !this.#seen.has(`#!${name}`)) {
      this.#seen.add(`#!${name}`)
      this.program(name)
    }
  }

  #packageOf(path: string): void {
    const names = [path, ...[...this.#merged(path)]].flatMap((one) => this.#packages.ownersOf(one))
    for (const name of new Set(names)) this.#package(name)
  }

  /** The database may list `/usr/bin/x` as `/bin/x`. */
  #merged(path: string): readonly string[] {
    return path.startsWith('/usr/') ? [path.slice('/usr'.length)] : []
  }

  #package(name: string): void {
    if (this.#seen.has(name) || SKIPPED.test(name)) return
    this.#seen.add(name)
    for (const file of this.#packages.filesOf(name)) if (!LEFT_OUT.test(file)) this.#add(file)
    for (const other of this.#packages.dependenciesOf(name)) this.#package(other)
  }

  /** Adds a file at its real path: the directories above it are never symbolic links. Returns that path. */
  #add(path: string): string {
    let real: string
    try {
      real = join(realpathSync(dirname(path)), posix.basename(path))
    } catch {
      return path
    }
    if (!addHostPath(this.#tree, real)) return real
    this.#unread.push(real)
    if (real.endsWith('.py')) this.#compiled(real)
    return real
  }

  /** Python compiles at installation; without the compiled files every start would compile again. */
  #compiled(source: string): void {
    const dir = join(dirname(source), '__pycache__')
    if (!existsSync(dir)) return
    const stem = `${posix.basename(source, '.py')}.`
    for (const name of readdirSync(dir)) if (name.startsWith(stem)) addHostPath(this.#tree, join(dir, name))
  }

  /** Adds libraries that no package lists, targets of symbolic links, and files generated at installation. */
  finish(): void {
    for (const name of certificates()) this.#add(name)
    for (const name of ['/etc/localtime', '/etc/ld.so.cache']) if (existsSync(name)) this.#add(name)
    for (let path = this.#unread.pop(); path; path = this.#unread.pop()) this.#follow(path)
    this.#alternatives()
    this.#dropDangling()
  }

  #follow(path: string): void {
    const entry = this.#tree.get(path)
    if (entry?.kind === 'link') {
      const target = posix.resolve(dirname(path), entry.target)
      if (/\.so(\.|$)/.test(path) && existsSync(target)) this.#add(target)
    }
    if (entry?.kind !== 'file' || !(entry.mode & 0o111 || /\.so(\.|$)|\.node$/.test(path))) return
    const needs = needsOf(readFileSync(path))
    if (!needs) return
    if (needs.interpreter) this.#chainLibrary(needs.interpreter)
    const own = needs.paths.map((dir) => dir.replace(/\$\{?ORIGIN\}?/, dirname(path)))
    for (const name of needs.libraries) this.#library(name, own)
  }

  #library(name: string, own: readonly string[]): void {
    if (this.#links.has(name)) return
    const dirs = [...own, ...libraryDirs()]
    const found = dirs.map((dir) => join(dir, name)).find((path) => existsSync(path))
    if (!found) return
    this.#links.set(name, found)
    this.#chainLibrary(found)
  }

  #chainLibrary(path: string): void {
    for (let at = path, steps = 0; steps < 16; steps++) {
      const added = this.#add(at)
      if (!existsSync(added) || !lstatSync(added).isSymbolicLink()) return
      at = posix.resolve(dirname(added), readlinkSync(added))
    }
  }

  #alternatives(): void {
    const dir = '/etc/alternatives'
    if (!existsSync(dir)) return
    for (const name of readdirSync(dir)) {
      const link = join(dir, name)
      if (lstatSync(link).isSymbolicLink() && this.#tree.has(readlinkSync(link)))
        addHostPath(this.#tree, link)
    }
  }

  #dropDangling(): void {
    for (const [path, entry] of this.#tree) {
      if (entry.kind !== 'link' || path === '/var/tmp') continue
      const target = posix.resolve(dirname(path), entry.target)
      if (!existsSync(target)) this.#tree.delete(path)
    }
  }
}

function firstLine(path: string): string {
  const start = Buffer.alloc(256)
  const file = openSync(path, 'r')
  try {
    return start.toString('latin1', 0, readSync(file, start)).split('\n')[0] as string
  } finally {
    closeSync(file)
  }
}

let dirs: readonly string[] | undefined
function libraryDirs(): readonly string[] {
  dirs ??= LIBRARY_DIRS.flatMap((dir) =>
    existsSync(dir)
      ? [
          dir,
          ...readdirSync(dir)
            .filter((name) => /-linux-gnu/.test(name))
            .map((name) => join(dir, name)),
        ]
      : [],
  )
  return dirs
}

function certificates(): readonly string[] {
  const bundle = [
    '/etc/ssl/certs/ca-certificates.crt',
    '/etc/pki/tls/certs/ca-bundle.crt',
    '/etc/ssl/openssl.cnf',
  ]
  return bundle.filter((path) => existsSync(path))
}
