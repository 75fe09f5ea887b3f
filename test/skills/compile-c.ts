import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** Is there a C compiler for WebAssembly on this machine? */
export const hasClang = existsSync('/usr/bin/clang') && existsSync('/usr/include/wasm32-wasi/stdio.h')
/** Why a test is skipped. */
export const withoutClang = hasClang ? '' : ' (skipped: clang and wasi-libc are not installed)'

/** An ordinary C program or library, compiled by Debian's clang against Debian's wasi-libc. */
export function compileC(source: string, flags: readonly string[] = []): Uint8Array {
  const dir = mkdtempSync(join(tmpdir(), 'rf-c-'))
  try {
    writeFileSync(join(dir, 'main.c'), source)
    const args = ['--target=wasm32-wasi', '-O1', ...flags, '-o', join(dir, 'main.wasm'), join(dir, 'main.c')]
    execFileSync('/usr/bin/clang', args, { stdio: ['ignore', 'ignore', 'pipe'] })
    return readFileSync(join(dir, 'main.wasm'))
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
}

/** A library without a `main`, whose named functions are called from outside. */
export const compileReactor = (source: string, exports: readonly string[]): Uint8Array =>
  compileC(source, ['-mexec-model=reactor', ...exports.map((name) => `-Wl,--export=${name}`)])
