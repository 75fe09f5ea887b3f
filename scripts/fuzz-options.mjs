/** `npm run fuzz:options [-- FORMS [SEED]]`: runs random forms of the programs that may be `allow` in a jail under strace and compares them with our option tables. */
import { spawnSync } from 'node:child_process'
import { existsSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { root, run, setup } from './setup.mjs'

setup()

const program = join(root, 'dist', 'test', 'fuzz-options.js')
const source = join(root, 'test', 'policy', 'fuzz-options.ts')
// Set-up checks only the product's sources; the fuzzer itself may have changed.
if (!existsSync(program) || statSync(program).mtimeMs < statSync(source).mtimeMs)
  run(process.execPath, [join(root, 'node_modules', 'tsdown', 'dist', 'run.mjs')])

const [forms = '30000', ...seed] = process.argv.slice(2)
if (![forms, ...seed].every((value) => /^\d+$/.test(value))) {
  process.stderr.write('the number of forms and the seed are whole numbers\n')
  process.exit(2)
}
const fuzzer = spawnSync(process.execPath, [program, forms, ...seed], { cwd: root, stdio: 'inherit' })
process.exitCode = fuzzer.status ?? 1
