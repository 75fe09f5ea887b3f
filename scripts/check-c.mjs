/**
 * Checks the C code: no compiler warnings, and the format of guest/.clang-format.
 * Warnings are errors only here: a newer compiler that warns must not break an installation (guest/agent/build.sh).
 */
import { spawn, spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const guest = join(root, 'guest')
/** Warnings in addition to those of the build. */
const STRICT = ['-Werror', '-Wshadow', '-Wmissing-prototypes', '-Wstrict-prototypes']
/** Other versions format some lines differently. */
const CLANG_FORMAT = 14

const sources = readdirSync(guest, { recursive: true, encoding: 'utf8' }).filter((name) =>
  /\.[ch]$/.test(name),
)

function run(command, args) {
  return new Promise((resolve) => {
    spawn(command, args, { cwd: guest, stdio: ['ignore', 'inherit', 'inherit'] })
      .on('error', (error) => resolve(`${command}: ${error.message}`))
      .on('close', (code) =>
        resolve(code === 0 ? undefined : `${command} ${args.slice(0, 3).join(' ')} … failed`),
      )
  })
}

/** Why the format cannot be checked; undefined if it can. */
function noFormatter() {
  const { stdout = '' } = spawnSync('clang-format', ['--version'], { encoding: 'utf8' })
  const version = /version (\d+)/.exec(stdout ?? '')?.[1]
  if (version === undefined) return 'clang-format is not installed (apt-get install clang-format)'
  return Number(version) === CLANG_FORMAT
    ? undefined
    : `clang-format is version ${version}, not ${CLANG_FORMAT}`
}

async function main() {
  if (process.platform !== 'linux' || !existsSync('/usr/bin/gcc'))
    return process.stdout.write('C code: not checked, needs Linux and gcc\n')
  const scratch = mkdtempSync(join(tmpdir(), 'ringfence-check-c-'))
  const unformatted = noFormatter()
  const missing = unformatted?.includes('not installed') ? unformatted : undefined
  if (unformatted) process.stdout.write(`format of the C code: not checked, ${unformatted}\n`)
  const shared = ['-Wall', '-Wextra', '-Werror', '-O2', '-shared', '-fPIC']
  const failures = await Promise.all([
    // Includes the code that only tests use.
    run('sh', ['agent/build.sh', join(scratch, 'agent'), ...STRICT, '-DRINGFENCE_TEST']),
    run('sh', ['front/build.sh', join(scratch, 'front'), ...STRICT]),
    existsSync('/usr/include/mbedtls/ssl.h')
      ? run('sh', ['channel/build.sh', join(scratch, 'channel'), ...STRICT])
      : void process.stdout.write('guest/channel: not checked, needs libmbedtls-dev\n'),
    run('gcc', [...shared, '-o', join(scratch, 'readonly.so'), 'qemu/readonly.c']),
    missing ?? (unformatted ? undefined : run('clang-format', ['--dry-run', '--Werror', ...sources])),
  ])
  rmSync(scratch, { recursive: true, force: true })
  for (const failure of failures.filter(Boolean)) process.stdout.write(`${failure}\n`)
  if (failures.some(Boolean)) {
    process.stdout.write('to format the C code: npm run fix:c\n')
    process.exitCode = 1
  }
}

await main()
