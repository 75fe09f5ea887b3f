import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { client, type Loose, type World, world } from './kit.ts'

let here: World
let sandbox: Loose
beforeAll(async () => {
  here = await world()
  const { Sandbox } = await client('@e2b/code-interpreter')
  sandbox = await Sandbox.create(here.options)
})
afterAll(async () => {
  await here.close()
  expect(here.logs).toEqual([])
})

describe('Python', () => {
  test('keeps its state, and returns the value of the last expression', async () => {
    await sandbox.runCode('import math\nx = 20')
    const done = await sandbox.runCode('print("hello")\nx * 2 + math.floor(2.5)')
    expect(done.logs.stdout).toEqual(['hello\n'])
    expect(done.text).toBe('42')
    expect(done.executionCount).toBe(2)
    expect(done.error).toBeUndefined()
  })

  test('returns rich representations of objects', async () => {
    const done = await sandbox.runCode(
      'class T:\n  def _repr_html_(self): return "<b>t</b>"\n  def _repr_png_(self): return b"png"\n  def __repr__(self): return "t"\ndisplay(T())\nT()',
    )
    expect(done.results).toHaveLength(2)
    expect(done.results[1]).toMatchObject({ isMainResult: true, text: 't', html: '<b>t</b>', png: 'cG5n' })
  })

  test('reports errors with a traceback, and keeps its state', async () => {
    const done = await sandbox.runCode('def f():\n  return 1 / 0\nf()')
    expect(done.error).toMatchObject({ name: 'ZeroDivisionError', value: 'division by zero' })
    expect(done.error.traceback).toMatch(/line 2, in f/)
    expect(done.error.traceback).not.toContain('kernel')
    expect((await sandbox.runCode('x')).text).toBe('20')
    expect((await sandbox.runCode('def broken(')).error.name).toBe('SyntaxError')
    expect((await sandbox.runCode('exit()')).error.name).toBe('SystemExit')
    expect((await sandbox.runCode('x')).text).toBe('20')
  })

  test('an execution ends with an error when its code forges a result that is nested too deeply', async () => {
    const done = await sandbox.runCode(
      `import os
environ = open("/proc/self/environ", "rb").read().split(b"\\0")
mark = next(one for one in environ if one.startswith(b"RINGFENCE_KERNEL=")).split(b"=", 1)[1]
os.write(1, b"\\x1e" + mark + b' {"type":"result","text":' + b"[" * 200000 + b"]" * 200000 + b"}\\n")
"after"`,
    )
    expect(done.error).toMatchObject({ name: 'ResultTooComplex' })
    expect((await sandbox.runCode('1 + 1')).text).toBe('2')
  })

  test('streams stdout and stderr, also of writes that bypass sys.stdout', async () => {
    const out: string[] = []
    const done = await sandbox.runCode(
      'import sys, os\nprint("a")\nsys.stderr.write("b\\n")\nos.write(1, b"c\\n")\nprint("ü", end="")',
      { onStdout: (message: Loose) => void out.push(message.line) },
    )
    expect(out.join('')).toBe('a\nc\nü')
    expect(done.logs.stderr).toEqual(['b\n'])
  })

  test('supports await, variables for one run, and files of the sandbox', async () => {
    expect((await sandbox.runCode('import asyncio\nawait asyncio.sleep(0.01)\n"done"')).text).toBe('done')
    const code = 'import os\nos.environ.get("ONCE")'
    expect((await sandbox.runCode(code, { envs: { ONCE: 'yes' } })).text).toBe('yes')
    expect((await sandbox.runCode(code)).text).toBeUndefined()
    await sandbox.files.write('data.txt', 'from a file')
    expect((await sandbox.runCode('open("data.txt").read()')).text).toBe('from a file')
  })

  test('is interrupted at the caller’s timeout, and keeps its state', async () => {
    await expect(
      sandbox.runCode('import time\nwhile True: time.sleep(0.01)', { timeoutMs: 500 }),
    ).rejects.toThrow(/timed out|timeout/i)
    expect((await sandbox.runCode('x')).text).toBe('20')
  })

  test('reports a command that the policy refuses', async () => {
    const done = await sandbox.runCode('import os\nos.system("nsenter -t 1 -a ls")')
    expect(done.error.value).toMatch(/nsenter -t 1/)
  })

  test('reports a result that is too long, and keeps its state', async () => {
    await sandbox.runCode('kept = 7')
    const done = await sandbox.runCode('"x" * (20 << 20)')
    expect(done.error).toMatchObject({
      name: 'ResultTooLong',
      value: expect.stringMatching(/write it to a file/),
    })
    expect((await sandbox.runCode('kept')).text).toBe('7')
    // What a program writes past the kernel, in the form of a message that never ends.
    const past = 'import os, sys\nmark = "\\x1e" + os.environ["RINGFENCE_KERNEL"] + " "'
    await sandbox.runCode(`${past}\nos.write(1, mark.encode()); os.write(2, mark.encode())`)
    expect((await sandbox.runCode('kept')).text).toBe('7')
  })

  test('is restarted after it exits', async () => {
    const done = await sandbox.runCode('import os\nos._exit(3)')
    expect(done.error.name).toBe('KernelDied')
    expect((await sandbox.runCode('x')).error.name).toBe('NameError')
    expect((await sandbox.runCode('1 + 1')).text).toBe('2')
  })
})

describe('JavaScript', () => {
  const run = (code: string, more: object = {}): Promise<Loose> =>
    sandbox.runCode(code, { language: 'javascript', ...more })

  test('keeps its state, supports await, and returns the value of the last expression', async () => {
    await run('const x = 20; let y = 1; function twice(n) { return 2 * n }')
    expect((await run('y += 1; twice(x) + y')).text).toBe('42')
    expect((await run('const z = await Promise.resolve(7); z')).text).toBe('7')
    const done = await run('console.log("hello"); console.error("no"); ({ a: [1, z] })')
    expect(done.logs).toEqual({ stdout: ['hello\n'], stderr: ['no\n'] })
    expect(done.results[0]).toMatchObject({ text: '{ a: [ 1, 7 ] }', json: { a: [1, 7] } })
  })

  test('reports errors with a traceback, and keeps its state', async () => {
    const done = await run('function f() { return nothing }\nf()')
    expect(done.error).toMatchObject({ name: 'ReferenceError', value: 'nothing is not defined' })
    expect(done.error.traceback).toMatch(/at f \(cell\d+\.js:1/)
    expect((await run('throw new TypeError("no")')).error).toMatchObject({ name: 'TypeError', value: 'no' })
    expect((await run('await Promise.reject(new Error("later"))')).error.value).toBe('later')
    expect((await run('(')).error.name).toBe('SyntaxError')
    expect((await run('x')).text).toBe('20')
  })

  test('is interrupted at the caller’s timeout, and keeps its state', async () => {
    await expect(run('for (;;);', { timeoutMs: 500 })).rejects.toThrow(/timed out|timeout/i)
    expect((await run('x')).text).toBe('20')
    await expect(run('await new Promise(() => {})', { timeoutMs: 500 })).rejects.toThrow(/timed out|timeout/i)
    expect((await run('require("fs").existsSync("/home/user")')).text).toBe('true')
  })
})

describe('code contexts', () => {
  test('are separate, and can be restarted and removed', async () => {
    const one = await sandbox.createCodeContext({ language: 'python', cwd: '/tmp' })
    const two = await sandbox.createCodeContext({ language: 'python' })
    await sandbox.runCode('name = "one"', { context: one })
    expect((await sandbox.runCode('name', { context: two })).error.name).toBe('NameError')
    expect((await sandbox.runCode('import os\nname, os.getcwd()', { context: one })).text).toBe(
      "('one', '/tmp')",
    )
    expect((await sandbox.listCodeContexts()).map((context: Loose) => context.id)).toEqual(
      expect.arrayContaining([one.id, two.id]),
    )
    await sandbox.restartCodeContext(one)
    expect((await sandbox.runCode('name', { context: one })).error.name).toBe('NameError')
    await sandbox.removeCodeContext(one)
    await expect(sandbox.runCode('1', { context: one })).rejects.toThrow(/no context/)
  })

  test('exist for Python and JavaScript from the start, and an unknown language is refused', async () => {
    const { Sandbox } = await client('@e2b/code-interpreter')
    const fresh = await Sandbox.create(here.options)
    const list = async (): Promise<string[]> =>
      (await fresh.listCodeContexts()).map((context: Loose) => context.language)
    expect(await list()).toEqual(['python', 'javascript'])
    await fresh.runCode('true', { language: 'bash' })
    expect(await list()).toEqual(['python', 'javascript', 'bash'])
    await expect(fresh.createCodeContext({ language: 'cobol' })).rejects.toThrow(
      /not supported; available: python, javascript, typescript, bash, r, java/,
    )
    await fresh.kill()
  })

  test('require a token', async () => {
    const answer = await fetch(`${here.options.apiUrl}/contexts`, {
      headers: { 'e2b-sandbox-id': sandbox.sandboxId, 'e2b-sandbox-port': '49999' },
    })
    expect(answer.status).toBe(401)
  })
})
