import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { FULL, makeTestHost, type TestHost, text } from './persistent-sandbox.ts'

/** Calls that PID 1 makes on behalf of a command, with exactly the command's rights. */

let testHost: TestHost
beforeAll(() => {
  testHost = makeTestHost('guard')
})
afterAll(() => testHost.drop())

const python = (...lines: readonly string[]): string => `python3 - <<'X'\n${lines.join('\n')}\nX`

async function said(spec: Record<string, unknown>, lines: string, name = 'guard.sh'): Promise<string> {
  await using sandbox = await testHost.open(spec)
  const { stdout, stderr } = await sandbox.exec(testHost.script(name, lines))
  return text(stdout) + text(stderr)
}

describe('files that PID 1 opens on behalf of a command', () => {
  const tryAll = python(
    'import os',
    'def t(path,flags):',
    ' try: os.close(os.open(path,flags)); print(path,"opened")',
    ' except OSError as error: print(path,error.strerror)',
    'for name in ("mem","maps","environ","auxv"):',
    ' for flags in (os.O_RDONLY,os.O_RDWR): t("/proc/1/"+name,flags|os.O_CREAT); t("/proc/1/task/1/"+name,flags|os.O_CREAT)',
    't("/proc/self/root/proc/1/mem",os.O_RDWR|os.O_CREAT)',
  )

  test.each(['workspace-write', 'danger-full-access'])(
    'do not include files of PID 1, preset %s',
    async (preset) => {
      expect(await said({ preset }, tryAll)).not.toContain('opened')
    },
  )

  test('include those of the command itself and of its children', async () => {
    const own = python(
      'import os',
      'for path in ("/proc/self/comm","/proc/self/oom_score_adj",f"/proc/{os.getpid()}/mem"):',
      ' os.close(os.open(path,os.O_RDWR|os.O_CREAT))',
      'child=os.fork()',
      'if child==0: os.pause() if hasattr(os,"pause") else __import__("signal").pause()',
      'os.close(os.open(f"/proc/{child}/oom_score_adj",os.O_RDWR|os.O_CREAT)); os.kill(child,9); print("fine")',
    )
    expect(await said({ preset: 'danger-full-access' }, own)).toBe('fine\n')
  })
})

describe('two sandboxes with one workspace', () => {
  const half = (create: string, remove: string): string =>
    python(
      'import os,time',
      'os.makedirs("raced/refs",exist_ok=True); both=0',
      'has=lambda: os.path.lexists("raced/HEAD") and os.path.lexists("raced/objects")',
      `end=time.time()+${FULL ? 10 : 2}`,
      'while time.time()<end:',
      ` try: ${create}`,
      ' except OSError: pass',
      ' if has(): time.sleep(0.05); both+=has()',
      ` try: ${remove}`,
      ' except OSError: pass',
      'print(both)',
    )

  test('build no git repository together', async () => {
    const halves = [
      half('open("raced/HEAD","w").close()', 'os.unlink("raced/HEAD")'),
      half('os.mkdir("raced/objects")', 'os.rmdir("raced/objects")'),
    ]
    expect(await Promise.all(halves.map((lines, at) => said({}, lines, `half-${at}.sh`)))).toEqual([
      '0\n',
      '0\n',
    ])
  })
})

describe('a path that protected git or editor settings point to', () => {
  const repository = (name: string, config: string): string => {
    const root = join(testHost.workspace, name)
    mkdirSync(join(root, '.git'), { recursive: true })
    writeFileSync(join(root, '.git', 'config'), config)
    return root
  }

  test('is protected at another mount target', async () => {
    const root = repository('mounted', '[core]\n\thooksPath = tools/hooks\n')
    mkdirSync(join(root, 'tools', 'hooks'), { recursive: true })
    const out = await said(
      { mounts: [{ source: root, target: '/elsewhere' }] },
      'echo x > /elsewhere/tools/hooks/pre-commit; echo y > /elsewhere/tools/other && echo fine',
    )
    expect(out).toContain('fine')
    expect(existsSync(join(root, 'tools', 'hooks', 'pre-commit'))).toBe(false)
  })

  test('is protected behind a symlink of the host', async () => {
    const root = repository('linked', '')
    mkdirSync(join(root, 'settings'))
    symlinkSync('settings', join(root, '.vscode'))
    await said({}, `echo x > ${root}/settings/tasks.json; mv ${root}/settings ${root}/s2`)
    expect(existsSync(join(root, 'settings', 'tasks.json'))).toBe(false)
    expect(existsSync(join(root, 'settings'))).toBe(true)
  })
})

describe('calls that PID 1 makes on behalf of a command', () => {
  test('bind a unix socket with the address, mode and thread of the command', async () => {
    const lines = python(
      'import os,socket,threading',
      'os.umask(0o77); os.makedirs("d",exist_ok=True); os.chdir("d")',
      's=socket.socket(socket.AF_UNIX)',
      't=threading.Thread(target=lambda: s.bind("../d/own")); t.start(); t.join()',
      'print(s.getsockname(),oct(os.stat("own").st_mode))',
      'try: socket.socket(socket.AF_UNIX).bind("own")',
      'except OSError as error: print(error.strerror)',
      'a=socket.socket(socket.AF_UNIX); a.bind("\\0abstract"); print(a.getsockname())',
      'print(socket.create_server(("127.0.0.1",0)).getsockname()[0])',
    )
    expect(await said({}, lines)).toBe(
      "../d/own 0o140700\nAddress already in use\nb'\\x00abstract'\n127.0.0.1\n",
    )
  })

  test('set times and attributes by path, descriptor and symlink', async () => {
    const lines = python(
      'import os',
      'f=os.open("m",os.O_RDWR|os.O_CREAT); os.symlink("m","l")',
      'os.utime("m",(1,2)); print(os.stat("m").st_mtime)',
      'os.utime(f,ns=(3,4_500_000_000)); print(os.stat("m").st_mtime)',
      'os.utime("l",(5,6),follow_symlinks=False); print(os.lstat("l").st_mtime,os.stat("m").st_mtime)',
      'os.setxattr("m","user.a",b"v"); os.setxattr(f,"user.b",b""); print(sorted(os.listxattr("m")))',
      'os.removexattr(f,"user.a"); print(os.listxattr("l"))',
      'os.chown("l",os.getuid(),-1,follow_symlinks=False); os.fchmod(f,0o600); print(oct(os.stat("m").st_mode))',
    )
    expect(await said({}, lines)).toBe("2.0\n4.5\n6.0 4.5\n['user.a', 'user.b']\n['user.b']\n0o100600\n")
  })
})

describe('paths that PID 1 reads and removes on behalf of a command', () => {
  const tries = python(
    'import ctypes,mmap,os,shutil',
    'libc=ctypes.CDLL(None,use_errno=True)',
    'def t(what,result): print(what,0 if result>=0 else os.strerror(ctypes.get_errno()))',
    'def remove(path,flags=0): t(("rmdir " if flags else "unlink ")+path[:20],libc.unlinkat(-100,path.encode(),flags))',
    'shutil.rmtree("u",ignore_errors=True); os.mkdir("u"); os.chdir("u"); os.mkdir("dir"); os.symlink("file","link"); os.symlink("dir","dirlink")',
    'for name in ("file","dir/file","gone","gone2","gone3"): open(name,"w").close()',
    'for path in ("missing","missing/","missing/x","file/","file/x","dir","dir/","dirlink/file",".","..","","dir/.","link","gone","x"*255,"x"*256,"y/"*2047,"y/"*2048): remove(path)',
    'for path in ("missing","file","dirlink",".","dir/"): remove(path,0x200)',
    'print(sorted(os.listdir(".")))',
    // A name at the end of a page, one that continues on the next page, and one without an end.
    'pages=mmap.mmap(-1,3*4096); base=ctypes.addressof(ctypes.c_char.from_buffer(pages))',
    'libc.mprotect(ctypes.c_void_p(base+8192),4096,0)',
    'def at(offset,text): pages[offset:offset+len(text)]=text; return ctypes.c_void_p(base+offset)',
    't("end of page",libc.unlinkat(-100,at(4096-6,b"gone2\\0"),0))',
    't("two pages",libc.unlinkat(-100,at(4096-3,b"gone3\\0"),0))',
    't("no end",libc.unlinkat(-100,at(8192-4,b"file"),0))',
    't("no page",libc.unlinkat(-100,ctypes.c_void_p(base+8192),0))',
    't("too long",libc.unlinkat(-100,at(4000,b"z"*4096+b"\\0"),0))',
    'print(sorted(os.listdir(".")))',
    'os.mkdir("away"); os.chdir("away"); os.rmdir("../away")',
    't("removed directory",libc.open(b"new",os.O_CREAT|os.O_WRONLY,0o600)); remove("new"); remove("../file")',
    'os.chdir(".."); print(sorted(os.listdir(".")))',
  )

  test('have the results that the kernel gives without a sandbox', async () => {
    const outside = spawnSync('bash', ['-c', tries], { cwd: testHost.workspace, encoding: 'utf8' })
    expect(outside.stderr).toBe('')
    expect(await said({}, tries)).toBe(outside.stdout)
  })

  test('lead to the link itself if a slash follows it, as in the kernel', async () => {
    const calls = python(
      'import ctypes,os,shutil',
      'libc=ctypes.CDLL(None,use_errno=True)',
      'shutil.rmtree("s",ignore_errors=True); os.mkdir("s"); os.chdir("s"); os.mkdir("dir"); os.mkdir("other"); open("file","w").close()',
      'os.symlink("dir","link"); os.symlink("nothing","dangling"); os.symlink("file","filelink")',
      'for name in ("dir","link","dangling","filelink","file","new"):',
      ' path=(name+"/").encode()',
      ' for what,call in (("unlink",lambda: libc.unlink(path)),("mkdir",lambda: libc.mkdir(path,0o700)),("mknod",lambda: libc.mknod(path,0o100600,0)),("symlink",lambda: libc.symlink(b"x",path)),("link",lambda: libc.link(b"file",path)),("file to",lambda: libc.rename(b"file",path)),("link to",lambda: libc.rename(b"filelink",path)),("directory to",lambda: libc.rename(b"other",path)),("from",lambda: libc.rename(path,b"moved")),("exchange",lambda: libc.renameat2(-100,b"other",-100,path,2)),("chmod",lambda: libc.chmod(path,0o700)),("truncate",lambda: libc.truncate(path,0)),("write",lambda: libc.open(path,1)),("rmdir",lambda: libc.rmdir(path))):',
      '  result=call(); print(name,what,0 if result>=0 else os.strerror(ctypes.get_errno()),sorted(os.listdir(".")))',
    )
    const outside = spawnSync('bash', ['-c', calls], { cwd: testHost.workspace, encoding: 'utf8' })
    expect(outside.stderr).toBe('')
    expect(await said({}, calls)).toBe(outside.stdout)
  })

  test('are refused by name only if the entry exists', async () => {
    const names = python(
      'import os',
      'try: os.unlink(".envrc"); print("removed")',
      'except OSError as error: print(error.strerror)',
    )
    expect(await said({}, names)).toBe('No such file or directory\n')
    writeFileSync(join(testHost.workspace, '.envrc'), '')
    expect(await said({}, names)).toBe('Read-only file system\n')
  })
})

describe('disk accounting', () => {
  test('releases the space of replaced and removed files', { timeout: 60_000 }, async () => {
    const lines = python(
      'import os',
      // Each save creates a new file that replaces the previous file.
      'for i in range(1500): open("new","w").write("x"); os.rename("new","saved")',
      // Each file takes half of the space, and is removed again.
      'import time',
      'for i in range(12):',
      ' open("half","wb").write(b"x"*2_000_000); os.unlink("half"); time.sleep(0.06)',
      'print("fine")',
    )
    expect(await said({ limits: { diskMb: 4 } }, lines)).toContain('fine')
  })

  test.runIf(FULL)('counts 17,000 files, more than its table holds', { timeout: 120_000 }, async () => {
    const lines = python(
      'import os',
      'os.mkdir("all")',
      'for i in range(17000): os.close(os.open(f"all/{i}",os.O_WRONLY|os.O_CREAT))',
      'print("fine")',
    )
    expect(await said({ limits: { diskMb: 400 } }, `${lines}\nrm -rf all`)).toContain('fine')
  })

  test('keeps the sandbox usable after a memfd exceeded the memory limit', async () => {
    await using sandbox = await testHost.open({ limits: { memoryMb: 100 } })
    const bomb = python('import os', 'f=os.memfd_create("x")', 'while True: os.write(f,b"x"*1048576)')
    const stopped = await sandbox.exec(testHost.script('bomb.sh', bomb))
    expect(stopped.outcome.kind).not.toBe('exited')
    const { stdout } = await sandbox.exec(['echo', 'fine'])
    expect(text(stdout)).toBe('fine\n')
  })
})
