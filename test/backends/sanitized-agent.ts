import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Duplex } from 'node:stream'
import { GuestSandbox } from '../../src/backends/guest-sandbox.ts'
import { Session } from '../../src/host/guest/session.ts'
import { packageRoot, planOf } from '../conformance/world.ts'

/** The agent, compiled with sanitizers, in plain bubblewrap without our other isolation layers. */
export type Rig = { readonly base: string; readonly workspace: string; readonly agent: string }

const FLAGS = '-std=gnu11 -g -O1 -fno-strict-aliasing -fno-omit-frame-pointer -DRINGFENCE_TEST'.split(' ')
const CHECKS = ['-fsanitize=address,undefined', '-fno-sanitize-recover=all']
/** The exit code of the sanitizers, which the agent does not use otherwise. */
export const REPORTED = 99

/** Why this build is not available on this host, or nothing. */
export function whyNot(): string | undefined {
  if (process.platform !== 'linux') return 'needs Linux'
  if (!existsSync('/usr/bin/gcc') || !existsSync('/usr/bin/bwrap')) return 'needs gcc and bubblewrap'
  try {
    const source = 'int main(void){return 0;}'
    execFileSync('/usr/bin/gcc', [...CHECKS, '-x', 'c', '-', '-o', '/dev/null'], {
      input: source,
      stdio: 'pipe',
    })
    return undefined
  } catch {
    return 'this compiler has no sanitizers'
  }
}

export function makeRig(): Rig {
  const base = realpathSync(mkdtempSync(join(tmpdir(), 'rf-sanitized-')))
  const workspace = join(base, 'workspace')
  const agent = join(base, 'agent')
  mkdirSync(workspace)
  mkdirSync(join(base, 'reports'))
  const sources = join(packageRoot(), 'guest', 'agent')
  const files = readdirSync(sources, { recursive: true, encoding: 'utf8' }).filter((name) =>
    name.endsWith('.c'),
  )
  execFileSync('/usr/bin/gcc', [...FLAGS, ...CHECKS, '-I.', '-o', agent, ...files], {
    cwd: sources,
    stdio: 'pipe',
  })
  return { base, workspace, agent }
}

export const dropRig = (rig: Rig): void => rmSync(rig.base, { recursive: true, force: true })

/** All sanitizer reports so far. */
export const reportsOf = ({ base }: Rig): string =>
  readdirSync(join(base, 'reports'))
    .map((name) => readFileSync(join(base, 'reports', name), 'utf8'))
    .join('\n')

export type Served = {
  readonly channel: Duplex
  readonly child: ChildProcess
  readonly exited: Promise<{
    readonly code: number | null
    readonly signal: string | null
    readonly said: string
  }>
}

export function serve(rig: Rig): Served {
  const { base, workspace, agent } = rig
  const config = join(base, 'config')
  writeFileSync(
    config,
    configOf(workspace)
      .map((field) => `${field}\0`)
      .join(''),
  )
  const place = [
    '--ro-bind',
    '/',
    '/',
    '--tmpfs',
    '/tmp',
    '--bind',
    base,
    base,
    '--proc',
    '/proc',
    '--dev',
    '/dev',
  ]
  const fences = ['--unshare-all', '--die-with-parent', '--as-pid-1', '--cap-drop', 'ALL', '--new-session']
  const options = `log_path=${join(base, 'reports', 'report')}:exitcode=${REPORTED}:detect_leaks=0:abort_on_error=0`
  const child = spawn('/usr/bin/bwrap', [...fences, ...place, agent, 'unconfined', '4', '3'], {
    stdio: ['ignore', 'ignore', 'pipe', 'pipe', openSync(config, 'r')],
    env: { PATH: '/usr/bin:/bin', ASAN_OPTIONS: options, UBSAN_OPTIONS: options },
  })
  let said = ''
  child.stderr?.on('data', (chunk: Buffer) => {
    said += chunk
  })
  const exited = new Promise<Awaited<Served['exited']>>((resolve) =>
    child.on('close', (code, signal) => resolve({ code, signal, said })),
  )
  const channel = child.stdio[3] as Duplex
  channel.on('error', () => {})
  return { channel, child, exited }
}

const configOf = (workspace: string): readonly string[] => [
  ...['persistent', 'cwd', workspace, 'env', 'PATH=/usr/local/bin:/usr/bin:/bin', 'env', 'HOME=/tmp'],
  ...[
    'supervise',
    workspace,
    'protect-root',
    '.git',
    'protect-inner',
    '.git/hooks',
    'protect-name',
    '.envrc',
  ],
  ...[
    'proxy-port',
    '3128',
    'memory',
    '4000000000',
    'disk',
    '1000000000',
    'processes',
    '800',
    'check-interval',
    '40',
  ],
]

/** The same as any sandbox with an agent, from here on. */
export function sandboxOn(
  rig: Rig,
  onTunnel?: (stream: Duplex) => void,
): { readonly sandbox: GuestSandbox; readonly session: Session; readonly served: Served } {
  const served = serve(rig)
  const session = new Session(served.channel, onTunnel)
  const sandbox = new GuestSandbox(planOf({ workspace: rig.workspace }), {
    session: async () => session,
    layersOf: () => [],
    counts: () => ({ oomKills: 0, pidsRefused: 0 }),
    ended: session.ended,
    close: async () => {
      session.close()
      await served.exited
    },
  })
  return { sandbox, session, served }
}
