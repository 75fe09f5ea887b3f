import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import {
  appendFileSync,
  chmodSync,
  chownSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { childrenOf } from '../../src/host/system.ts'

/** A real PostgreSQL for the tests, with its own directory and unix socket, by default without a TCP port. */
export type Postgres = {
  readonly url: string
  /** An empty database on the same server. */
  readonly fresh: (name: string) => string
  /** Stops all its processes (SIGSTOP), until `thaw`. */
  readonly freeze: () => void
  readonly thaw: () => void
  /** Stops it, which cuts all connections, and starts it again. */
  readonly restart: () => Promise<void>
  readonly stop: () => Promise<void>
}

const isRoot = process.getuid?.() === 0

/** Where Debian keeps the newest server, or nothing. */
function programs(): string | undefined {
  const base = '/usr/lib/postgresql'
  if (!existsSync(base)) return undefined
  const newest = readdirSync(base).sort((a, b) => Number(b) - Number(a))[0]
  return newest && join(base, newest, 'bin')
}

export const hasPostgres = programs() !== undefined

/** `address`: where it also listens for TCP, for clients in that network and in `clients`. */
export async function startPostgres({
  address,
  clients,
}: {
  readonly address?: string
  readonly clients?: string
} = {}): Promise<Postgres> {
  const bin = programs()
  if (!bin) throw new Error('postgresql is not installed: npm run setup')
  const dir = mkdtempSync(join(tmpdir(), 'rf-pg-'))
  // PostgreSQL refuses to run as root; the package brings a user.
  const as = isRoot ? ['runuser', '-u', 'postgres', '--'] : []
  if (isRoot) chownSync(dir, ...idOf('postgres'))
  chmodSync(dir, 0o755)
  const run = (...argv: string[]): string => {
    const [file, ...args] = [...as, ...argv] as [string, ...string[]]
    return execFileSync(file, args, { encoding: 'utf8', cwd: dir, stdio: ['ignore', 'pipe', 'pipe'] })
  }
  const data = join(dir, 'data')
  run(join(bin, 'initdb'), '-D', data, '-U', 'ringfence', '-A', 'trust', '--no-sync', '-E', 'UTF8')
  const argv = [
    ...as,
    join(bin, 'postgres'),
    '-D',
    data,
    '-k',
    dir,
    '-c',
    `listen_addresses=${address ?? ''}`,
    '-c',
    'max_connections=60',
  ]
  for (const from of address ? ['samenet', ...(clients ? [clients] : [])] : [])
    appendFileSync(join(data, 'pg_hba.conf'), `host all all ${from} trust\n`)
  const [file, ...args] = argv as [string, ...string[]]
  const url = (name: string): string =>
    address
      ? `postgres://ringfence@${address}/${name}`
      : `postgres://ringfence@/${name}?host=${encodeURIComponent(dir)}`
  const launch = async (): Promise<ChildProcess> => {
    const child = spawn(file, args, { cwd: dir, stdio: 'ignore' })
    for (let tries = 0; ; tries++) {
      try {
        run(join(bin, 'psql'), '-h', dir, '-U', 'ringfence', '-d', 'postgres', '-c', 'select 1')
        return child
      } catch (error) {
        if (tries > 100) throw error
        await new Promise((resolve) => setTimeout(resolve, 100))
      }
    }
  }
  let server = await launch()
  const stop = async (): Promise<void> => {
    const ended = new Promise((resolve) => server.once('exit', resolve))
    // Through pg_ctl: behind runuser the process that we started is not the server itself.
    run(join(bin, 'pg_ctl'), '-D', data, '-m', 'immediate', 'stop')
    await ended
  }
  const fresh = (name: string): string => {
    run(join(bin, 'createdb'), '-h', dir, '-U', 'ringfence', name)
    return url(name)
  }
  const signal = (name: NodeJS.Signals): void => {
    const postmaster = Number(readFileSync(join(data, 'postmaster.pid'), 'utf8').split('\n')[0])
    for (const pid of [postmaster, ...childrenOf(postmaster)]) process.kill(pid, name)
  }
  return {
    url: fresh('ringfence'),
    fresh,
    freeze: () => signal('SIGSTOP'),
    thaw: () => {
      signal('SIGCONT')
      // PLATFORM: runuser stops itself together with what it runs.
      server.kill('SIGCONT')
    },
    restart: async () => {
      await stop()
      server = await launch()
    },
    stop: async () => {
      await stop()
      rmSync(dir, { recursive: true, force: true })
    },
  }
}

function idOf(user: string): [number, number] {
  const line = execFileSync('getent', ['passwd', user], { encoding: 'utf8' }).split(':')
  return [Number(line[2]), Number(line[3])]
}
