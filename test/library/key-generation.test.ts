import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'

/** A small heap causes frequent garbage collection, also while a key is created. The timeout ends a process that hangs. */
test('creating keys does not hang during garbage collection', () => {
  const library = JSON.stringify(join(packageRoot(), 'dist', 'bench', 'library.js'))
  const code = `const { createKey } = await import(${library}); for (let n = 0; n < 20000; n++) { createKey(); new Array(n % 4000) } console.log('over')`
  const { stdout, signal } = spawnSync(
    process.execPath,
    ['--max-semi-space-size=1', '--input-type=module', '-e', code],
    { encoding: 'utf8', timeout: 50_000, killSignal: 'SIGKILL' },
  )
  expect({ stdout, signal }).toEqual({ stdout: 'over\n', signal: null })
})
