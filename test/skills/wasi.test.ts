import { execFileSync } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { WasmRunner } from '../../src/wasm/runner.ts'
import { WasmSandbox } from '../../src/wasm/sandbox.ts'
import { compileC, compileReactor, hasClang, withoutClang } from './compile-c.ts'

/** Ordinary C programs, compiled by a real compiler against a real C library. */

const place = mkdtempSync(join(tmpdir(), 'rf-wasi-'))
const workspace = join(place, 'ws')
const runner = new WasmRunner({ threads: 2 })
const box = new WasmSandbox({ runner, epochDeadline: 100 })

beforeAll(() => {
  mkdirSync(join(workspace, 'data'), { recursive: true })
  writeFileSync(join(workspace, 'data', 'in.txt'), 'first\nsecond\n')
  writeFileSync(join(workspace, '.env'), 'SECRET=1')
  writeFileSync(join(place, 'secret'), 'outside')
  symlinkSync(join(place, 'secret'), join(workspace, 'link'))
})
afterAll(() => {
  runner.close()
  rmSync(place, { recursive: true, force: true })
})

const ALL = ['ToolInvoke(file_read)', 'ToolInvoke(file_write)', 'ToolInvoke(file_list)']

describe.skipIf(!hasClang)(`programs in C${withoutClang}`, { timeout: 120_000 }, () => {
  it('get arguments, variables and input, and write a result and a log', async () => {
    const bytes = compileC(`
      #include <stdio.h>
      #include <stdlib.h>
      int main(int argc, char **argv) {
        char line[100];
        fgets(line, sizeof line, stdin);
        fprintf(stderr, "to the log\\nwithout an end");
        printf("{\\"args\\":%d,\\"second\\":\\"%s\\",\\"var\\":\\"%s\\",\\"stdin\\":%s}", argc, argv[2], getenv("GREETING"), line);
      }`)
    expect(await box.run(bytes, ['a', 'b'], { env: { GREETING: 'hi' } })).toMatchObject({
      ok: { args: 3, second: 'b', var: 'hi', stdin: ['a', 'b'] },
      log: [{ text: 'to the log' }, { text: 'without an end' }],
    })
  })

  it('see the same clock and random numbers in every run, unless real ones are granted', async () => {
    const bytes = compileC(`
      #include <stdio.h>
      #include <time.h>
      #include <unistd.h>
      int main(void) {
        struct timespec now, then;
        unsigned chance;
        getentropy(&chance, sizeof chance);
        clock_gettime(CLOCK_REALTIME, &now);
        clock_gettime(CLOCK_MONOTONIC, &then);
        printf("[%lld,%u,%d]", (long long)now.tv_sec, chance, then.tv_nsec >= 0);
      }`)
    const [first, again] = [await box.run(bytes), await box.run(bytes)]
    expect(again).toMatchObject({ ok: 'ok' in first && first.ok, fuel: first.fuel })
    const grants = ['ToolInvoke(clock)', 'ToolInvoke(random)']
    const real = await box.run(bytes, null, { grants })
    const [seconds] = ('ok' in real ? real.ok : []) as number[]
    expect(seconds).toBeGreaterThan(1_700_000_000)
    const other = await box.run(bytes, null, { grants })
    expect('ok' in other && (other.ok as number[])[1]).not.toBe('ok' in real && (real.ok as number[])[1])
  })

  it('can sleep, but not past the deadline', async () => {
    const bytes = compileC(`
      #include <stdio.h>
      #include <stdlib.h>
      #include <unistd.h>
      int main(int argc, char **argv) { sleep(atoi(argv[1])); puts("1"); usleep(1000); }`)
    expect(await new WasmSandbox({ runner, epochDeadline: 40 }).run(bytes, 1)).toMatchObject({ ok: 1 })
    const late = await new WasmSandbox({ runner, epochDeadline: 2 }).run(bytes, 999_999)
    expect(late).toMatchObject({ error: { code: 'timeout' }, violations: [{ violationType: 'Timeout' }] })
  })

  it('read, write, list, rename and remove files of the workspace', async () => {
    const bytes = compileC(`
      #include <dirent.h>
      #include <stdio.h>
      #include <string.h>
      #include <sys/stat.h>
      #include <unistd.h>
      int main(void) {
        char text[64] = {0};
        FILE *in = fopen("data/in.txt", "r");
        fseek(in, 6, SEEK_SET);
        fgets(text, sizeof text, in);
        fclose(in);
        text[strcspn(text, "\\n")] = 0;
        mkdir("out", 0777);
        FILE *out = fopen("/out/a.txt", "w+");
        fputs("one", out);
        rewind(out);
        char back[8] = {0};
        fread(back, 1, 7, out);
        fclose(out);
        out = fopen("out/a.txt", "a");
        fputs(" two", out);
        fclose(out);
        struct stat stat_;
        stat("out/a.txt", &stat_);
        rename("out/a.txt", "out/b.txt");
        FILE *gone = fopen("out/c.txt", "w");
        fclose(gone);
        unlink("out/c.txt");
        int entries = 0;
        DIR *dir = opendir("out");
        for (struct dirent *e; (e = readdir(dir));) if (e->d_name[0] != '.') entries++;
        closedir(dir);
        printf("{\\"second\\":\\"%s\\",\\"back\\":\\"%s\\",\\"size\\":%d,\\"entries\\":%d}", text, back, (int)stat_.st_size, entries);
      }`)
    const result = await box.run(bytes, null, { workspace, grants: ALL })
    expect(result).toMatchObject({
      ok: { second: 'second', back: 'one', size: 7, entries: 1 },
      violations: [],
    })
    expect(readFileSync(join(workspace, 'out', 'b.txt'), 'utf8')).toBe('one two')
    expect(existsSync(join(workspace, 'out', 'c.txt'))).toBe(false)
  })

  const opener = (): Uint8Array =>
    compileC(`
      #include <errno.h>
      #include <stdio.h>
      int main(int argc, char **argv) {
        FILE *file = fopen(argv[1], argv[2]);
        if (file && argv[2][0] == 'w') fputs("changed", file);
        int code = file ? 0 : errno;
        char text[16] = {0};
        if (file && argv[2][0] == 'r') fscanf(file, "%15s", text);
        printf("{\\"errno\\":%d,\\"text\\":\\"%s\\"}", code, text);
      }`)

  it('can access nothing else, and each attempt is a violation', async () => {
    const bytes = opener()
    const open = (path: string, mode: string, grants: readonly string[]) =>
      box.run(bytes, [path, mode], { workspace, grants })
    const NOENT = 44
    const NOTCAPABLE = 76
    expect(await open('data/in.txt', 'r', ['FileRead(data/**)'])).toMatchObject({ ok: { errno: 0 } })
    for (const path of ['../secret', '/../secret', 'data/../../secret', 'link'])
      expect(await open(path, 'r', ALL), path).toMatchObject({
        ok: { errno: NOTCAPABLE, text: '' },
        violations: [{ violationType: 'PathTraversal' }],
      })
    expect(await open('link', 'w', ALL)).toMatchObject({ violations: [{ violationType: 'PathTraversal' }] })
    expect(readFileSync(join(place, 'secret'), 'utf8')).toBe('outside')
    const denied = await open('data/in.txt', 'r', ['FileRead(other/**)'])
    const absent = await open('other/absent', 'r', ['FileRead(other/**)'])
    expect(denied).toMatchObject({
      ok: { errno: NOENT },
      violations: [{ violationType: 'CapabilityDenied' }],
    })
    expect('ok' in absent && absent.ok).toEqual('ok' in denied && denied.ok)
    expect(await open('data/in.txt', 'w', ['FileRead(data/**)'])).toMatchObject({ ok: { errno: NOENT } })
    expect(await open('data/in.txt', 'r+', ['FileWrite(data/**)'])).toMatchObject({ ok: { errno: NOENT } })
    expect(await open('.env', 'r', ALL)).toMatchObject({ ok: { errno: NOENT, text: '' } })
    expect(await open('data/in.txt', 'r', [])).toMatchObject({ ok: { text: '' } })
    expect(readFileSync(join(workspace, 'data', 'in.txt'), 'utf8')).toBe('first\nsecond\n')
  })

  it('see a directory outside the workspace by its own name when it is granted', async () => {
    const bytes = opener()
    const open = (path: string) =>
      box.run(bytes, [path, 'r'], { workspace: join(workspace, 'data'), grants: [`FileRead(${place}/*)`] })
    expect(await open(join(place, 'secret'))).toMatchObject({ ok: { errno: 0, text: 'outside' } })
    expect(await open('/etc/passwd')).toMatchObject({ ok: { text: '' } })
  })

  it('have a bounded number of open files, and all are closed after the run', async () => {
    const bytes = compileC(`
      #include <stdio.h>
      int main(void) { int n = 0; while (fopen("data/in.txt", "r")) n++; printf("%d", n); }`)
    const result = await box.run(bytes, null, { workspace, grants: ALL })
    expect(result).toMatchObject({ ok: expect.any(Number) })
    expect('ok' in result && (result.ok as number)).toBeGreaterThan(50)
    expect('ok' in result && (result.ok as number)).toBeLessThan(200)
    expect(openFilesBelow(workspace)).toEqual([])
  })

  it('cannot use invalid pointers', async () => {
    const bytes = compileC(`
      #include <wasi/api.h>
      int main(int argc, char **argv) {
        return argc > 1 ? (int)__wasi_fd_write(1, (void *)0xfffffff0, 3, (void *)0) : (int)__wasi_random_get((void *)-8, 64);
      }`)
    for (const input of [null, 1])
      expect(await box.run(bytes, input)).toMatchObject({ error: { code: 'abi-error' } })
  })

  it('pay fuel for calls without effect', async () => {
    const bytes = compileC('#include <sched.h>\nint main(void) { for (;;) sched_yield(); }')
    const result = await new WasmSandbox({ runner, fuel: 1_000_000, epochDeadline: 100 }).run(bytes)
    expect(result).toMatchObject({ error: { code: 'resource-exhausted', resource: 'fuel' } })
  })

  it('create links, move directories, and remove entries while listing', async () => {
    const bytes = compileC(`
      #include <assert.h>
      #include <dirent.h>
      #include <errno.h>
      #include <fcntl.h>
      #include <stdio.h>
      #include <string.h>
      #include <sys/stat.h>
      #include <unistd.h>
      int main(void) {
        char name[64], text[64] = {0};
        struct stat own, other;
        assert(mkdir("tree", 0777) == 0 && mkdir("tree/deep", 0777) == 0);
        for (int i = 0; i < 300; i++) {
          snprintf(name, sizeof name, "tree/deep/file-%03d", i);
          close(open(name, O_CREAT | O_WRONLY, 0666));
        }
        assert(symlink("deep/file-000", "tree/soft") == 0 && link("tree/soft", "tree/again") == 0);
        assert(readlink("tree/again", text, sizeof text) == 13 && strcmp(text, "deep/file-000") == 0);
        assert(stat("tree/soft", &own) == 0 && stat("tree/deep/file-000", &other) == 0 && own.st_ino == other.st_ino);
        assert(lstat("tree/soft", &own) == 0 && S_ISLNK(own.st_mode));
        assert(symlink("../../secret", "tree/out") == -1 && errno == 76 && symlink("/etc", "tree/out") == -1);
        assert(rename("tree/deep", "tree/moved") == 0 && rmdir("tree/moved") == -1 && errno == ENOTEMPTY);
        DIR *dir = opendir("tree/moved");
        int removed = 0;
        for (struct dirent *e; (e = readdir(dir));) {
          if (e->d_name[0] == '.') continue;
          assert(unlinkat(dirfd(dir), e->d_name, 0) == 0);
          removed++;
        }
        closedir(dir);
        assert(rmdir("tree/moved") == 0);
        assert(unlink("tree/soft") == 0 && unlink("tree/again") == 0 && rmdir("tree") == 0);
        printf("%d", removed);
      }`)
    const result = await box.run(bytes, null, { workspace, grants: ALL })
    expect(result).toMatchObject({ ok: 300 })
    expect(result.violations.map(({ violationType }) => violationType)).toEqual([
      'PathTraversal',
      'PathTraversal',
    ])
  })

  it('drop rights, renumber streams, append and set times', async () => {
    const bytes = compileC(`
      #include <assert.h>
      #include <errno.h>
      #include <fcntl.h>
      #include <stdio.h>
      #include <string.h>
      #include <sys/stat.h>
      #include <unistd.h>
      #include <wasi/api.h>
      int main(void) {
        int fd = open("rights.txt", O_CREAT | O_RDWR | O_APPEND, 0666);
        assert(write(fd, "ab", 2) == 2 && lseek(fd, 0, SEEK_SET) == 0 && write(fd, "cd", 2) == 2);
        assert(lseek(fd, 0, SEEK_CUR) == 4 && posix_fallocate(fd, 0, 10) == 0);
        struct timespec times[2] = {{1, 5}, {1700000000, 123456789}};
        struct stat own;
        assert(futimens(fd, times) == 0 && fstat(fd, &own) == 0 && own.st_size == 10);
        assert(own.st_mtim.tv_sec == 1700000000 && own.st_mtim.tv_nsec == 123456789 && own.st_atim.tv_nsec == 5);
        __wasi_fdstat_t now;
        assert(__wasi_fd_fdstat_get(fd, &now) == 0 && now.fs_flags == 1);
        assert(__wasi_fd_fdstat_set_rights(fd, now.fs_rights_base & ~__WASI_RIGHTS_FD_WRITE, 0) == 0);
        assert(write(fd, "x", 1) == -1 && errno == EBADF);
        assert(__wasi_fd_fdstat_set_rights(fd, now.fs_rights_base, 0) == 76);
        assert(__wasi_fd_renumber(1, fd) == 0 && write(1, "lost", 4) == -1 && errno == EBADF);
        assert(write(fd, "[1]", 3) == 3 && unlink("rights.txt") == 0);
        return 0;
      }`)
    const result = await box.run(bytes, null, { workspace, grants: ALL })
    expect(result).toMatchObject({ ok: [1], log: [], violations: [] })
  })

  it('may be libraries: `run` is called after `_initialize`', async () => {
    const bytes = compileReactor('#include <stdlib.h>\nint run(int n) { return abs(n) * 2; }', ['run'])
    expect(await box.run(bytes, -21)).toMatchObject({ ok: 42 })
  })
})

const RUSTC = '/usr/bin/rustc'
const hasRust = existsSync(RUSTC) && existsSync('/usr/lib/rustlib/wasm32-wasi')
const RUST = `
use std::{collections::HashMap, env, fs, io::Read};
fn main() {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input).unwrap();
    let mut counts: HashMap<char, usize> = HashMap::new();
    for c in env::args().nth(1).unwrap().chars() { *counts.entry(c).or_default() += 1; }
    let mut sorted: Vec<_> = counts.into_iter().collect();
    sorted.sort();
    fs::write("rust.txt", format!("{:?}", sorted)).unwrap();
    assert!(fs::read_to_string("../secret").is_err());
    println!("[{},{}]", input, fs::read_to_string("rust.txt").unwrap().len());
}`
const why = hasRust ? '' : ' (skipped: Debian’s rustc and libstd-rust-dev-wasm32 are not installed)'

it.skipIf(!hasRust)(`programs in Rust${why}`, { timeout: 120_000 }, async () => {
  const source = join(place, 'main.rs')
  writeFileSync(source, RUST)
  const out = join(place, 'rust.wasm')
  execFileSync(RUSTC, ['--target', 'wasm32-wasi', '-O', '-C', 'strip=symbols', '-o', out, source], {
    stdio: 'ignore',
  })
  expect(await box.run(readFileSync(out), 'hello', { workspace, grants: ALL })).toMatchObject({
    ok: ['hello', 40],
    violations: [{ violationType: 'PathTraversal', details: '../secret' }],
  })
})

/** What this process holds open below a directory; its threads hold descriptors of their own as they start and end. */
const openFilesBelow = (directory: string): string[] =>
  readdirSync('/proc/self/fd')
    .map((fd) => {
      try {
        return readlinkSync(`/proc/self/fd/${fd}`)
      } catch {
        return '' // Closed meanwhile.
      }
    })
    .filter((path) => path.startsWith(`${directory}/`))
