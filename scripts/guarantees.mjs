/**
 * Writes GUARANTEES.md from real runs of the conformance suite, one for each available backend.
 *   node scripts/guarantees.mjs
 *   node scripts/guarantees.mjs --column NAME [--report FILE]   runs one column, or reads what `conformance.js --json` printed, and keeps the others;
 *   the list of attacks is that of the column `bubblewrap`
 */
import { spawnSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { GUARANTEES } from '../dist/index.js'
import { output, root, setup } from './setup.mjs'

setup()

/** One column per backend. Podman is the `docker` backend with another engine, so it runs fewer attacks. */
const WALLS = [
  ['bubblewrap', ['--backend', 'bubblewrap']],
  ['bubblewrap, as root of a writable root', ['--backend', 'bubblewrap', '--root']],
  ['docker', ['--backend', 'docker']],
  ['docker, as root of a writable root', ['--backend', 'docker', '--root']],
  ['docker on Podman', ['--backend', 'podman', '--few', '2']],
  ['gvisor', ['--backend', 'gvisor']],
  ['microvm, emulated', ['--backend', 'microvm']],
  ['microvm, emulated, as root of a writable root', ['--backend', 'microvm', '--root']],
  // Only on a cluster that is running already (test/kubernetes/lab.ts).
  ...(process.env.RINGFENCE_TEST_KUBECONFIG ? [['kubernetes', ['--backend', 'kubernetes']]] : []),
]

const argument = (name) => {
  const at = process.argv.indexOf(name)
  return at < 0 ? undefined : process.argv[at + 1]
}
const only = argument('--column')
const finished = argument('--report')

const reports = WALLS.filter(([name]) => only === undefined || name === only).map(([name, args]) => {
  if (finished) return { name, rows: JSON.parse(readFileSync(finished, 'utf8')).rows }
  process.stdout.write(`${name}\n`)
  const { stdout, stderr } = spawnSync(
    process.execPath,
    [join(root, 'dist', 'test', 'conformance.js'), '--json', ...args],
    { cwd: root, encoding: 'utf8', maxBuffer: 1e8 },
  )
  if (!stdout) throw new Error(stderr)
  return { name, rows: JSON.parse(stdout).rows }
})
if (reports.length === 0) throw new Error(`there is no column \`${only}\``)

const rowsOf = (report, name) => report.rows.filter((row) => row.guarantee === name)
const count = (rows, verdict) => rows.filter((row) => row.verdict === verdict).length

/** `12`: number of attacks that failed; `refused`: a plan that needs the guarantee does not start. */
function cell(report, name) {
  const rows = rowsOf(report, name)
  if (count(rows, 'broken') > 0) return '**broken**'
  if (count(rows, 'refused') > 0) return 'refused'
  return count(rows, 'held') > 0 ? String(count(rows, 'held')) : '–'
}

const table = Object.entries(GUARANTEES).map(
  ([name, sentence], index) =>
    `| ${index + 1} | \`${name}\` | ${sentence} | ${reports.map((report) => cell(report, name)).join(' | ')} |`,
)

/** Known sandbox escapes, and the attack that tries each. */
const ESCAPES = [
  [
    'reading through a symbolic link to the outside',
    'fs.read',
    'read through a symlink planted in the workspace',
  ],
  [
    'writing through a symbolic link to the outside',
    'fs.write',
    'write through a symlink planted in the workspace',
  ],
  ['`/proc/self/root`, `/proc/1/root`', 'fs.read', 'read through /proc/self/root and /proc/1/root'],
  [
    'the executable of the sandbox, through `/proc/self/exe`',
    'fs.write',
    "write to the executable of the sandbox's PID 1",
  ],
  [
    'the executable of a host process, through `/proc/…/exe`',
    'fs.write',
    'open the executable of a host process through /proc/…/exe and write to it',
  ],
  ['a leaked file descriptor', 'proc.hidden', 'use a leaked file descriptor'],
  ['`core_pattern`', 'fs.write', 'write a kernel setting (its current value)'],
  ['`release_agent`', 'fs.write', 'set the release_agent of a cgroup'],
  ['`mount`', 'kernel.filtered', 'call mount'],
  ['`keyctl`', 'kernel.filtered', 'call key'],
  ['a nested user namespace', 'kernel.filtered', 'call unshare-user'],
  ['`ptrace` of a host process', 'proc.hidden', 'trace a host process'],
  ['an abstract socket of the host', 'ipc.private', 'connect to an abstract socket'],
  ['typing into a terminal (`TIOCSTI`)', 'ipc.private', 'type into a terminal'],
]

function escapeVerdict(report, guarantee, attack) {
  const row = report.rows.find((one) => one.guarantee === guarantee && one.attack === attack)
  return row?.verdict === 'not-applicable' ? 'no control' : (row?.verdict ?? '–')
}

const escapes = ESCAPES.map(([what, guarantee, attack]) => {
  const verdicts = reports.map((report) => escapeVerdict(report, guarantee, attack))
  return `| ${what} | ${verdicts.join(' | ')} |`
})

/** Replaces or adds one column in the tables of the present file. */
function withColumn(text, report) {
  const cells = new Map([
    ...Object.keys(GUARANTEES).map((name) => [`\`${name}\``, cell(report, name)]),
    ...ESCAPES.map(([what, guarantee, attack]) => [what, escapeVerdict(report, guarantee, attack)]),
  ])
  let at
  return text
    .split('\n')
    .map((line) => {
      if (!line.startsWith('|')) return line
      const parts = line.slice(1, -1).split('|')
      if (/^ (#|escape) $/.test(parts[0])) {
        const known = parts.findIndex((part) => part.trim() === report.name)
        at = known < 0 ? parts.length : known
        parts[at] = ` ${report.name} `
      } else if (parts[0] === '---') parts[at] = '---'
      else parts[at] = ` ${cells.get(parts[0].trim()) ?? cells.get(parts[1].trim()) ?? '–'} `
      return `|${parts.join('|')}|`
    })
    .join('\n')
}

/** The list of attacks, from the column `bubblewrap`. */
const attacksOf = (bubblewrap) =>
  Object.keys(GUARANTEES).flatMap((name) => {
    const rows = rowsOf(bubblewrap, name).filter(
      (row) => row.verdict === 'held' || row.verdict === 'not-applicable',
    )
    if (rows.length === 0) return []
    return [
      '',
      `### ${name}`,
      '',
      ...rows.map(
        (row) => `- ${row.attack}${row.verdict === 'held' ? '' : ` (not applicable here: ${row.why})`}`,
      ),
    ]
  })

const ATTACKS = '\n## Attacks\n'

if (only) {
  const file = join(root, 'GUARANTEES.md')
  const [tables, list] = withColumn(readFileSync(file, 'utf8'), reports[0]).split(ATTACKS)
  const attacks = only === WALLS[0][0] ? `${attacksOf(reports[0]).join('\n')}\n` : list
  writeFileSync(file, `${tables}${ATTACKS}${attacks}`)
  process.stdout.write(`wrote the column ${only} of GUARANTEES.md\n`)
  process.exit()
}

const names = reports.map(({ name }) => name).join(' | ')
const rule = reports.map(() => '---').join('|')
const version = (file, args) => {
  try {
    return output(file, args).split('\n')[0].trim()
  } catch {
    return `${file} is not installed`
  }
}
const engines = [
  version('dockerd', ['--version']),
  version('podman', ['--version']),
  version('runsc', ['--version']),
  version('qemu-system-x86_64', ['--version']),
].join('; ')

const text = `# Guarantees

Generated by \`node scripts/guarantees.mjs\` from real runs on this kernel; do not edit by hand.

A backend **claims** a guarantee only if every attack below fails on it and succeeds on \`native\` (no isolation); an attack that
also fails on \`native\` proves nothing. A plan that **needs** a guarantee that the backend does not claim is rejected. \`npm test\` runs
all attacks, as root also a second time as an unprivileged user, with fewer attacks on containers; \`npm run test:mutation\` breaks the
backend on purpose and expects the attacks to notice. The attacks are in \`src/prove/proofs.ts\` and the \`attacks-…\` files next to it.

A number is how many attacks failed; *refused* means that a plan that needs the guarantee does not start on that backend.
(${engines}; Podman was run with two attacks per guarantee.)

| # | guarantee | meaning | ${names} |
|---|---|---|${rule}|
${table.join('\n')}

\`native\` provides \`limit.wall\`, \`limit.idle\` and \`limit.output\` for processes that stay in their process group; it is used only if named.
\`mock\` runs nothing. Tests cannot prove \`kernel.separate\` or resistance to hostile code in general, only attack it: gVisor and
virtual machines have their own kernel, containers share the host's.

\`microvm\` was run on QEMU without hardware virtualization (\`emulated\`), which this machine lacks: guests on KVM are **not tested
here**. An emulated guest cannot distinguish its own CPU time from time the host gave to other processes, so \`limit.cpu\` is
claimed only with hardware virtualization. For the drivers \`firecracker\` and \`vz\` **only the configuration** is tested, against strict
fakes that reject unknown fields (\`src/backends/microvm/drivers/documents.test.ts\`); they have never started a machine.

\`kubernetes\` was run on a cluster of version 1.20 with containerd and runc. It does not enforce NetworkPolicy, so \`net.*\` was only seen
refused there ([docs/kubernetes.md](docs/kubernetes.md)). Its column can be from an earlier run, with fewer
attacks than the others.

\`e2b\` and \`openshell\` run on other machines and are not in the table: their guarantees (no access to files, processes, variables or addresses of
this host except what was sent; output limit) follow from running elsewhere, and are covered by ordinary tests, not by attacks. \`e2b\` is
tested against our own server, not E2B's cloud; \`openshell\` against a strict **fake of the gateway** (\`test/remote/gateway.ts\`).

\`seatbelt\` (macOS) is implemented for paths, names, variables, network and timeouts. It was **never run on macOS**:
its profiles are checked by golden tests and by an evaluator in the tests, so it is not in the table.

Fakes: cgroup v2 layouts are tested on fake directories, because this kernel has its controllers on cgroup v1; the arm64 seccomp
filter is tested by an interpreter, not on arm64; engines that hang up, send invalid data or never respond are small servers in
\`test/backends/containers.test.ts\`, in addition to a real engine that is stopped.

## Known escapes

| escape | ${names} |
|---|${rule}|
${escapes.join('\n')}

*no control*: the attack does not work on \`native\` on this machine either, so its failure proves nothing.

## Attacks
${attacksOf(reports[0]).join('\n')}
`
writeFileSync(join(root, 'GUARANTEES.md'), text)
process.stdout.write('wrote GUARANTEES.md\n')
