/** `npm run fuzz:shell [-- LINES [SEED]]`: runs random lines with real bash in a jail and compares them with our parser; prints the count. */
import { spawnSync } from 'node:child_process'
import { existsSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { root, run, setup } from './setup.mjs'

setup()

const program = join(root, 'dist', 'test', 'fuzz-shell.js')
const source = join(root, 'test', 'policy', 'fuzz-shell.ts')
// Set-up checks only the product's sources; the fuzzer itself may have changed.
if (!existsSync(program) || statSync(program).mtimeMs < statSync(source).mtimeMs)
  run(process.execPath, [join(root, 'node_modules', 'tsdown', 'dist', 'run.mjs')])

const [lines = '2000', ...seed] = process.argv.slice(2)
if (![lines, ...seed].every((value) => /^\d+$/.test(value))) {
  process.stderr.write('the number of lines and the seed are whole numbers\n')
  process.exit(2)
}
const fuzzer = spawnSync(process.execPath, [program, lines, ...seed], { cwd: root, stdio: 'inherit' })
process.exitCode = fuzzer.status ?? 1
