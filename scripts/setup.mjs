/**
 * Sets up a new machine: npm packages, system packages, the guest agent, the build.
 * Safe to run again, and quick if nothing changed. As root it installs packages; otherwise it prints the command for root.
 */
import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

export const root = dirname(dirname(fileURLToPath(import.meta.url)))

/** Debian package, files that show it is installed, and its purpose. */
const PACKAGES = [
  ['bubblewrap', ['/usr/bin/bwrap'], 'the wall'],
  ['gcc', ['/usr/bin/gcc'], 'builds the guest agent'],
  ['libc6-dev', ['/usr/include/stdio.h'], 'builds the guest agent'],
  ['linux-libc-dev', ['/usr/include/linux/landlock.h'], 'builds the guest agent'],
  ['musl-tools', ['/usr/bin/musl-gcc'], 'makes the guest agent small'],
  ['libmbedtls-dev', ['/usr/include/mbedtls/ssl.h'], 'builds the channel into Pods'],
  ['python3-minimal', ['/usr/bin/python3'], 'runs the corpus scorer and some attacks in the tests'],
  ['clang-format', ['/usr/bin/clang-format'], 'checks the format of the guest agent'],
  ['e2fsprogs', ['/usr/sbin/mkfs.ext4'], 'creates the disks of sandboxes with a writable root'],
  ['clang', ['/usr/bin/clang'], 'compiles C to WebAssembly in the tests'],
  ['lld', ['/usr/bin/wasm-ld'], 'links C to WebAssembly in the tests'],
  ['wasi-libc', ['/usr/include/wasm32-wasi/stdio.h'], 'the C library of WebAssembly programs in the tests'],
  [
    'libclang-rt-dev-wasm32',
    ['/usr/lib/llvm-14/lib/clang/14.0.6/lib/wasi/libclang_rt.builtins-wasm32.a'],
    'compiles C to WebAssembly in the tests',
  ],
  ['docker.io', ['/usr/sbin/dockerd', '/usr/bin/dockerd'], 'the tests run containers on their own daemon'],
  ['podman', ['/usr/bin/podman'], 'the tests run containers on its socket too'],
  ['runsc', ['/usr/bin/runsc', '/usr/local/bin/runsc'], 'gVisor: a user-space kernel for each sandbox'],
  ['qemu-system-x86', ['/usr/bin/qemu-system-x86_64'], 'a virtual machine for each sandbox'],
  ['erofs-utils', ['/usr/bin/mkfs.erofs'], 'makes the root images of virtual machines'],
  ['docker-registry', ['/usr/bin/docker-registry'], 'the tests pull images from it'],
  ['busybox-static', ['/bin/busybox'], 'the programs of the images in the tests'],
  ['git', ['/usr/bin/git'], 'the tests work on real repositories'],
  ['postgresql', ['/usr/lib/postgresql'], 'the tests run the store on a real server'],
  ['curl', ['/usr/bin/curl'], 'the tests go through the proxy with it'],
  ['python3-pip', ['/usr/bin/pip3'], 'the tests go through the proxy with it'],
  [
    'python3-ipython',
    ['/usr/lib/python3/dist-packages/IPython'],
    'the code interpreter’s Python has notebooks’ syntax with it',
  ],
  ['python3-matplotlib', ['/usr/lib/python3/dist-packages/matplotlib'], 'the tests draw charts in sandboxes'],
  ['python3-pandas', ['/usr/lib/python3/dist-packages/pandas'], 'the tests show data frames of sandboxes'],
  ['ca-certificates', ['/etc/ssl/certs/ca-certificates.crt'], 'the certificates that programs inside trust'],
  ['openssl', ['/usr/bin/openssl'], 'makes certificates for servers in the tests'],
  ['chromium', ['/usr/bin/chromium'], 'the tests open the console with it'],
  ['openssh-client', ['/usr/bin/ssh-keygen'], 'the tests go into sandboxes with it'],
  ['openssh-server', ['/usr/sbin/sshd'], 'the tests go into sandboxes with ssh; it runs inside'],
  ['rsync', ['/usr/bin/rsync'], 'the tests copy into sandboxes with it'],
  ['nginx-light', ['/usr/sbin/nginx'], 'the tests put a server behind it'],
  ['tmux', ['/usr/bin/tmux'], 'the tests drive agents in a real terminal with it'],
  ['iproute2', ['/usr/sbin/ip', '/sbin/ip'], 'gives test servers public addresses in a network namespace'],
]

/** For the full tests alone: faults of nodes, a second S3 server, a desktop in a sandbox. */
const FULL_TESTS = [
  [
    'libfaketime',
    ['/usr/lib/x86_64-linux-gnu/faketime', '/usr/lib/aarch64-linux-gnu/faketime'],
    'lets the clock of one node jump',
  ],
  ['iptables', ['/usr/sbin/iptables'], 'cuts nodes off'],
  ['python3-swift', ['/usr/lib/python3/dist-packages/swift'], 'a second S3 server'],
  ['xvfb', ['/usr/bin/Xvfb'], 'the screen'],
  ['x11-utils', ['/usr/bin/xdpyinfo'], 'asks for the screen'],
  ['x11-xserver-utils', ['/usr/bin/xrandr'], 'asks for its size'],
  ['xfce4-session', ['/usr/bin/startxfce4'], 'the desktop'],
  ['xfwm4', ['/usr/bin/xfwm4'], 'its windows'],
  ['xfdesktop4', ['/usr/bin/xfdesktop'], 'its background'],
  ['xfce4-settings', ['/usr/bin/xfsettingsd'], 'its settings'],
  ['dbus-x11', ['/usr/bin/dbus-launch'], 'its messages'],
  ['xdotool', ['/usr/bin/xdotool'], 'mouse and keyboard'],
  ['scrot', ['/usr/bin/scrot'], 'takes pictures'],
  ['xterm', ['/usr/bin/xterm'], 'a program in a window'],
  ['x11vnc', ['/usr/bin/x11vnc'], 'shares the screen'],
  ['novnc', ['/usr/share/novnc/vnc.html'], 'shows it in a browser'],
]

const say = (text) => process.stdout.write(`${text}\n`)

/** Installs and builds everything; with `tests: false` only what the product needs, with `full` also what only full tests need. */
export function setup({ tests = true, full = false } = {}) {
  checkNode()
  installPackages()
  installSystem(tests, full)
  buildAgent()
  build()
  buildConsole()
}

function checkNode() {
  const [major, minor] = process.versions.node.split('.').map(Number)
  if (major < 20 || (major === 20 && minor < 19)) {
    say(`ringfence needs Node 20.19 or newer; this is ${process.version}`)
    process.exit(125)
  }
}

/** Installs npm packages if the lock file has changed. */
function installPackages() {
  const stamp = join(root, 'node_modules', '.ringfence-lock')
  const wanted = hashOf([join(root, 'package-lock.json')])
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === wanted) return
  say('npm packages: installing')
  // No dependency needs an install script, so none may run. Not `npm ci`: it fails if a registry lacks the builds for
  // other platforms, which we do not need.
  run('npm', ['install', '--no-save', '--ignore-scripts', '--no-audit', '--no-fund'])
  writeFileSync(stamp, wanted)
}

/** Installs third-party clients for tests in a separate directory, again if their list has changed. */
export function installClients(dir) {
  const stamp = join(root, dir, 'node_modules', '.ringfence-list')
  const wanted = hashOf([join(root, dir, 'package.json')])
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === wanted) return
  say(`clients in ${dir}: installing`)
  run('npm', ['install', '--no-package-lock', '--ignore-scripts', '--no-audit', '--no-fund'], {
    cwd: join(root, dir),
  })
  writeFileSync(stamp, wanted)
}

/** Packages that the default backend needs; the others are for tests and optional backends. */
const ESSENTIAL = ['bubblewrap', 'gcc', 'libc6-dev', 'linux-libc-dev', 'musl-tools']

function installSystem(tests, full) {
  if (process.platform !== 'linux') return say('system packages: skipped, this is not Linux')
  const wanted = [
    ...PACKAGES.filter(([name]) => tests || ESSENTIAL.includes(name)),
    ...(full ? FULL_TESTS : []),
  ]
  const missing = wanted.filter(([, files]) => !files.some((file) => existsSync(file)))
  if (missing.length > 0) installMissing(missing)
  if (tests) installNewerGvisor()
}

function installMissing(missing) {
  for (const [name, , why] of missing) say(`system package missing: ${name} (${why})`)
  const line = (names) => `apt-get install -y --no-install-recommends ${names.join(' ')}`
  const all = missing.map(([name]) => name)
  if (!existsSync('/usr/bin/apt-get'))
    return say(`install them with the system's package manager, then run this again`)
  if (process.getuid() !== 0) return say(`as root, run: ${line(all)}`)
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
  say('running: apt-get update')
  run('apt-get', ['update', '-qq'], { env })
  const names = all.filter((name) => isOffered(name, env))
  for (const name of all.filter((one) => !names.includes(one)))
    say(`system package not available: ${name}${name in ELSEWHERE ? `; ${ELSEWHERE[name]}` : ''}`)
  if (names.length === 0) return
  say(`running: ${line(names)}`)
  run('apt-get', ['install', '-y', '-qq', '--no-install-recommends', ...names], { env })
}

/** The first build of gVisor that continues a sandbox which was saved to disk. */
const GVISOR = 20_240_729

/**
 * Debian 12's gVisor is older than the one of its backports. The machine's own list of sources stays as it is: the
 * suite is added for these calls only, from the mirror that the machine uses.
 */
function installNewerGvisor() {
  const stamp = join(root, 'node_modules', '.ringfence-gvisor')
  if (
    process.getuid() !== 0 ||
    !existsSync('/usr/bin/apt-get') ||
    gvisorDate() >= GVISOR ||
    existsSync(stamp)
  )
    return
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive', LC_ALL: 'C' }
  const format = ['indextargets', '--format', '$(REPO_URI) $(CODENAME) $(LABEL)', 'Created-By: Packages']
  const lines = spawnSync('apt-get', format, { env, encoding: 'utf8' }).stdout.split('\n')
  const [uri, suite] = lines.find((line) => / [a-z]+ Debian$/.test(line))?.split(' ') ?? []
  writeFileSync(stamp, '')
  if (!uri) return
  const dir = mkdtempSync(join(tmpdir(), 'ringfence-apt-'))
  const own = '/etc/apt/sources.list'
  const line = `deb ${uri} ${suite}-backports main\n`
  writeFileSync(join(dir, 'sources.list'), `${existsSync(own) ? readFileSync(own, 'utf8') : ''}\n${line}`)
  const options = ['-qq', '-o', `Dir::Etc::sourcelist=${join(dir, 'sources.list')}`]
  say('runsc: installing the build of the backports')
  const apt = (...args) => spawnSync('apt-get', [...options, ...args], { env, stdio: 'ignore' }).status === 0
  if (!apt('update') || !apt('install', '-y', '--no-install-recommends', '-t', `${suite}-backports`, 'runsc'))
    say('runsc: not available there; paused gVisor sandboxes keep their memory')
  rmSync(dir, { recursive: true, force: true })
}

/** The date in the version of the installed gVisor. */
const gvisorDate = () =>
  Number(/(\d{8})\./.exec(spawnSync('runsc', ['--version'], { encoding: 'utf8' }).stdout ?? '')?.[1] ?? 0)

/** Where to get packages that only some distributions have. Tests that need one are skipped with a message. */
const ELSEWHERE = {
  runsc: 'available since Debian 12; otherwise install a gVisor release as /usr/local/bin/runsc',
}

/** A missing package must not prevent the installation of the others. */
const isOffered = (name, env) =>
  /Candidate: (?!\(none\))/.test(
    spawnSync('apt-cache', ['policy', name], { env: { ...env, LC_ALL: 'C' }, encoding: 'utf8' }).stdout,
  )

/** Builds the guest agent, and the attacks of the test suite that need C. */
function buildAgent() {
  if (process.platform !== 'linux') return
  const compiler = ['/usr/bin/gcc', '/usr/bin/cc'].find((file) => existsSync(file))
  const agent = join(root, 'guest', 'agent')
  const sources = [...filesIn(agent), join(root, 'guest', 'build-static.sh')]
  rebuild('guest agent', join(root, 'dist', 'guest', 'ringfence-agent'), sources, compiler, (out) =>
    run('sh', [join(agent, 'build.sh'), out]),
  )
  const front = join(root, 'guest', 'front')
  const frontSources = [...filesIn(front), ...filesIn(join(agent, 'common'))]
  rebuild('native front', join(root, 'dist', 'guest', 'ringfence-front'), frontSources, compiler, (out) =>
    run('sh', [join(front, 'build.sh'), out]),
  )
  const readonly = join(root, 'guest', 'qemu', 'readonly.c')
  rebuild(
    'template guard',
    join(root, 'dist', 'guest', 'ringfence-readonly.so'),
    [readonly],
    compiler,
    (out) => run(compiler, ['-O2', '-shared', '-fPIC', '-o', out, readonly]),
  )
  const probe = join(root, 'guest', 'probe', 'probe.c')
  rebuild('probe', join(root, 'dist', 'guest', 'ringfence-probe'), [probe], compiler, (out) =>
    run(compiler, ['-O1', '-static', '-o', out, probe]),
  )
}

function rebuild(name, out, sources, compiler, make) {
  if (!compiler) return say(`${name}: not built, no C compiler found`)
  if (upToDate(out, sources)) return
  say(`${name}: building`)
  mkdirSync(dirname(out), { recursive: true })
  make(out)
  writeFileSync(`${out}.stamp`, hashOf(sources))
}

function build() {
  const sources = [
    ...filesIn(join(root, 'src')),
    ...filesIn(join(root, 'test', 'conformance')),
    join(root, 'tsdown.config.ts'),
    join(root, 'bench', 'library.ts'),
  ]
  const out = join(root, 'dist', 'cli', 'ringfence.cjs')
  if (upToDate(out, sources)) return
  say('building')
  removeBuilt()
  run(process.execPath, [join(root, 'node_modules', 'tsdown', 'dist', 'run.mjs')])
  warm()
  writeFileSync(`${out}.stamp`, hashOf(sources))
}

/** Removes chunks of earlier builds, whose names contain a hash. */
function removeBuilt() {
  const dist = join(root, 'dist')
  for (const name of ['cli', 'bench']) rmSync(join(dist, name), { recursive: true, force: true })
  for (const dir of [dist, join(dist, 'test')])
    for (const entry of existsSync(dir) ? readdirSync(dir) : [])
      if (/\.(js|d\.ts)$/.test(entry)) rmSync(join(dir, entry))
}

/** Builds the console if its sources, or the client sources it uses, have changed. */
function buildConsole() {
  const web = join(root, 'web')
  if (!existsSync(join(web, 'vite.config.ts'))) return
  const sources = [
    ...filesIn(web),
    ...filesIn(join(root, 'src', 'client')),
    ...filesIn(join(root, 'src', 'model')),
    join(root, 'package-lock.json'),
  ]
  const out = join(root, 'dist', 'web', 'index.html')
  if (upToDate(out, sources)) return
  say('console: building')
  const vite = join(root, 'node_modules', 'vite', 'bin', 'vite.js')
  run(process.execPath, [vite, 'build', '--logLevel', 'warn', '-c', join(web, 'vite.config.ts')])
  writeFileSync(`${out}.stamp`, hashOf(sources))
}

/** Runs commands once to write the code caches; `run` last, because its start-up time matters most. */
function warm() {
  const home = mkdtempSync(join(tmpdir(), 'ringfence-warm-'))
  const env = { ...process.env, RINGFENCE_HOME: home }
  const commands = [
    ['doctor'],
    ['audit', 'verify'],
    ['check', 'command', 'ls | wc -l'],
    ['check', 'url', 'http://127.0.0.1/'],
    ['eval', '1'],
    ['run', '-c', 'true'],
    ['run', '--', 'true'],
  ]
  for (const args of commands)
    spawnSync(process.execPath, [join(root, 'dist', 'cli', 'warm.cjs'), ...args], {
      cwd: tmpdir(),
      env,
      stdio: 'ignore',
    })
  rmSync(home, { recursive: true, force: true })
}

/** Whether the file was made from exactly these sources. */
export const upToDate = (out, sources) =>
  existsSync(out) && existsSync(`${out}.stamp`) && readFileSync(`${out}.stamp`, 'utf8') === hashOf(sources)

/** A digest of the names and contents of files. */
export function hashOf(files) {
  const hash = createHash('sha256')
  for (const file of files) hash.update(file.slice(root.length)).update(readFileSync(file))
  return hash.digest('hex')
}

/** All files below a directory. */
export function filesIn(dir) {
  if (!existsSync(dir)) return []
  return readdirSync(dir, { recursive: true })
    .map((name) => join(dir, name))
    .filter((path) => statSync(path).isFile())
    .sort()
}

export function run(command, args, options = {}) {
  const result = spawnSync(command, args, { cwd: root, stdio: ['ignore', 'inherit', 'inherit'], ...options })
  if (result.status === 0) return
  say(`${command} ${args.join(' ')} failed${result.error ? `: ${result.error.message}` : ''}`)
  process.exit(result.status ?? 125)
}

/** The output of a command. */
export const output = (command, args, options = {}) =>
  execFileSync(command, args, { cwd: root, encoding: 'utf8', ...options })

if (import.meta.url === pathToFileURL(process.argv[1]).href) setup()
