import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { READING } from '../../src/policy/rules/reading.ts'

/** Random command forms for the programs that the policy may run on the host. */

/** Stands in a form for the file that is put there. */
export const FILE = '\uE000'

/** One form: a program, its file on this machine, and its arguments. */
export type Form = { readonly name: string; readonly path: string; readonly args: readonly string[] }

const SHELL_RULES = new Set(['reading/shell', 'reading/versions', 'reading/short-versions'])
const MORE = ['egrep', 'fgrep', 'mawk', 'gawk', 'fdfind']
/** They wait, or show this machine only. */
const LEFT_OUT = new Set(['type', 'sleep', 'tput'])

/** Programs that can be `allow` and are installed, with the file that bash would start. */
export function programs(path = process.env.PATH ?? ''): readonly (readonly [string, string])[] {
  const names = READING.filter(({ id }) => !SHELL_RULES.has(id)).flatMap(({ prefix }) => prefix[0] ?? [])
  return [...new Set([...names, ...MORE])]
    .filter((name) => !LEFT_OUT.has(name))
    .flatMap((name) => {
      const found = path
        .split(':')
        .map((dir) => `${dir}/${name}`)
        .find((file) => existsSync(file))
      return found === undefined ? [] : [[name, found] as const]
    })
}

/** The options that a program's own help names. */
function helpOf(file: string): {
  readonly letters: readonly string[]
  readonly words: readonly string[]
} {
  const run = spawnSync(file, ['--help'], { encoding: 'utf8', timeout: 5000, input: '' })
  const text = `${run.stdout}${run.stderr}`.replace(/.\x08/g, '')
  const letters = [...text.matchAll(/(?<=[\s,[|])-([A-Za-z0-9#~"])(?![\w-])/g)].map(
    ([, letter]) => letter as string,
  )
  const words = [...text.matchAll(/--([a-zA-Z][\w-]+)/g)].map(([, word]) => word as string)
  return { letters: [...new Set(letters)], words: [...new Set(words)] }
}

const ANY_LETTER = [...'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789']
const VALUES = ['1', '3', 'x', 'a.txt', 'CANARY', 'always', 'none', 'name', '.', '/', '-', 'd', '%n', '']
const SCRIPTS: Readonly<Record<string, readonly string[]>> = {
  sed: [
    'p',
    '1,3p',
    's/a/b/g',
    '$d',
    `r ${FILE}`,
    `w ${FILE}`,
    `s/x/y/w ${FILE}`,
    '1e id',
    's/.*/id/e',
    ':a;s/^/x/;ta',
    'H;G;h',
    `R${FILE}`,
    `/a/r${FILE}`,
    '1~2p',
    's#a#b#',
    `$!{N;P;D}`,
    '{p;p}',
    'y/a/b/',
    `a\\${FILE}`,
  ],
  awk: [
    '1',
    '{print $1}',
    'NR==1',
    '{s+=$1} END{print s}',
    '/a/{print}',
    `BEGIN{getline x < "${FILE}"; print x}`,
    `{print > "${FILE}"}`,
    'BEGIN{system("id")}',
    'BEGIN{"id"|getline x}',
    'BEGIN{while(1);}',
    `BEGIN{ARGV[1]="${FILE}";ARGC=2}1`,
    '{x=x x}',
    `@include "${FILE}"`,
    `BEGIN{printf "%9d", 1}`,
    '{print $1 > $2}',
    '$1>3{print}',
    '{print ($1>3)}',
    `{print | "cat"}`,
    '!/x/',
    'length($0) > 3',
    '{a[$1]++} END{for(k in a)print k}',
    '$2=="a"{next}1',
  ],
  jq: [
    '.',
    '.a',
    '.a|keys',
    '.[]',
    'input',
    'inputs',
    'env',
    '$ENV',
    `include "${FILE}"; .`,
    'def f: f; f',
    '[range(9)]',
    'input_filename',
    '{a:.b}',
    '.a + .a',
    '"\\(.a)"',
    'select(.a)',
    '@sh',
    '.. ',
    'limit(1;.)',
    'repeat(.)',
    `import "${FILE}" as $x; $x`,
    'error',
    'getpath(["a"])',
    'splits("a")',
    '"x"*99999999',
  ],
  find: [
    '-name',
    '*',
    '-type',
    'f',
    '-newer',
    FILE,
    '-fprint',
    FILE,
    '-print',
    '-ls',
    '-size',
    '+1',
    '-exec',
    'cat',
    '{}',
    ';',
    '+',
    '-files0-from',
    FILE,
    '-samefile',
    FILE,
    '-delete',
    '-printf',
    '%p',
    '-maxdepth',
    '1',
    '-o',
    '!',
    '(',
    ')',
    '-prune',
    '-regex',
    '.*',
    '-ok',
    '-execdir',
    '-fls',
    '-quit',
    '-newermt',
    '-anewer',
    '-perm',
    '644',
    '-empty',
    '-readable',
  ],
}

/** Makes forms from a source of random numbers. */
export function forms(random: () => number, list = programs()): () => Form {
  const below = (limit: number): number => Math.floor(random() * limit)
  const pick = <T>(from: readonly T[]): T => from[below(from.length)] as T
  const help = new Map(list.map(([name, path]) => [name, helpOf(path)]))
  const allWords = [...new Set([...help.values()].flatMap(({ words }) => words))]
  const value = (): string => (random() < 0.55 ? FILE : pick(VALUES))
  const letterOf = (name: string): string => {
    const own = help.get(name)?.letters ?? []
    return own.length > 0 && random() < 0.85 ? pick(own) : pick(ANY_LETTER)
  }
  const wordOf = (name: string): string => {
    const own = help.get(name)?.words ?? []
    const word = own.length > 0 && random() < 0.9 ? pick(own) : pick(allWords)
    return random() < 0.15 ? word.slice(0, 2 + below(word.length)) : word
  }
  const tokens = (name: string): readonly string[] =>
    pick<() => readonly string[]>([
      () => [`-${letterOf(name)}`],
      () => [`-${letterOf(name)}${letterOf(name)}`],
      () => [`-${letterOf(name)}`, value()],
      () => [`-${letterOf(name)}${value()}`],
      () => [`-${letterOf(name)}=${value()}`],
      () => [`--${wordOf(name)}`],
      () => [`--${wordOf(name)}`, value()],
      () => [`--${wordOf(name)}=${value()}`],
      () => [FILE],
      () => [FILE],
      () => [pick(VALUES)],
      () => [pick(['--', '-', '-5', '+5', `+${FILE}`, `@${FILE}`, `x=${FILE}`, `${FILE}:1`, '+G', '!'])],
    ])()
  const scripts = (name: string): readonly string[] => SCRIPTS[/awk$/.test(name) ? 'awk' : name] ?? []
  /** One option and a file: where a flag is taken for an option with a value, the file is lost. */
  const single = (name: string, script: readonly string[]): readonly string[] => {
    const option = random() < 0.5 ? `-${letterOf(name)}` : `--${wordOf(name)}`
    const between = random() < 0.3 ? [pick(VALUES)] : script.length > 0 ? [pick(script)] : []
    return random() < 0.5 ? [option, ...between, FILE] : [...between, option, FILE]
  }
  return () => {
    const [name, path] = pick(list)
    const script = scripts(name)
    const args: string[] = random() < 0.5 ? [...single(name, script)] : []
    if (args.length > 0) return { name, path, args }
    for (let left = 1 + below(4); left > 0; left--)
      args.push(
        ...(script.length > 0 && random() < (name === 'find' ? 0.7 : 0.4) ? [pick(script)] : tokens(name)),
      )
    return { name, path, args: args.filter((arg) => !arg.includes('\0')) }
  }
}

/** Whether the tools for a comparison are on this machine. */
export const canCompare = (): boolean =>
  ['bwrap', 'strace', 'timeout'].every((tool) => {
    try {
      return execFileSync('sh', ['-c', `command -v ${tool}`]).length > 0
    } catch {
      return false
    }
  })
