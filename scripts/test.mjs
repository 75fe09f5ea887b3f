/**
 * `npm test`: sets up, then types, lint and every test, and closes with one line of counts.
 * `--full` runs the counts and times that we promise; `--mutation` sabotages the backend and expects to be caught.
 */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { installClients, root, setup } from './setup.mjs'

setup()

const bin = (name, file) => join(root, 'node_modules', name, file)
const full = process.argv.includes('--full')
installClients('test/e2b')
installClients('test/adapters')
if (full) {
  installClients('test/e2b/more')
  installClients('test/adapters/full')
}
let passed = 0
let failed = 0

function step(name, args) {
  process.stdout.write(`\n== ${name}\n`)
  const { status } = spawnSync(process.execPath, args, {
    cwd: root,
    stdio: ['ignore', 'inherit', 'inherit'],
    env: { ...process.env, ...(full ? { RINGFENCE_FULL: '1' } : {}) },
  })
  if (status === 0) passed++
  else failed++
}

/** vitest's own summary is no line that counts; its report is. */
function vitest() {
  const scratch = mkdtempSync(join(tmpdir(), 'ringfence-vitest-'))
  const report = join(scratch, 'report.json')
  step('tests', [
    bin('vitest', 'vitest.mjs'),
    'run',
    '--reporter=default',
    '--reporter=json',
    `--outputFile=${report}`,
  ])
  try {
    const { numPassedTests, numFailedTests, numFailedTestSuites } = JSON.parse(readFileSync(report, 'utf8'))
    passed += numPassedTests
    failed += numFailedTests
    if (numFailedTests === 0 && numFailedTestSuites > 0) failed += numFailedTestSuites
  } catch {
    failed++
  } finally {
    rmSync(scratch, { recursive: true, force: true })
  }
}

if (process.argv.includes('--mutation'))
  step('sabotage', [join(root, 'dist', 'test', 'conformance.js'), '--mutation'])
else {
  step('types', [bin('typescript', 'bin/tsc'), '--noEmit'])
  step('types of the console', [bin('typescript', 'bin/tsc'), '--noEmit', '-p', 'web'])
  step('lint and format', [bin('@biomejs/biome', 'bin/biome'), 'check', '--diagnostic-level=error', '.'])
  vitest()
  if (full) step('sabotage', [join(root, 'dist', 'test', 'conformance.js'), '--mutation'])
}

process.stdout.write(`\n${passed} passed, ${failed} failed\n`)
process.exitCode = failed === 0 ? 0 : 1
