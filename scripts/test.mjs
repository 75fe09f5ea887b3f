/**
 * `npm test`: sets up, then runs the type check, lint and all tests, and prints one line with the counts.
 * `--full` uses the full counts and durations; `--mutation` breaks the backend on purpose and expects tests to fail.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join, relative } from 'node:path'
import { installClients, root, setup } from './setup.mjs'

const full = process.argv.includes('--full')
setup({ full })

const bin = (name, file) => join(root, 'node_modules', name, file)
installClients('test/e2b')
installClients('test/adapters')
installClients('test/adapters/clients')
if (full) {
  installClients('docs-site')
  installClients('test/e2b/more')
  installClients('test/adapters/full')
  installClients('test/skills/toolchains')
}
let passed = 0
let failed = 0

const unsteady = []
let results = []

function run(name, args, extra = {}) {
  process.stdout.write(`\n== ${name}\n`)
  const { status } = spawnSync(process.execPath, args, {
    cwd: root,
    stdio: ['ignore', 'inherit', 'inherit'],
    env: { ...process.env, ...(full ? { RINGFENCE_FULL: '1' } : {}), ...extra },
  })
  return status
}

function step(name, args, extra) {
  if (run(name, args, extra) === 0) passed++
  else failed++
}

/** Runs all tests or those of some files; the counts come from vitest's JSON report. */
function vitest(name, args = []) {
  const scratch = mkdtempSync(join(tmpdir(), 'ringfence-vitest-'))
  const report = join(scratch, 'report.json')
  const reports = ['--reporter=default', '--reporter=json', `--outputFile=${report}`]
  const status = run(name, [bin('vitest', 'vitest.mjs'), 'run', ...args, ...reports])
  try {
    return { status, ...JSON.parse(readFileSync(report, 'utf8')) }
  } catch {
    return { status: 1, numPassedTests: 0, testResults: [] }
  } finally {
    rmSync(scratch, { recursive: true, force: true })
  }
}

/** Up to this many failed files are run again; more failures are treated as real. */
const SECOND_RUNS = full ? 5 : 2

/**
 * Files that use every core with full counts, or that state times and rates. In the full tests nothing runs beside them; what they
 * state is not about a machine that is busy with something else.
 */
const ALONE = [
  ...[
    'test/conformance/',
    'test/cluster/',
    'test/console/scale',
    'test/library/speed',
    'test/cli/broker',
    'test/policy/corpus',
  ],
  ...['bombs', 'containers', 'gvisor-sleep', 'hibernation', 'microvm'].map((name) => `test/backends/${name}`),
  ...['crash', 'store', 'stress'].map((name) => `test/server/${name}.test`),
  ...['src/audit/', 'src/wasm/runner', 'src/supervisor/supervisor.test'],
]

/** One run for `npm test`; the full tests have a second one, for what needs the machine to itself. */
function runs() {
  if (!full) return [vitest('tests')]
  const others = ALONE.map((path) => `--exclude=**/${path}**`)
  return [
    vitest('tests that need the machine to themselves', [...ALONE, '--no-file-parallelism']),
    vitest('all other tests', others),
  ]
}

/**
 * Real engines on a busy machine sometimes miss a deadline, so a failed file runs once more alone and is named in the
 * summary: a file that appears repeatedly has a bug.
 */
function tests() {
  const done = runs()
  const failedFiles = ({ testResults }) =>
    testResults.filter(({ status }) => status === 'failed').map(({ name }) => name)
  results = done.flatMap(({ testResults }) => testResults)
  const files = done.flatMap(failedFiles)
  const failures = done.reduce((sum, { numFailedTests = 0 }) => sum + numFailedTests, 0)
  passed += done.reduce((sum, { numPassedTests }) => sum + numPassedTests, 0)
  if (done.every(({ status }) => status === 0)) return passed++
  // A run can fail without a failed file: it crashed, or an error was thrown outside of the tests.
  const isUnexplained = done.some((one) => one.status !== 0 && failedFiles(one).length === 0)
  if (isUnexplained || files.length > SECOND_RUNS) {
    failed += Math.max(1, failures)
    return
  }
  const again = vitest('once more, alone', [...files, '--no-file-parallelism'])
  unsteady.push(...files.map((file) => relative(root, file)))
  if (again.status === 0) passed += failures
  else failed += Math.max(1, again.numFailedTests ?? 0)
}

/** Tests that start the command line by test/cli/program.ts: they pass through the front and the broker as they do with Node. */
const COMMAND_LINE_TESTS = [
  'test/cli',
  'test/adapters/hook',
  'test/backends/bubblewrap.test.ts',
  'test/backends/signals.test.ts',
  'test/backends/workspaces.test.ts',
  'test/policy/behind.test.ts',
]

const throughFront = () =>
  step(
    'the command line through the front and the broker',
    [bin('vitest', 'vitest.mjs'), 'run', ...COMMAND_LINE_TESTS],
    {
      RINGFENCE_TEST_FRONT: '1',
    },
  )

/** Data that tests read beside the repository and that is not part of a clone. */
const OUTSIDE_DATA = [
  {
    name: 'WebAssembly specification tests',
    path: join(dirname(root), 'shared', 'wasm-spec', 'tests'),
    usedBy: 'src/wasm/meter/spec.test.ts, test/library/speed.test.ts',
  },
]

/** Says in the closing lines which tests could not run here, so that a green result does not claim more than it shows. */
function reportMissing(testResults) {
  for (const { name, path, usedBy } of OUTSIDE_DATA) {
    const state = existsSync(path)
      ? `${readdirSync(path).length} scripts used`
      : `not here: ${usedBy} ran without it`
    process.stdout.write(`test data outside of the repository: ${name}: ${state}\n`)
  }
  for (const { name, assertionResults } of testResults) {
    const skipped = assertionResults.filter(({ status }) => status !== 'passed' && status !== 'failed').length
    if (skipped > 0) process.stdout.write(`skipped: ${skipped} in ${relative(root, name)}\n`)
  }
}

function sabotage() {
  const conformance = [join(root, 'dist', 'test', 'conformance.js'), '--mutation']
  step('sabotage', conformance)
  if (existsSync('/usr/bin/qemu-system-x86_64'))
    step('sabotage of machines', [...conformance, '--backend', 'microvm'])
}

/** The attacks and the sabotage once more, each attack as `ringfence run` through the front and a broker. */
function conformanceThroughFront() {
  const conformance = [join(root, 'dist', 'test', 'conformance.js'), '--front']
  step('conformance through the front and the broker', conformance)
  step('sabotage through the front and the broker', [...conformance, '--mutation'])
}

/** Built modules of the WASI testsuite, or of any other suite; they are not part of the repository. */
function wasiModules() {
  const modules = process.env.RINGFENCE_WASI_MODULES
  if (modules) step('WASI modules', [join(root, 'scripts', 'test-wasi.mjs'), '--modules', modules])
  else process.stdout.write('\nskipped: WASI modules (RINGFENCE_WASI_MODULES names no directory)\n')
}

if (process.argv.includes('--mutation')) sabotage()
else {
  step('types', [bin('typescript', 'bin/tsc'), '--noEmit'])
  step('types of the console', [bin('typescript', 'bin/tsc'), '--noEmit', '-p', 'web'])
  step('lint and format', [bin('@biomejs/biome', 'bin/biome'), 'check', '--error-on-warnings', '.'])
  step('C code', [join(root, 'scripts', 'check-c.mjs')])
  step('unused exports', [bin('knip', 'bin/knip.js'), '--no-progress'])
  tests()
  if (full) {
    throughFront()
    conformanceThroughFront()
    wasiModules()
    sabotage()
  }
}

process.stdout.write('\n')
if (!process.argv.includes('--mutation')) reportMissing(results)
for (const file of unsteady)
  process.stdout.write(`failed in the parallel run, so it ran again alone: ${file}\n`)
process.stdout.write(`\n${passed} passed, ${failed} failed\n`)
process.exitCode = failed === 0 ? 0 : 1
