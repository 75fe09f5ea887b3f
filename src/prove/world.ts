import { execFileSync, spawn } from 'node:child_process'
import { createSocket } from 'node:dgram'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { createServer, type Server } from 'node:net'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Backend, BackendSandbox } from '../backends/backend.ts'
import { hostPath } from '../host/files/facts.ts'
import { pinsOf } from '../host/files/git-pins.ts'
import { Vault } from '../host/secrets/vault.ts'
import { SandboxError } from '../model/errors.ts'
import type { Plan, WritableRoot } from '../model/plan.ts'
import { parseSpec } from '../model/spec.ts'
import { writablePathsOf } from '../policy/paths/pins.ts'
import { PROTECTION, protectedBy } from '../policy/paths/protect.ts'
import { type EgressFacts, pathsOf, planFor, sandboxPolicyOf } from '../policy/plan.ts'
import { egressWith } from '../supervisor/egress.ts'

/** What attacks try to read. */
export const SECRET = 's3cr3t-canary'

/** The things outside that an attack tries to reach, planted where sandboxes like to be careless. */
export type World = {
  readonly workspace: string
  /** Directories outside the sandbox, each with a file `secret`. */
  readonly outside: readonly string[]
  readonly env: Readonly<Record<string, string>>
  readonly port: number
  readonly pid: number
  /** A program outside that runs, and its process. */
  readonly runner: { readonly pid: number; readonly file: string }
  readonly shm: number
  readonly abstract: string
  /** A port for datagrams, and what came there so far. */
  readonly datagrams: { readonly port: number; readonly heard: () => string }
  readonly probe: string
  readonly close: () => Promise<void>
}

/** Plants everything; `probe` is the program that makes system calls which no shell can make. */
export async function makeWorld(probe: string): Promise<World> {
  const base = mkdtempSync(join(tmpdir(), 'rf-world-'))
  const outside = [join(base, 'outside'), ...plantedElsewhere()]
  for (const dir of outside) {
    mkdirSync(dir, { recursive: true })
    for (const name of ['.ssh', '.aws']) mkdirSync(join(dir, name))
    for (const name of ['secret', '.ssh/id_rsa', '.aws/credentials', '.bashrc'])
      writeFileSync(join(dir, name), SECRET)
  }
  const workspace = join(base, 'workspace')
  mkdirSync(workspace)
  const { server, port, close: closeListeners } = await listener(outside)
  const datagrams = await datagramListener()
  const abstract = `rf-world-${process.pid}-${port}`
  const socket = await pythonListener(abstract, join(outside[0] as string, DATAGRAM_SOCKET))
  const sleeper = spawn('sleep', ['3600'], { env: { RF_SECRET: SECRET }, stdio: 'ignore' })
  const file = join(outside[0] as string, 'runner')
  copyFileSync(realpathSync('/bin/sleep'), file)
  chmodSync(file, 0o755)
  const runner = spawn(file, ['3600'], { stdio: 'ignore' })
  const shm = Number(execFileSync(probe, ['shm-make', SECRET], { encoding: 'utf8' }))
  return {
    workspace,
    outside,
    env: { RF_SECRET: SECRET },
    port,
    pid: sleeper.pid as number,
    runner: { pid: runner.pid as number, file },
    shm,
    abstract,
    datagrams,
    probe,
    close: async () => {
      sleeper.kill('SIGKILL')
      runner.kill('SIGKILL')
      server.close()
      closeListeners()
      datagrams.close()
      socket.close()
      execFileSync(probe, ['shm-remove', String(shm)])
      for (const dir of [base, ...outside]) rmSync(dir, { recursive: true, force: true })
    },
  }
}

/** A sandbox with a private /tmp hides what lies in the host's; so secrets are planted in other places too. */
function plantedElsewhere(): string[] {
  const places = ['/var/tmp', '/dev/shm', homedir()]
  return places.flatMap((place) => {
    try {
      return [mkdtempSync(join(place, 'rf-world-'))]
    } catch {
      return []
    }
  })
}

/** On both of the host's loopback addresses, and on a socket in each directory outside. */
async function listener(
  outside: readonly string[],
): Promise<{ server: Server; port: number; close: () => void }> {
  const listening = (...where: readonly [number, string] | readonly [string]): Promise<Server> =>
    new Promise((resolve) => {
      const server = createServer((socket) => socket.on('error', () => {}).end('hello'))
      const done = (): void => resolve(server)
      if (where.length === 1) server.listen(where[0], done)
      else server.listen(where[0], where[1], done)
    })
  const server = await listening(0, '127.0.0.1')
  const { port } = server.address() as { port: number }
  const others = await Promise.all([
    listening(port, '127.0.0.2'),
    ...outside.map((dir) => listening(join(dir, 'sock'))),
  ])
  return { server, port, close: () => others.forEach((other) => void other.close()) }
}

async function datagramListener(): Promise<{ port: number; heard: () => string; close: () => void }> {
  const socket = createSocket('udp4')
  let heard = ''
  socket.on('message', (message) => {
    heard += `${message}\n`
  })
  await new Promise<void>((resolve) => socket.bind(0, '127.0.0.1', resolve))
  return { port: socket.address().port, heard: () => heard, close: () => void socket.close() }
}

const DATAGRAM_SOCKET = 'datagram.sock'

/** On an abstract socket, and on one for datagrams: Node has neither everywhere. */
async function pythonListener(name: string, path: string): Promise<{ close: () => void }> {
  const script = `import socket,sys,time
s=socket.socket(socket.AF_UNIX)
s.bind("\\0"+sys.argv[1])
s.listen(9)
d=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM)
d.bind(sys.argv[2])
print("up",flush=True)
time.sleep(3600)`
  const python = ['/usr/bin/python3', '/usr/local/bin/python3'].find((path) => existsSync(path))
  if (!python) return { close: () => {} }
  const child = spawn(python, ['-c', script, name, path], { stdio: ['ignore', 'pipe', 'ignore'] })
  await new Promise((resolve) => child.stdout.once('data', resolve))
  return { close: () => child.kill('SIGKILL') }
}

/** A fresh workspace with a git repository, another nested below it, and a socket on which a program of the host listens. */
export function freshWorkspace(world: Pick<World, 'workspace' | 'outside'>): string {
  const dir = mkdtempSync(join(world.workspace, 'ws-'))
  for (const repository of [dir, join(dir, 'vendor', 'sub')]) {
    mkdirSync(join(repository, '.git', 'hooks'), { recursive: true })
    for (const sub of ['objects/info', 'refs/heads', 'info', 'logs'])
      mkdirSync(join(repository, '.git', sub), { recursive: true })
    writeFileSync(join(repository, '.git', 'HEAD'), 'ref: refs/heads/main\n')
    writeFileSync(join(repository, '.git', 'config'), '[core]\n\trepositoryformatversion = 0\n')
    writeFileSync(join(repository, '.git', 'hooks', 'pre-push'), '#!/bin/sh\n')
    chmodSync(join(repository, '.git', 'hooks', 'pre-push'), 0o644)
  }
  writeFileSync(join(dir, 'README.md'), 'readme\n')
  plantSockets(dir, world.outside[0] ?? '')
  plantSettings(dir)
  return dir
}

/** The names of sockets on which programs of the host listen. */
function plantSockets(dir: string, outside: string): void {
  for (const name of ['sock', DATAGRAM_SOCKET])
    if (existsSync(join(outside, name))) linkSync(join(outside, name), join(dir, `host-${name}`))
}

/** A nested repository whose git directory lies elsewhere, and settings that point into the workspace. */
function plantSettings(dir: string): void {
  const split = join(dir, 'real', 'split.git')
  for (const sub of ['hooks', 'objects', 'refs']) mkdirSync(join(split, sub), { recursive: true })
  writeFileSync(join(split, 'HEAD'), 'ref: refs/heads/main\n')
  writeFileSync(join(split, 'config'), '[core]\n\trepositoryformatversion = 0\n')
  mkdirSync(join(dir, 'vendor', 'split'))
  writeFileSync(join(dir, 'vendor', 'split', '.git'), 'gitdir: ../../real/split.git\n')
  writeFileSync(join(dir, 'shared.gitconfig'), '')
  mkdirSync(join(dir, 'tools'))
  const settings = '[core]\n\thooksPath = tools/hooks\n[include]\n\tpath = ../shared.gitconfig\n'
  writeFileSync(join(dir, '.git', 'config'), settings, { flag: 'a' })
}

const isProtected = (name: string): boolean => protectedBy(PROTECTION, name) !== undefined

/** Plans come from policy, here as everywhere. */
export function planOf(spec: Record<string, unknown>, egress?: EgressFacts, root?: WritableRoot): Plan {
  const policy = sandboxPolicyOf({}, homedir())
  const parsed = parseSpec(spec)
  const observe = (path: string) => hostPath(path, (name) => policy.blocked.includes(name))
  const paths = new Map(pathsOf(policy, parsed).map((path) => [path, observe(path)]))
  const facts = {
    uid: process.getuid?.() ?? -1,
    home: homedir(),
    stateDir: observe('/nonexistent-ringfence-state'),
    hostMemoryMb: 4096,
    cwd: '/',
    paths,
    pins: writablePathsOf(parsed).map((path) =>
      pinsOf(path, { home: homedir(), globals: [], isProtected, skip: PROTECTION.exceptBelow }),
    ),
    egress,
    root,
  }
  const plan = planFor(policy, parsed, facts)
  if (plan instanceof SandboxError) throw plan
  return plan
}

/** Opens a sandbox as the gate does: with a proxy of its own where the spec reaches out. */
export async function openFor(
  backend: Backend,
  spec: Record<string, unknown>,
  root?: WritableRoot,
): Promise<BackendSandbox> {
  // Without isolation no secret is brokered: the control puts it into the environment.
  const { secrets, network, ...rest } = spec
  if (backend.name === 'native')
    return backend.open(planOf({ ...rest, env: secrets ? { TOKEN: SECRET } : {} }))
  const { mode } = (network ?? {}) as { readonly mode?: string }
  if (!secrets && mode !== 'fetch') return backend.open(planOf(spec, undefined, root))
  const prepared = egressWith({
    trail: { append: async () => {} },
    allowPrivate: [],
    upstreams: [],
    declared: [],
    vault: new Vault({}),
    env: { RF_BROKERED: SECRET },
    systemCertificates: () => '',
    nodePreload: () => undefined,
  })(parseSpec(spec))
  const plan = planOf(spec, prepared.facts, root)
  const egress = prepared.start(plan, 'sb_conformance')
  const sandbox = await backend.open(plan, {
    onTunnel: (stream, names) => egress.handle(stream, names),
  })
  void sandbox.ended.then(() => egress.close())
  return sandbox
}

/** Whether a file exists. */
export const exists = existsSync
/** The text of a file; empty if there is none. */
export const contentOf = (path: string): string => (existsSync(path) ? readFileSync(path, 'utf8') : '')
