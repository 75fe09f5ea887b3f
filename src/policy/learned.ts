import type { Use } from '../model/command.ts'
import type { Decision } from '../model/decision.ts'
import { isWithin } from '../model/files/path.ts'

/** The resources that a run used, and the smallest policy that grants them. */
export type Learned = {
  readonly workspace: string
  readonly line: string
  readonly decision: Decision
  /** Paths outside the workspace that it may read. */
  readonly reads: readonly string[]
  readonly hosts: readonly string[]
  /** Requests that the policy does not grant, with the reason. */
  readonly leftOut: readonly { readonly what: string; readonly why: string }[]
}

/** Paths that every sandbox shows or has its own version of. */
const SHOWN = [
  '/usr',
  '/bin',
  '/sbin',
  '/lib',
  '/lib32',
  '/lib64',
  '/etc',
  '/proc',
  '/sys',
  '/dev',
  '/tmp',
  '/run',
  '/var/tmp',
]

/** The paths of one kind outside of those that a sandbox shows anyway. */
export function usesOutside(uses: readonly Use[], kind: Use['kind'], workspace: string): readonly string[] {
  const inside = [workspace, ...SHOWN]
  const paths = uses.filter((use) => use.kind === kind).map(({ path }) => plain(path))
  return [...new Set(paths)]
    .filter((path) => path !== '/' && !inside.some((root) => isWithin(path, root)))
    .sort()
}

/** Without dots and double slashes; symlinks are resolved on the host. */
function plain(path: string): string {
  const names: string[] = []
  for (const name of path.split('/')) {
    if (name === '..') names.pop()
    else if (name !== '' && name !== '.') names.push(name)
  }
  return `/${names.join('/')}`
}

/** Many files in one directory are replaced by the directory. */
export function gathered(paths: readonly string[]): readonly string[] {
  const counts = new Map<string, string[]>()
  for (const path of paths) {
    const parent = path.slice(0, path.lastIndexOf('/')) || '/'
    counts.set(parent, [...(counts.get(parent) ?? []), path])
  }
  const found = [...counts].flatMap(([parent, files]) =>
    files.length > MANY && parent !== '/' ? [parent] : files,
  )
  return found.filter((path) => !found.some((other) => other !== path && isWithin(path, other))).sort()
}

const MANY = 5

/** The policy as an operator would write it; omitted requests are listed in comments. */
export function learnedPolicy(learned: Learned): string {
  const { workspace, line, decision, reads, hosts, leftOut } = learned
  const programs = [...new Set(decision.commands.map(({ argv }) => argv[0] ?? '').filter(Boolean))]
  return [
    `# learned from: ${oneLine(line)}`,
    `# run it with: ringfence run ${flags(reads, hosts)}-c '…'`,
    ...leftOut.map(({ what, why }) => `# left out: ${oneLine(what)} (${oneLine(why)})`),
    '[policy]',
    `allowed_host_prefixes = ${listText([workspace, ...reads])}`,
    `allowed_network_modes = ${listText(hosts.length > 0 ? ['offline', 'fetch'] : ['offline'])}`,
    'default_action = "ask"',
    ...rulesText(decision),
    '',
    '[commands]',
    `allowed = ${listText(programs)}`,
    ...(hosts.length > 0 ? ['', '[network]', `allow_hosts = ${listText(hosts)}`] : []),
    '',
  ].join('\n')
}

const oneLine = (text: string): string => text.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]/g, ' ')

const flags = (reads: readonly string[], hosts: readonly string[]): string =>
  [...reads.map((path) => `--read ${path} `), ...hosts.map((host) => `--allow-host ${host} `)]
    .map(oneLine)
    .join('')

const quoted = (text: string): string => JSON.stringify(text)
const listText = (items: readonly string[]): string => `[${items.map(quoted).join(', ')}]`

/** One rule per program and first word, with the command line as its example. */
function rulesText({ commands }: Decision): readonly string[] {
  const prefixes = new Map(commands.map(({ argv }) => [JSON.stringify(prefixOf(argv)), argv]))
  return [...prefixes].flatMap(([, argv]) => {
    const prefix = prefixOf(argv)
    if (prefix.length === 0) return []
    return ['', '[[policy.rule]]', `prefix = ${listText(prefix)}`, 'action = "sandbox"', 'why = "learned"']
  })
}

/** The program, and its subcommand if the next word looks like one. */
function prefixOf(argv: readonly string[]): readonly string[] {
  const [program, next] = argv
  if (program === undefined) return []
  return next !== undefined && /^[a-z][a-z-]*$/.test(next) ? [program, next] : [program]
}
