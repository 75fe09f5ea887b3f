import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { networkPolicyOf } from '../../src/policy/network/network.ts'
import { publicFetcher } from '../../src/wasm/host/fetch.ts'
import { WasmSandbox } from '../../src/wasm/sandbox.ts'
import { compileC, hasClang } from './compile-c.ts'

/** Components that compilers made; src/wasm/component/component.test.ts has those that are built byte by byte. */

const installed = join(import.meta.dirname, 'toolchains', 'node_modules', '@bytecodealliance')
const hasTools = existsSync(installed)
const why = hasTools ? '' : ' (skipped: installed by npm run test:full)'

const place = mkdtempSync(join(tmpdir(), 'rf-components-'))
const box = new WasmSandbox({ fuel: 1_000_000_000, epochDeadline: 300 })
afterAll(() => {
  box.close()
  rmSync(place, { recursive: true, force: true })
})

/** A C program as a core module, and the same program as a component. */
function bothOf(source: string): { readonly core: Uint8Array; readonly component: Uint8Array } {
  const core = compileC(source)
  writeFileSync(join(place, 'core.wasm'), core)
  const args = [
    join(installed, 'jco', 'dist', 'jco.js'),
    'new',
    'core.wasm',
    '--wasi-command',
    '-o',
    'c.wasm',
  ]
  execFileSync(process.execPath, args, { cwd: place, stdio: 'pipe' })
  return { core, component: readFileSync(join(place, 'c.wasm')) }
}

function fromJavaScript(source: string): Uint8Array {
  writeFileSync(join(place, 'main.js'), source)
  const world = 'package local:skill; world skill { export execute: func(input: string) -> string; }'
  writeFileSync(join(place, 'skill.wit'), world)
  const program = join(installed, 'componentize-js', 'src', 'cli.js')
  const args = [program, 'main.js', '--wit', 'skill.wit', '-o', 'js.wasm']
  execFileSync(process.execPath, args, { cwd: place, stdio: 'pipe' })
  return readFileSync(join(place, 'js.wasm'))
}

/** A workspace with a granted directory, a file beside it and a link that leads outside. */
function workspace(): string {
  const dir = mkdtempSync(join(place, 'w-'))
  for (const name of ['data', 'private']) mkdirSync(join(dir, name))
  writeFileSync(join(dir, 'data', 'a.txt'), 'alpha')
  writeFileSync(join(dir, 'private', 'key.txt'), 'hidden')
  symlinkSync('/etc/hostname', join(dir, 'data', 'out'))
  return dir
}

const FILES = `
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static void show(const char *path) {
  char text[64] = {0};
  FILE *file = fopen(path, "r");
  if (file) fread(text, 1, 60, file), fclose(file);
  fprintf(stderr, "%s: %s\\n", path, file ? text : strerror(errno));
}
int main(int argc, char **argv) {
  struct stat stat_;
  show("/data/a.txt"); show("/private/key.txt"); show("/etc/passwd"); show("/data/../private/key.txt"); show("/data/out");
  FILE *file = fopen("/data/b.txt", "w");
  if (file) fputs("beta", file), fclose(file);
  file = fopen("/data/b.txt", "a");
  if (file) fputs(" gamma", file), fclose(file);
  show("/data/b.txt");
  fprintf(stderr, "mkdir %d rename %d", mkdir("/data/d", 0755), rename("/data/b.txt", "/data/d/c.txt"));
  fprintf(stderr, " stat %d %d\\n", stat("/data/d/c.txt", &stat_), (int)stat_.st_size);
  fprintf(stderr, "link %d", symlink("c.txt", "/data/d/l")); fprintf(stderr, " %d\\n", symlink("/etc/passwd", "/data/d/p"));
  show("/data/d/l");
  DIR *dir = opendir("/data/d");
  int count = 0;
  for (struct dirent *entry; dir && (entry = readdir(dir));) count += entry->d_name[0] != '.';
  fprintf(stderr, "entries %d unlink %d rmdir %d\\n", count, unlink("/data/d/l"), rmdir("/data/d"));
  int fd = open("/data/a.txt", O_RDONLY);
  char byte = 0;
  lseek(fd, 2, SEEK_SET); read(fd, &byte, 1);
  printf("{\\"args\\":%d,\\"byte\\":\\"%c\\",\\"last\\":\\"%s\\"}\\n", argc, byte, argv[argc - 1]);
  return 0;
}`

describe.skipIf(!hasTools || !hasClang)(`a C program as a component${why}`, { timeout: 120_000 }, () => {
  it('sees the files, the errors and the violations that it sees as a core module', async () => {
    const { core, component } = bothOf(FILES)
    const grants = ['FileRead(data/**)', 'FileWrite(data/**)']
    const [one, two] = [workspace(), workspace()]
    const asModule = await box.run(core, ['x', 'y'], { grants, workspace: one })
    const asComponent = await box.run(component, ['x', 'y'], { grants, workspace: two })
    expect(asComponent).toMatchObject({ ok: { args: 3, byte: 'p', last: 'y' } })
    const lines = ({ log }: typeof asModule): readonly string[] =>
      log.map(({ text }) => text).filter((text) => text !== '')
    // WASI 0.2 has no error code of its own for a missing capability.
    const same = (text: string): string =>
      text.replace('Capabilities insufficient', 'Operation not permitted')
    expect(lines(asComponent)).toEqual(lines(asModule).map(same))
    expect(asComponent.violations).toEqual(asModule.violations)
    expect(asComponent.violations.length).toBeGreaterThan(2)
    expect(JSON.stringify(asComponent.log)).not.toMatch(/hidden|root:/)
    expect(readFileSync(join(two, 'data', 'd', 'c.txt'), 'utf8')).toBe('beta gamma')
  })

  it('has the exit code, the input, the variables and the limits of a core module', async () => {
    const source = `#include <stdio.h>
      #include <stdlib.h>
      int main(int argc, char **argv) {
        int c = getchar();
        if (c == '1') exit(3);
        if (c == '2') for (volatile int i = 0;; i++);
        if (c == '3') for (char *volatile more;;) if (!(more = malloc(1 << 20))) { puts("[\\"full\\"]"); return 0; }
        printf("[\\"%s\\"]\\n", getenv("CITY"));
      }`
    const { component } = bothOf(source)
    expect(await box.run(component, 0, { env: { CITY: 'Bern' } })).toMatchObject({ ok: ['Bern'] })
    // The older of the two exit functions knows only success and failure.
    expect(await box.run(component, 1)).toMatchObject({ error: { code: 'guest-error' } })
    expect(await box.run(component, 2)).toMatchObject({
      error: { code: 'resource-exhausted', resource: 'fuel' },
      fuel: 1_000_000_000,
      violations: [{ violationType: 'ResourceExhausted', details: 'fuel' }],
    })
    expect(await box.run(component, 3)).toMatchObject({ ok: ['full'] })
  })
})

const SCRIPT = `export async function execute(input) {
  const { url, body, loop, now } = JSON.parse(input)
  if (loop) for (;;);
  if (now) return JSON.stringify([Date.now(), Math.random()])
  const reply = await fetch(url, body ? { method: 'POST', body, headers: { 'x-said': 'yes' } } : {})
  return JSON.stringify({ status: reply.status, type: reply.headers.get('content-type'), text: await reply.text() })
}`

describe.skipIf(!hasTools)(`JavaScript as a component${why}`, { timeout: 300_000 }, () => {
  const server = createServer((request, response) => {
    let body = ''
    request.on('data', (part) => (body += part))
    request.on('end', () => {
      response.setHeader('content-type', 'text/plain')
      response.end(`${request.method} ${request.url} ${request.headers['x-said'] ?? ''} ${body}`)
    })
  })
  let bytes: Uint8Array
  let port: number
  beforeAll(async () => {
    bytes = fromJavaScript(SCRIPT)
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    port = (server.address() as AddressInfo).port
  }, 300_000)
  afterAll(() => server.close())

  it('fetches from granted hosts only', async () => {
    const url = `http://127.0.0.1:${port}/a?b=1`
    const open = { allowPrivate: ['127.0.0.1/32'] }
    const options = { fetcher: publicFetcher(open), network: networkPolicyOf(open) }
    const grants = [`NetConnect(127.0.0.1:${port})`]
    expect(await box.run(bytes, { url }, { ...options, grants })).toMatchObject({
      ok: { status: 200, type: 'text/plain', text: 'GET /a?b=1  ' },
    })
    expect(await box.run(bytes, { url, body: 'é' }, { ...options, grants })).toMatchObject({
      ok: { status: 200, text: 'POST /a?b=1 yes é' },
    })
    expect(await box.run(bytes, { url }, options)).toMatchObject({
      error: { code: 'trap' },
      violations: [{ violationType: 'CapabilityDenied', details: `NetConnect 127.0.0.1:${port}` }],
    })
    expect(await box.run(bytes, { url }, { fetcher: publicFetcher(), grants })).toMatchObject({
      error: { code: 'trap' },
      violations: [{ violationType: 'SsrfBlocked' }],
    })
  })

  it('has a clock and random numbers that repeat, unless real ones are granted', async () => {
    const once = (grants: readonly string[] = []) => box.run(bytes, { now: true }, { grants })
    const [first, second] = [await once(), await once()]
    expect(first).toMatchObject({ ok: (second as { ok: unknown }).ok })
    const real = (await once(['ToolInvoke(clock)', 'ToolInvoke(random)'])) as unknown as {
      ok: [number, number]
    }
    expect(real.ok[0]).toBeGreaterThan(1_600_000_000_000)
  })

  it('ends when its fuel is used up', async () => {
    expect(await box.run(bytes, { loop: true })).toMatchObject({
      error: { code: 'resource-exhausted', resource: 'fuel' },
    })
  })
})
