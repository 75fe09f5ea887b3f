import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { judgeArgv } from '../../src/policy/commands/judge.ts'
import { compilePolicy } from '../../src/policy/policy.ts'
import { FILE, type Form, forms, programs } from './option-forms.ts'

/**
 * Differential fuzzing of the option tables: a form that the policy would run on the host runs in a jail under strace,
 * with a harmless file where a secret could stand. The real program must not open that file if the policy allows the
 * same form with a secret, and must not write, start programs, connect, read other secrets, or run without end.
 *
 * usage: fuzz-options [forms] [seed]
 */

const context = { workspace: '/workspace', home: '/home/agent' }
const policy = compilePolicy({})
const SECRETS = ['/etc/shadow', '.env', '/home/agent/.ssh/id_rsa']
const HARMLESS = 'canary.txt'

const withFile = ({ name, args }: Form, file: string): readonly string[] => [
  name,
  ...args.map((arg) => arg.replaceAll(FILE, file)),
]

const allows = (argv: readonly string[]): boolean => judgeArgv(policy, argv, context).action === 'allow'

/** The policy decisions for a form: with a secret, and with the harmless file. */
type Case = { readonly form: Form; readonly secret: boolean; readonly plain: boolean }

function caseOf(form: Form): Case | undefined {
  const secret =
    form.args.some((arg) => arg.includes(FILE)) && SECRETS.some((file) => allows(withFile(form, file)))
  const plain = allows(withFile(form, HARMLESS))
  return secret || plain ? { form, secret, plain } : undefined
}

const quote = (word: string): string => `'${word.replaceAll("'", `'\\''`)}'`

type World = { readonly workspace: string; readonly list: ReturnType<typeof programs> }

/** Runs forms in one jail; each leaves a trace and its exit code. */
function run(cases: readonly Case[], out: string, { workspace, list }: World): void {
  const script = cases.map(({ form }, index) => {
    const [, ...args] = withFile(form, HARMLESS)
    const line = [form.path, ...args].map(quote).join(' ')
    return `strace -f -qq -s 400 -e trace=%file,%network,execve,kill -o /out/${index} timeout -s KILL 3 ${line} </dev/null >/out/${index}.text 2>&1; echo $? >/out/${index}.code`
  })
  writeFileSync(join(out, 'script'), `ulimit -f 8192\nulimit -c 0\ncd /workspace\n${script.join('\n')}\n`)
  const system = ['/usr', '/etc', '/bin', '/lib', '/lib64', '/sbin'].flatMap((dir) => [
    '--ro-bind-try',
    dir,
    dir,
  ])
  const jail = [...system, '--dev', '/dev', '--proc', '/proc', '--dir', '/tmp', '--dir', '/home/agent/.ssh']
  const tools = list.map(([, path]) => dirname(path)).filter((dir) => !dir.startsWith('/usr/'))
  const more = [...new Set(tools)].flatMap((dir) => ['--ro-bind-try', dir, dir])
  const binds = ['--ro-bind', workspace, '/workspace', '--bind', out, '/out', ...more]
  spawnSync(
    'bwrap',
    [
      '--unshare-all',
      '--die-with-parent',
      ...jail,
      ...binds,
      '--setenv',
      'HOME',
      '/home/agent',
      '--setenv',
      'LC_ALL',
      'C.UTF-8',
      '--unsetenv',
      'LESSOPEN',
      'sh',
      '/out/script',
    ],
    { timeout: 600_000 },
  )
}

const WRITES = /\bO_(WRONLY|RDWR|CREAT|TRUNC|APPEND)\b/
const OWN = /"\/dev\/(null|tty|stdout|stderr)"|"\/proc\/self\/|"\/out\/|"\/dev\/fd\/|"\/tmp\/(tac|sort)/
const CHANGES =
  /\b(unlink|unlinkat|rename|renameat2?|mkdir|mkdirat|rmdir|chmod|fchmodat|chown|fchownat|link|linkat|symlink|symlinkat|truncate|utimensat|mknod|mknodat)\(/

/** Forbidden effects in a trace. */
function faults(trace: string, { form, secret, plain }: Case): readonly string[] {
  const lines = trace.split('\n').filter((line) => !/= -1 E(NOENT|NOTDIR|INVAL|NAMETOOLONG)/.test(line))
  const opened = (name: string): boolean =>
    lines.some((line) => /\bopen(at)?2?\(/.test(line) && line.includes(name) && !/O_PATH/.test(line))
  const found: string[] = []
  if (secret && opened(`${HARMLESS}"`)) found.push('reads a file that was not judged')
  if (!plain) return found
  if (opened('.env"') || opened('id_rsa"')) found.push('reads a secret')
  if (lines.some((line) => /\bopen(at)?2?\(/.test(line) && WRITES.test(line) && !OWN.test(line)))
    found.push('writes')
  if (lines.some((line) => CHANGES.test(line) && !OWN.test(line))) found.push('changes files')
  if (lines.some((line) => /\b(connect|bind|sendto|sendmsg)\(/.test(line) && /AF_INET|AF_UNIX/.test(line)))
    found.push('connects')
  const starts = lines.filter((line) => /\bexecve\(/.test(line) && !/"\/usr\/bin\/(timeout|grep)"/.test(line))
  if (starts.length > 1) found.push(`starts ${starts.at(-1)?.slice(0, 60)}`)
  return found.map((fault) => `${form.name}: ${fault}`)
}

function judge(one: Case, out: string, index: number): readonly string[] {
  const read = (name: string): string => {
    try {
      return readFileSync(join(out, name), 'utf8')
    } catch {
      return ''
    }
  }
  const found = [...faults(read(String(index)), one)]
  const code = read(`${index}.code`).trim()
  if (one.plain && /^(124|137)$/.test(code)) found.push(`${one.form.name}: has no end`)
  const size = statSync(join(out, `${index}.text`), { throwIfNoEntry: false })?.size ?? 0
  if (one.plain && size > 2_000_000) found.push(`${one.form.name}: prints ${size} bytes`)
  return found
}

function makeWorkspace(at: string): string {
  const workspace = join(at, 'ws')
  mkdirSync(join(workspace, 'd'), { recursive: true })
  for (const [name, text] of [
    [HARMLESS, 'CANARY one\nb 2\n'],
    ['a.txt', 'a 1\nCANARY\n'],
    ['d/b.txt', 'b\n'],
    ['.env', 'SECRET=1\n'],
  ] as const)
    writeFileSync(join(workspace, name), text)
  return workspace
}

/** The result of one fuzzer run. */
export type OptionReport = {
  readonly forms: number
  readonly seed: number
  /** Forms that the real program was started with. */
  readonly ran: number
  readonly programs: number
  readonly findings: readonly string[]
}

const BATCH = 400

/** Compares that many forms with the installed programs. */
export function fuzzOptions(total: number, seed: number): OptionReport {
  const scratch = mkdtempSync(join(tmpdir(), 'rf-options-'))
  const workspace = makeWorkspace(scratch)
  const list = programs()
  const next = forms(randomFrom(seed), list)
  const findings: string[] = []
  let ran = 0
  try {
    for (let done = 0; done < total; done += BATCH) {
      const batch = Array.from({ length: Math.min(BATCH, total - done) }, next)
      const cases = batch.flatMap((form) => caseOf(form) ?? [])
      const out = join(scratch, `out${done}`)
      mkdirSync(out)
      run(cases, out, { workspace, list })
      ran += cases.length
      for (const [index, one] of cases.entries())
        for (const fault of judge(one, out, index))
          findings.push(`${fault}: ${withFile(one.form, HARMLESS).map(quote).join(' ')}`)
      rmSync(out, { recursive: true, force: true })
    }
  } finally {
    rmSync(scratch, { recursive: true, force: true })
  }
  return { forms: total, seed, ran, programs: list.length, findings }
}

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

/** Prints a report; 1 when a program did what the policy did not see. */
function main(total: number, seed: number): number {
  const report = fuzzOptions(total, seed)
  for (const finding of report.findings.slice(0, 60)) process.stdout.write(`${finding}\n`)
  process.stdout.write(
    `fuzz:options: ${report.forms} forms of ${report.programs} programs (seed ${seed}), ` +
      `${report.ran} run for real, ${report.findings.length} findings\n`,
  )
  return report.findings.length === 0 ? 0 : 1
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href)
  process.exitCode = main(
    Number(process.argv[2] ?? 30_000),
    Number(process.argv[3] ?? Date.now() % 1_000_000),
  )
