import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { WasmSandbox } from '../../src/wasm/sandbox.ts'
import { hasClang, withoutClang } from './compile-c.ts'

/** The commands of the table of compilers in docs/skills.md. */

const place = mkdtempSync(join(tmpdir(), 'rf-toolchains-'))
const box = new WasmSandbox({ epochDeadline: 100 })
afterAll(() => {
  box.close()
  rmSync(place, { recursive: true, force: true })
})

const guide = readFileSync(join(import.meta.dirname, '..', '..', 'docs', 'skills.md'), 'utf8')

/** Compiles with a command of the guide; `npx asc` is the compiler that is installed beside this file. */
function compile(command: string, file: string, source: string): Uint8Array {
  expect(guide).toContain(`\`${command}\``)
  writeFileSync(join(place, file), source)
  const [program = '', ...args] = command.replace('npx asc', `${process.execPath} ${asc}`).split(' ')
  execFileSync(program, args, { cwd: place, stdio: ['ignore', 'ignore', 'pipe'] })
  return readFileSync(join(place, 'main.wasm'))
}

describe.skipIf(!hasClang)(`C${withoutClang}`, { timeout: 60_000 }, () => {
  it('a program', async () => {
    const command = 'clang --target=wasm32-wasi -O2 -o main.wasm main.c'
    const bytes = compile(command, 'main.c', '#include <stdio.h>\nint main(void) { puts("[1]"); }\n')
    expect(await box.run(bytes)).toMatchObject({ ok: [1] })
  })
  it('a library', async () => {
    const command = 'clang --target=wasm32-wasi -O2 -mexec-model=reactor -Wl,--export=run -o main.wasm main.c'
    const bytes = compile(command, 'main.c', 'int run(int n) { return n * 2; }\n')
    expect(await box.run(bytes, 21)).toMatchObject({ ok: 42 })
  })
  it('without a library', async () => {
    const command =
      'clang --target=wasm32 -Os -nostdlib -Wl,--no-entry -Wl,--export=alloc -Wl,--export=execute -o main.wasm main.c'
    const bytes = compile(
      command,
      'main.c',
      `static char heap[65536];
       void *alloc(unsigned size) { return heap; }
       unsigned long long execute(const char *at, unsigned size) {
         return ((unsigned long long)(unsigned)at << 32) | size;
       }\n`,
    )
    expect(await box.run(bytes, { same: true })).toMatchObject({ ok: { same: true } })
  })
})

const asc = join(import.meta.dirname, 'toolchains', 'node_modules', 'assemblyscript', 'bin', 'asc.js')
const hasAsc = existsSync(asc)
const withoutAsc = hasAsc ? '' : ' (skipped: installed by npm run test:full)'

describe.skipIf(!hasAsc)(`AssemblyScript${withoutAsc}`, { timeout: 120_000 }, () => {
  it('runs as it is compiled, and its abort is the message', async () => {
    const source = `export function run(n: i32): i32 {
      if (n < 0) throw new Error("n is negative");
      let sum = 0;
      for (let i = 1; i <= n; i++) sum += i;
      return sum;
    }\n`
    const bytes = compile('npx asc main.ts -O -o main.wasm', 'main.ts', source)
    expect(await box.run(bytes, 10)).toMatchObject({ ok: 55 })
    expect(await box.run(bytes, -1)).toMatchObject({
      error: { code: 'trap', message: 'abort: n is negative at main.ts:2:18' },
    })
  })
})
