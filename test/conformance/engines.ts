import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  statfsSync,
  writeFileSync,
} from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { ImageStore } from '../../src/backends/images/store.ts'
import { packageRoot } from './world.ts'

/** Real container engines for the tests: started here, on sockets and in directories of their own, and stopped again. */

export type TestEngine = {
  readonly socket: string
  readonly pid: number
  readonly close: () => Promise<void>
}

const find = (name: string): string | undefined =>
  ['/usr/sbin', '/usr/bin', '/usr/local/bin'].map((dir) => join(dir, name)).find((path) => existsSync(path))

/** Why an engine cannot be started here; in CI that is a failure. */
export function whyNot(engine: 'docker' | 'podman' | 'gvisor'): string | undefined {
  const program = { docker: 'dockerd', podman: 'podman', gvisor: 'runsc' }[engine]
  if (!find(program)) return `${program} is not installed`
  if (engine !== 'gvisor' && process.getuid?.() !== 0) return `only root can start ${program}`
  if (process.getuid?.() === 0 && !mayMount()) return 'this place may not mount file systems'
  return undefined
}

/** In CI a test that cannot run is a failure. */
export function skipped(engine: Parameters<typeof whyNot>[0]): boolean {
  const reason = whyNot(engine)
  if (reason && process.env.CI) throw new Error(`${engine}: ${reason}`)
  if (reason) process.stderr.write(`skipped: ${engine}: ${reason}\n`)
  return reason !== undefined
}

const CAP_SYS_ADMIN = 21n

/** Root in a container often has no CAP_SYS_ADMIN. */
function mayMount(): boolean {
  const effective = /^CapEff:\s*([0-9a-f]+)/m.exec(readFileSync('/proc/self/status', 'utf8'))?.[1]
  return ((BigInt(`0x${effective}`) >> CAP_SYS_ADMIN) & 1n) === 1n
}

const OVERLAY = 0x794c7630

/** An overlay cannot be mounted on another overlay; then files are copied. */
const storage = (dir: string, overlay: string): string => (statfsSync(dir).type === OVERLAY ? 'vfs' : overlay)

/** Created once for all tests of a working copy: its content is addressed by digest. */
export const testState = (): string => join(packageRoot(), 'dist', 'test', 'state')
export const testImages = (): ImageStore => new ImageStore(testState())

export function startDocker(): Promise<TestEngine> {
  const dir = mkdtempSync(join(tmpdir(), 'rf-docker-'))
  const socket = join(dir, 'docker.sock')
  const directories = [
    '--data-root',
    join(dir, 'data'),
    '--exec-root',
    join(dir, 'exec'),
    '--pidfile',
    join(dir, 'pid'),
  ]
  const network = [
    '--bridge=none',
    '--iptables=false',
    '--ip6tables=false',
    '--ip-forward=false',
    '--ip-masq=false',
  ]
  const args = [
    '-H',
    `unix://${socket}`,
    ...directories,
    ...network,
    '--storage-driver',
    storage(dir, 'overlay2'),
    '--config-file',
    daemonConfig(dir),
    '--cgroup-parent',
    GROUPS,
    // A containerd of the system is used if it runs; our objects in it must not collide with others.
    '--containerd-namespace',
    basename(dir),
    '--containerd-plugins-namespace',
    `${basename(dir)}-plugins`,
  ]
  return start(dir, socket, find('dockerd') as string, args)
}

/** gVisor as a second runtime, if installed. Our containers have no network, so gVisor needs none either. */
function daemonConfig(dir: string): string {
  const file = join(dir, 'daemon.json')
  const path = find('runsc')
  const runtimes = path ? { runsc: { path, runtimeArgs: ['--network=none'] } } : {}
  writeFileSync(file, JSON.stringify({ runtimes }))
  return file
}

export function startPodman(): Promise<TestEngine> {
  const dir = mkdtempSync(join(tmpdir(), 'rf-podman-'))
  const socket = join(dir, 'podman.sock')
  mkdirSync(join(dir, 'conf'))
  // PLATFORM: crun knows no hybrid control groups; runc does.
  const settings = '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
  writeFileSync(join(dir, 'conf', 'containers.conf'), settings)
  const args = [
    '--root',
    join(dir, 'data'),
    '--runroot',
    join(dir, 'run'),
    '--storage-driver',
    storage(dir, 'overlay'),
  ]
  return start(
    dir,
    socket,
    find('podman') as string,
    [...args, 'system', 'service', '--time=0', `unix://${socket}`],
    {
      CONTAINERS_CONF: join(dir, 'conf', 'containers.conf'),
    },
  )
}

async function start(
  dir: string,
  socket: string,
  file: string,
  args: readonly string[],
  env: Record<string, string> = {},
): Promise<TestEngine> {
  const PATH = '/usr/sbin:/usr/bin:/sbin:/bin'
  // In its own mount namespace with its own /run, so that its files disappear with it.
  const own = 'mount -t tmpfs -o mode=755 tmpfs /run && exec "$0" "$@"'
  const child = spawn('unshare', ['--mount', '--propagation', 'slave', 'sh', '-c', own, file, ...args], {
    // PLATFORM: Podman's monitor writes a file called `oom` wherever it was started.
    cwd: dir,
    env: { PATH, HOME: dir, ...env },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let said = ''
  child.stderr.on('data', (chunk: Buffer) => {
    said = (said + chunk.toString('utf8')).slice(-4000)
  })
  let stopped: Promise<void> | undefined
  const close = (): Promise<void> => {
    stopped ??= stop(child, dir)
    return stopped
  }
  for (let tries = 0; tries < 300; tries++) {
    if (child.exitCode !== null) break
    if (await answers(socket)) return { socket, pid: child.pid as number, close }
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
  await close()
  throw new Error(`${file} did not start: ${said.split('\n').slice(-4).join(' ')}`)
}

const answers = (socket: string): Promise<boolean> =>
  new Promise((resolve) => {
    const client = connect(socket, () => client.write('GET /_ping HTTP/1.0\r\n\r\n'))
    client.setTimeout(2000, () => client.destroy())
    client.on('data', (data) => resolve(data.toString('latin1').includes('200')))
    client.on('error', () => resolve(false))
    client.on('close', () => resolve(false))
  })

async function stop(child: ChildProcess, dir: string): Promise<void> {
  const ended = new Promise((resolve) => (child.exitCode === null ? child.once('exit', resolve) : resolve(0)))
  child.kill('SIGCONT')
  child.kill('SIGTERM')
  const late = setTimeout(() => child.kill('SIGKILL'), 20_000)
  await ended
  clearTimeout(late)
  // Engines mount their own directories; unmount the deepest first.
  const mounts = readFileSync('/proc/self/mounts', 'utf8')
    .split('\n')
    .map((line) => line.split(' ')[1] ?? '')
  for (const mount of mounts.filter((path) => path.startsWith(`${dir}/`)).reverse())
    spawnSync('umount', ['-l', mount])
  rmSync(dir, { recursive: true, force: true })
  removeGroups()
}

/** The parent of its containers' cgroups; one for each process, so that tests in parallel do not count each other's. */
export const GROUPS = `rf-docker-${process.pid}`

/** Removes it, unless another engine of this process still uses it. */
function removeGroups(): void {
  for (const controller of ['', ...readdirSync('/sys/fs/cgroup')])
    try {
      rmdirSync(join('/sys/fs/cgroup', controller, GROUPS))
    } catch {
      // Missing, or in use.
    }
}
