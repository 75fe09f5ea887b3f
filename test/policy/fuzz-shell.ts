// biome-ignore-all lint/suspicious/noTemplateCurlyInString: these are shell lines, not templates
import { spawnSync } from 'node:child_process'
import { pathToFileURL } from 'node:url'
import type { Action } from '../../src/model/decision.ts'
import { inspectLine } from '../../src/policy/commands/judge.ts'
import { compilePolicy } from '../../src/policy/policy.ts'

/**
 * Differential fuzzing against real bash: lines from a grammar run in a jail without any program, where bash reports
 * every name it looked for. A name that bash looked up must be in our tree, or the tree must declare it unknown.
 *
 * usage: fuzz-shell [lines] [seed]
 */

/** A small generator with a printed seed, so that a finding can be repeated. */
function randomFrom(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296
  }
}

type Make = (depth: number) => string

/** Lines of shell in which every program is called `z` and a number. */
function grammar(random: () => number): Make {
  const below = (limit: number): number => Math.floor(random() * limit)
  const pick = <T>(...list: readonly T[]): T => list[below(list.length)] as T
  const name = (): string => `z${below(40)}`
  const variable = (): string => pick('a', 'b', 'c', 'v', 'w')
  const hex = (text: string): string =>
    [...text].map((char) => `\\x${char.charCodeAt(0).toString(16)}`).join('')
  const octal = (text: string): string =>
    [...text].map((char) => `\\${char.charCodeAt(0).toString(8)}`).join('')
  const split = (text: string): string =>
    pick(
      `${text[0]}''${text.slice(1)}`,
      `${text[0]}\\${text.slice(1)}`,
      `"${text}"`,
      `'${text}'`,
      `$'${hex(text)}'`,
      `$'${octal(text)}'`,
      `${text[0]}""${text.slice(1)}`,
    )
  const program: Make = (depth) =>
    depth <= 0
      ? name()
      : pick(
          name,
          name,
          () => split(name()),
          () => value(depth - 1),
        )()
  const value: Make = (depth) => {
    if (depth <= 0) return pick(name(), `$${variable()}`)
    return pick<() => string>(
      () => `$${variable()}`,
      () => `"$${variable()}"`,
      () => `\${${variable()}}`,
      () => `\${${variable()}:-${name()}}`,
      () => `\${nope:-${word(depth - 1)}}`,
      () => `\${nope:=${name()}}`,
      () => `\${${variable()}:+${name()}}`,
      () => `\${TERM:+${name()}}`,
      () => `\${${variable()}+${word(depth - 1)}}`,
      () => `\${${variable()}#x}`,
      () => `\${${variable()}%x}`,
      () => `\${${variable()}/x/${name()}}`,
      () => `\${${variable()}:0:2}`,
      () => `\${${variable()},,}`,
      () => `\${!${variable()}}`,
      () => `\${arr[${below(3)}]}`,
      () => `"\${arr[@]}"`,
      () => `$(echo ${word(depth - 1)})`,
      () => `\`echo ${name()}\``,
      () => `$(${line(depth - 1)})`,
      () => `"$(${line(depth - 1)})"`,
      () => `$((1+$(${line(depth - 1)};echo 1)))`,
      () => `$[$(${name()};echo 1)]`,
      () => `$((arr[$(${name()};echo 0)]))`,
      () => `{${name()},${name()}}`,
      () => `$(printf '${octal(name())}')`,
      () => `$(printf %s ${name()})`,
      () => `<(${line(depth - 1)})`,
      () => `"$@"`,
      () => `$1`,
      () => `$_`,
    )()
  }
  const word: Make = (depth) =>
    pick<() => string>(
      name,
      () => split(name()),
      () => `'${name()} ${name()}'`,
      () => value(depth),
    )()
  const simple: Make = (depth) => {
    const words = Array.from({ length: below(3) }, () => word(depth - 1)).join(' ')
    return `${program(depth)} ${words}${pick('', '', '', ' >/dev/null', ' 2>&1', ` <<< ${word(depth - 1)}`)}`
  }
  const quoted = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`
  const special: Make = (depth) =>
    pick<() => string>(
      () => `${variable()}=${word(depth - 1)}`,
      () => `${variable()}=${name()}; $${pick('a', 'b', 'c', 'v', 'w')}`,
      () => `arr=(${word(depth - 1)} ${word(depth - 1)}); "\${arr[@]}"`,
      () => `eval ${quoted(line(depth - 1))}`,
      () => `eval ${word(depth - 1)}`,
      () => `trap ${quoted(line(depth - 1))} EXIT`,
      () => `command ${simple(depth - 1)}`,
      () => `builtin eval ${quoted(line(depth - 1))}`,
      () => `. /dev/stdin <<< ${quoted(line(depth - 1))}`,
      () => `source <(echo ${quoted(line(depth - 1))})`,
      () => `set -- ${word(depth - 1)} ${word(depth - 1)}; "$@"`,
      () => `f() { ${line(depth - 1)}; }; f ${word(depth - 1)}`,
      () => `f() { "$@"; }; f ${word(depth - 1)}`,
      () => `read ${variable()} <<< ${word(depth - 1)}`,
      () => `while read x; do $x; done <<< ${word(depth - 1)}`,
      () => `printf -v ${variable()} %s ${word(depth - 1)}`,
      () => `declare ${variable()}=${word(depth - 1)}`,
      () => `declare -n ref=${variable()}; $ref`,
      () => `IFS=,; ${variable()}=${name()},x; $${variable()}`,
      () => `let "a[$(${name()};echo 0)]=1"`,
      () => `((a=$(${name()};echo 1)))`,
      () => `[[ $(${line(depth - 1)}) ]]`,
      () => `[[ 'a[$(${name()};echo 0)]' -eq 0 ]]`,
      () => `test -v 'a[$(${name()};echo 0)]'`,
      () => `mapfile -C ${quoted(name())} -c1 m <<< x`,
      () => `hash -p /z9 ls`,
      () => `exec ${simple(depth - 1)}`,
      () => `coproc ${simple(depth - 1)}`,
      () => `time ${simple(depth - 1)}`,
      () => `alias x=${name()}`,
      () => `cat() { ${name()}; }; cat`,
      () => `unset ${variable()}`,
      () => `cd /tmp`,
    )()
  const compound: Make = (depth) =>
    pick<() => string>(
      () => `if ${line(depth - 1)}; then ${line(depth - 1)}; else ${line(depth - 1)}; fi`,
      () => `for i in ${word(depth - 1)} ${word(depth - 1)}; do ${pick('$i', line(depth - 1))}; done`,
      () => `for ((i=0;i<1;i++)); do ${line(depth - 1)}; done`,
      () => `case ${word(depth - 1)} in *) ${line(depth - 1)};; esac`,
      () => `while ${line(depth - 1)}; do break; done`,
      () => `until ${line(depth - 1)}; do break; done`,
      () => `{ ${line(depth - 1)}; }`,
      () => `( ${line(depth - 1)} )`,
      () => `! ${simple(depth - 1)}`,
      () => `select s in x; do ${line(depth - 1)}; break; done <<< 1`,
      () => `cat <<E\n$(${line(depth - 1)})\nE\n${name()}`,
      () => `{ ${line(depth - 1)}; } <<< x`,
    )()
  const line: Make = (depth) => {
    if (depth <= 0) return name()
    const piece = (): string => pick<Make>(simple, simple, special, compound)(depth - 1)
    return Array.from({ length: 1 + below(2) }, piece).join(pick('; ', ' && ', ' || ', ' | ', '\n', ' ; '))
  }
  return line
}

// Each line runs in a bash of its own; fd 9 carries the names that were looked for.
const DRIVER = `exec 9>&1 >/dev/null 2>/dev/null
command_not_found_handle() { printf '%s %s\\n' "$FUZZ_LINE" "$1" >&9; return 1; }
export -f command_not_found_handle
ulimit -t 5 -f 1000
n=0
while IFS= read -r -d '' line; do
  FUZZ_LINE=$n FUNCNEST=20 PATH=/nowhere /usr/bin/timeout -k 1 2 /bin/bash --norc --noprofile -c "$line" z < /dev/null
  n=$((n+1))
done`

const JAIL = [
  '--unshare-all',
  '--die-with-parent',
  '--ro-bind',
  '/',
  '/',
  '--tmpfs',
  '/tmp',
  '--proc',
  '/proc',
  '--dev',
  '/dev',
  '--clearenv',
  '--setenv',
  'HOME',
  '/tmp',
  // A variable from outside that the lines do not set.
  '--setenv',
  'TERM',
  'dumb',
]

/** The names that bash looked for, line by line. */
function reached(lines: readonly string[]): readonly (readonly string[])[] {
  const run = spawnSync('bwrap', [...JAIL, '/bin/bash', '--norc', '--noprofile', '-c', DRIVER], {
    input: `${lines.join('\0')}\0`,
    encoding: 'utf8',
    timeout: 120_000,
    maxBuffer: 64 * 1024 * 1024,
  })
  if (run.status === null) throw new Error(`bash did not finish: ${run.error?.message ?? run.signal}`)
  // A background process may outlive its line, so each name says which line it belongs to.
  const out: string[][] = lines.map(() => [])
  for (const row of run.stdout.split('\n')) {
    const match = /^(\d+) (.*)$/.exec(row)
    if (match) out[Number(match[1])]?.push(match[2] as string)
  }
  return out
}

/** What bash reports for the process of a coprocess that it could not start. */
const ARTEFACTS = new Set(['COPROC'])

const policy = compilePolicy({})

/** Compares our tree with bash: names that the tree neither contains nor declares unknown. */
function compare(
  line: string,
  names: readonly string[],
): { readonly action: Action; readonly missed: readonly string[] } {
  const { decision, nodes } = inspectLine(policy, line, { workspace: '/workspace', home: '/tmp' })
  const { action } = decision
  if (action === 'ask' || action === 'deny') return { action, missed: [] }
  const known = new Set(nodes.map((node) => node.argv[0] ?? ''))
  const missed = names.filter(
    (name) => !ARTEFACTS.has(name) && !known.has(name) && !known.has(name.split('/').at(-1) ?? ''),
  )
  return { action, missed }
}

/** The result of one fuzzer run. */
export type FuzzReport = {
  readonly lines: number
  readonly seed: number
  /** Names that bash looked for. */
  readonly reached: number
  /** Lines that the tree fully understood. */
  readonly certain: number
  readonly findings: readonly { readonly line: string; readonly missed: readonly string[] }[]
}

const BATCH = 500

/** Runs that many lines with real bash and compares every one with our tree. */
export function fuzz(total: number, seed: number): FuzzReport {
  const line = grammar(randomFrom(seed))
  const findings: { line: string; missed: readonly string[] }[] = []
  let [done, ran, certain] = [0, 0, 0]
  while (done < total) {
    const lines = Array.from({ length: Math.min(BATCH, total - done) }, () => line(4))
    for (const [index, seen] of reached(lines).entries()) {
      const text = lines[index] as string
      const { action, missed } = compare(text, seen)
      ran += seen.length
      if (action === 'sandbox') certain++
      if (missed.length > 0) findings.push({ line: text, missed })
    }
    done += lines.length
  }
  return { lines: done, seed, reached: ran, certain, findings }
}

/** Prints a report; 1 when bash reached something that we did not see. */
function main(total: number, seed: number): number {
  const report = fuzz(total, seed)
  for (const { line, missed } of report.findings.slice(0, 20))
    process.stdout.write(`missed ${missed.join(' ')} in ${JSON.stringify(line)}\n`)
  process.stdout.write(
    `fuzz:shell: ${report.lines} lines (seed ${seed}), bash looked for ${report.reached} programs, ` +
      `${report.certain} lines fully known, ${report.findings.length} findings\n`,
  )
  return report.findings.length === 0 ? 0 : 1
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href)
  process.exitCode = main(Number(process.argv[2] ?? 2000), Number(process.argv[3] ?? Date.now() % 1_000_000))
