import type { Guarantee } from '../model/guarantee.ts'
import type { World } from './world.ts'

/** Things that must still work behind the wall; a sandbox that breaks tools is switched off by its users. */
export const USES: readonly {
  readonly name: string
  readonly script: string | ((world: World) => string)
  readonly says: string
  /** Only where this is claimed: the use is about what keeps it, and a backend without it may lack the call itself. */
  readonly needs?: Guarantee
}[] = [
  {
    name: 'commit to git',
    script:
      'rm -rf t; git -c init.defaultBranch=x --version >/dev/null && echo work > .git/index.lock && rm .git/index.lock && mkdir -p .git/objects/ab && echo o > .git/objects/ab/cd && echo r > .git/refs/heads/topic && echo fine',
    says: 'fine',
  },
  {
    name: 'write and read files',
    script: 'echo a > f && mv f g && ln g h && ln -s g i && cat i && rm h && mkdir -p d/e && rmdir d/e',
    says: 'a',
  },
  // PLATFORM: not with `stat`: gVisor of 2022 refuses the flag AT_NO_AUTOMOUNT that coreutils sets.
  {
    name: 'modes follow the umask',
    script: `umask 027; touch m; python3 -c "import os; print(oct(os.stat('m').st_mode))"`,
    says: '0o100640',
  },
  {
    name: 'a file without a name keeps its mode, and may get a name',
    script: `python3 - <<'X'
import os
f=os.open('.',os.O_TMPFILE|os.O_RDWR,0o600);os.write(f,b'later')
os.link(f'/proc/self/fd/{f}','named',src_dir_fd=0,follow_symlinks=True)
print(oct(os.stat('named').st_mode),open('named').read())
X`,
    says: '0o100600 later',
    needs: 'fs.protect',
  },
  {
    name: 'times, owners and attributes of its own files',
    script: `touch m && touch -d @5 m && chown -h $(id -u) m && ln -s m n && touch -h n && cp -a m k && python3 -c "import os; print('at', os.stat('k').st_mtime)"`,
    says: 'at 5.0',
  },
  {
    name: 'shared memory, with a file and without',
    script: `python3 - <<'X'
import mmap,os
m=mmap.mmap(-1,1<<20);m[0]=65
if os.fork()==0: m[1]=66; os._exit(0)
os.wait();f=os.memfd_create('x');os.ftruncate(f,4096);n=mmap.mmap(f,4096);n[0]=67
print('shared',m[0]+m[1]+n[0])
X`,
    says: 'shared 198',
  },
  { name: 'use /tmp', script: 'f=$(mktemp) && echo tmp > $f && cat $f', says: 'tmp' },
  {
    name: 'write to /dev/stdout and /dev/null',
    script: 'echo out > /dev/stdout; echo x > /dev/null',
    says: 'out',
  },
  { name: 'named pipes', script: 'mkfifo p; (cat p & echo through > p; wait)', says: 'through' },
  {
    name: 'a private loopback',
    script: 'bash -c "exec 3<>/dev/tcp/127.0.0.1/9" 2>&1 | grep -q refused && echo fine',
    says: 'fine',
  },
  {
    name: 'Unix sockets of its own, in the workspace and in /tmp',
    script: `python3 - <<'X'
import socket,threading
for path in ('own.sock','/tmp/own.sock'):
  s=socket.socket(socket.AF_UNIX);s.bind(path);s.listen(1)
  threading.Thread(target=lambda: s.accept()[0].sendall(b'hello')).start()
  c=socket.socket(socket.AF_UNIX);c.connect(path);print(path,c.recv(9).decode())
X`,
    says: '/tmp/own.sock hello',
  },
  { name: 'here documents and process substitution', script: 'cat <<< here; cat <(echo sub)', says: 'sub' },
  { name: 'a pseudo terminal', script: 'script -qec "echo tty" /dev/null', says: 'tty' },
  {
    name: 'names of packages in a dependency tree',
    script:
      'mkdir -p node_modules/p/.vscode && echo j > node_modules/p/.vscode/s.json && rm -rf node_modules && echo fine',
    says: 'fine',
  },
  {
    name: 'listen on loopback and be reached',
    script: `python3 - <<'X'
import socket,threading
s=socket.create_server(('127.0.0.1',0))
threading.Thread(target=lambda:s.accept()[0].sendall(b'reached')).start()
print(socket.create_connection(s.getsockname()).recv(9).decode())
X`,
    says: 'reached',
  },
  {
    name: 'a unix socket in the workspace, and a pair',
    script: `python3 - <<'X'
import socket
s=socket.socket(socket.AF_UNIX);s.bind('own.sock');s.listen(1)
c=socket.socket(socket.AF_UNIX);c.connect('own.sock');p,_=s.accept();p.sendall(b'own ')
a,b=socket.socketpair();a.sendall(b'pair')
print((c.recv(9)+b.recv(9)).decode())
X`,
    says: 'own pair',
  },
  { name: 'trace a child of its own', script: ({ probe }) => `${probe} trace-child`, says: 'yes' },
  {
    name: 'run code from memory',
    script: `python3 - <<'X'
import os
f=os.memfd_create('m');os.write(f,b'#!/bin/sh\\necho from memory\\n');os.set_inheritable(f,True)
os.execv(f'/proc/self/fd/{f}',['m'])
X`,
    says: 'from memory',
  },
  {
    name: 'git: work in a repository that is there',
    script:
      'export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; echo x > f && git add f && git commit -qm one && git checkout -qb topic && git log --oneline | wc -l && git status --short | head -3 && echo fine',
    says: 'fine',
  },
  {
    name: 'npm: a package from the workspace, with its program',
    script: `export HOME=/tmp; mkdir -p pkg && cd pkg && echo '{"name":"local-pkg","version":"1.0.0","bin":"x.js"}' > package.json && printf '#!/usr/bin/env node\nconsole.log("bin works")' > x.js && cd .. && echo '{"private":true}' > package.json && npm install --offline --no-audit --no-fund ./pkg > log 2>&1; npx --offline local-pkg || cat log`,
    says: 'bin works',
  },
  {
    name: 'node',
    script: `node -e 'console.log(require("os").networkInterfaces().lo ? "node works" : "")'`,
    says: 'node works',
  },
  {
    name: 'python with threads and processes',
    script: `python3 -c 'import concurrent.futures as f
if __name__=="__main__":
  print(sum(f.ThreadPoolExecutor(4).map(len,["ab"]*10)))'`,
    says: '20',
  },
  {
    name: 'its own variables',
    script: 'OWN=mine cat /proc/self/environ',
    says: 'OWN=mine',
  },
]
