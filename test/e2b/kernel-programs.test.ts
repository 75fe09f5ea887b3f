import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { describe, expect, test } from 'vitest'
import { assertInstalled, type Language, rowOf } from '../../src/server/e2b/interpreter/languages.ts'
import type { OpenSandbox } from '../../src/supervisor/open-sandbox.ts'
import { packageRoot } from '../conformance/world.ts'
import type { Loose } from './kit.ts'

/** Kernels whose programs few machines have, each in a process without a sandbox. */

function kernel(language: Language) {
  const { program, args, encode } = rowOf(language)
  const env = { PATH: '/usr/bin:/bin', RINGFENCE_KERNEL: 'mark', GIVEN: 'to all' }
  const child = spawn(program, [...args(join(packageRoot(), 'guest/kernels'))], { env, cwd: '/tmp' })
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const run = async (code: string, variables = {}): Promise<Loose[]> => {
    child.stdin.write(encode({ code, env: variables }))
    const said: Loose[] = []
    for (;;) {
      const { value, done } = await lines.next()
      if (done) return said
      const message = JSON.parse(String(value).split('\u001emark ')[1] ?? '{"type":"raw"}')
      if (message.type === 'end_of_execution') return said
      if (message.type !== 'ready' && message.type !== 'number_of_executions') said.push(message)
    }
  }
  return { run, interrupt: () => child.kill('SIGINT'), end: () => child.stdin.end() }
}

describe.runIf(existsSync('/usr/bin/Rscript'))('R', () => {
  test('returns values, keeps variables, reports errors, draws plots and can be interrupted', {
    timeout: 30_000,
  }, async () => {
    const { run, interrupt, end } = kernel('r')
    expect(await run('x <- "ü\\"\\\\"; x')).toMatchObject([{ type: 'result', text: '[1] "ü\\"\\\\"' }])
    expect(await run('paste(Sys.getenv("GIVEN"), Sys.getenv("ONE"))', { ONE: 'a"b' })).toMatchObject([
      { text: '[1] "to all a\\"b"' },
    ])
    expect(await run('Sys.getenv("ONE", "none")')).toMatchObject([{ text: '[1] "none"' }])
    expect(await run('stop("no")')).toMatchObject([{ type: 'error', value: 'no' }])
    expect((await run('sink("/dev/null"); plot(1:3)'))[0].png).toMatch(/^iVBORw0KGgo/)
    setTimeout(interrupt, 300)
    expect(await run('Sys.sleep(60)')).toMatchObject([{ name: 'Interrupt' }])
    expect(await run('nchar(x)')).toMatchObject([{ text: '[1] 3' }])
    end()
  })
})

describe.runIf(existsSync('/usr/bin/jshell'))('Java', () => {
  test('returns values and properties, reports errors and can be interrupted', {
    timeout: 60_000,
  }, async () => {
    const { run, interrupt, end } = kernel('java')
    expect(await run('int twice(int n) {\n  return 2 * n;\n}\nint x = 21;\ntwice(x)')).toMatchObject([
      { type: 'result', text: '42' },
    ])
    expect(await run('System.getProperty("GIVEN") + System.getProperty("ONE")', { ONE: '"' })).toMatchObject([
      { text: '"to all\\""' },
    ])
    expect(await run('System.getProperty("ONE", "none")')).toMatchObject([{ text: '"none"' }])
    expect(await run('System.out.println("ü"); int y = 1 / 0;')).toMatchObject([
      { type: 'stdout', text: 'ü\n' },
      { type: 'error', name: 'ArithmeticException' },
    ])
    expect(await run('int z = "text";')).toMatchObject([{ name: 'CompilationError' }])
    setTimeout(interrupt, 500)
    expect(await run('while (true);')).toMatchObject([{ name: 'Interrupted' }])
    expect(await run('x')).toMatchObject([{ text: '21' }])
    end()
  })
})

test('a language whose program is missing is refused with the name of its package', async () => {
  const without = {
    plan: { env: { PATH: '/usr/bin:/bin' } },
    files: { stat: () => Promise.reject(new Error('not there')) },
  } as unknown as OpenSandbox
  await expect(assertInstalled(without, 'r')).rejects.toThrow(/`Rscript`.*`r-base-core`/)
  await expect(assertInstalled(without, 'java')).rejects.toThrow(/`java`.*`default-jdk-headless`/)
  await expect(assertInstalled(without, 'bash')).resolves.toBeUndefined()
})
