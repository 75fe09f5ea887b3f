import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'

/** With a small heap memory is collected often, also while a key is created. A process that hung would be ended by the timeout. */
test('creating keys never hangs, whenever memory is collected', () => {
  const library = JSON.stringify(join(packageRoot(), 'dist', 'bench', 'library.js'))
  const code = `const { createKey } = await import(${library}); for (let n = 0; n < 20000; n++) { createKey(); new Array(n % 4000) } console.log('over')`
  const { stdout, signal } = spawnSync(
    process.execPath,
    ['--max-semi-space-size=1', '--input-type=module', '-e', code],
    { encoding: 'utf8', timeout: 50_000, killSignal: 'SIGKILL' },
  )
  expect({ stdout, signal }).toEqual({ stdout: 'over\n', signal: null })
})
