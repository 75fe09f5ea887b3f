import { execFileSync } from 'node:child_process'

/**
 * A network of its own for each node, joined by a bridge in one more: what a node may reach can be cut without a trace. The test,
 * its witness and PostgreSQL are at two addresses of the machine's end.
 */
export type Network = {
  /** Of PostgreSQL, and of everything else of the test. */
  readonly database: string
  readonly outside: string
  readonly address: (name: string) => string
  /** What runs a program in the network of a node. */
  readonly wrap: (name: string) => readonly string[]
  /** Drops everything between a node and these addresses, both ways. */
  readonly cut: (name: string, addresses: readonly string[]) => void
  readonly heal: (name: string) => void
  readonly remove: () => void
}

const run = (file: string, ...args: string[]): void => {
  execFileSync(file, args, { stdio: ['ignore', 'ignore', 'pipe'] })
}

export function makeNetwork(names: readonly string[]): Network {
  const tag = `rf${process.pid % 100_000}`
  const base = `10.${200 + (process.pid % 50)}.${(process.pid >> 6) % 250}`
  const hub = `${tag}hub`
  const [database, outside] = [`${base}.254`, `${base}.253`]
  const address = (name: string): string => `${base}.${names.indexOf(name) + 1}`
  const space = (name: string): string => `${tag}${name}`
  const inside = (name: string): readonly string[] => ['nsenter', `--net=/run/netns/${space(name)}`]
  run('ip', 'netns', 'add', hub)
  run('ip', '-n', hub, 'link', 'add', 'br0', 'type', 'bridge')
  run('ip', '-n', hub, 'link', 'set', 'br0', 'up')
  const plug = (port: string): void => run('ip', '-n', hub, 'link', 'set', port, 'master', 'br0', 'up')
  run('ip', 'link', 'add', tag, 'type', 'veth', 'peer', 'name', 'host', 'netns', hub)
  plug('host')
  // The first one is the source of what the test itself sends.
  for (const own of [outside, database]) run('ip', 'addr', 'add', `${own}/24`, 'dev', tag)
  run('ip', 'link', 'set', tag, 'up')
  for (const name of names) {
    run('ip', 'netns', 'add', space(name))
    run('ip', '-n', space(name), 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', name, 'netns', hub)
    plug(name)
    run('ip', '-n', space(name), 'addr', 'add', `${address(name)}/24`, 'dev', 'eth0')
    for (const link of ['eth0', 'lo']) run('ip', '-n', space(name), 'link', 'set', link, 'up')
  }
  const table = (name: string, ...args: string[]): void => {
    const [file, ...rest] = [...inside(name), 'iptables', ...args] as [string, ...string[]]
    run(file, ...rest)
  }
  return {
    database,
    outside,
    address,
    wrap: inside,
    cut: (name, addresses) => {
      for (const one of addresses) {
        table(name, '-A', 'OUTPUT', '-d', one, '-j', 'DROP')
        table(name, '-A', 'INPUT', '-s', one, '-j', 'DROP')
      }
    },
    heal: (name) => table(name, '-F'),
    remove: () => {
      for (const name of names) run('ip', 'netns', 'del', space(name))
      run('ip', 'netns', 'del', hub)
    },
  }
}
