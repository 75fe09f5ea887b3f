/** `npm run fuzz:shell [-- LINES [SEED]]`: random lines, run by real bash in a jail and read by us; prints its count. */
import { spawnSync } from 'node:child_process'
import { existsSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { root, run, setup } from './setup.mjs'

setup()

const program = join(root, 'dist', 'test', 'fuzz-shell.js')
const source = join(root, 'test', 'policy', 'fuzz-shell.ts')
// Set-up looks at the product's sources only; the fuzzer itself may have changed since.
if (!existsSync(program) || statSync(program).mtimeMs < statSync(source).mtimeMs)
  run(process.execPath, [join(root, 'node_modules', 'tsdown', 'dist', 'run.mjs')])

const [lines = '2000', ...seed] = process.argv.slice(2)
const fuzzer = spawnSync(process.execPath, [program, lines, ...seed], { cwd: root, stdio: 'inherit' })
process.exitCode = fuzzer.status ?? 1
