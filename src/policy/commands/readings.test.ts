// biome-ignore-all lint/suspicious/noTemplateCurlyInString: these are shell lines, not templates
import { describe, expect, it } from 'vitest'
import { compilePolicy } from '../policy.ts'
import { judgeLine } from './judge.ts'

const policy = compilePolicy({})
const judge = (line: string, shell = 'bash') =>
  judgeLine(policy, line, { workspace: '/workspace', home: '/home/agent', shell })

/** Lines that were misread before, and similar lines that are dangerous. */

describe('ordinary lines are judged by what they do', () => {
  it.each([
    "python3 - <<'EOF'\n#!/usr/bin/env python3\nopen('out.txt','w').write('x')\nEOF",
    `python3 -c "x=3; print(f'{x}/12')"`,
    `python3 -c "open('model.pth','wb').write(b'x')"`,
    `python3 -c "open('a','w').write('~450 of ~5.5GB')"`,
    `python3 -c "open('a','w').write('a/b'.split('/')[0])"`,
    `python3 -c "import subprocess; print(subprocess.run(['git','status'],capture_output=True).stdout)"`,
    'cp best.pth checkpoints/model.pth',
    'NODE_OPTIONS=--max-old-space-size=4096 npm run build',
    'pip install -e .[dev]',
    'pip install uvicorn[standard]',
    'mount | grep ext4',
    'tshark -r cap.pcap -Y http',
    'aws --version',
    'az --version',
    'docker --version',
    'yt-dlp -f mp4',
    'for f in *; do mv "$f" "x-$f"; done',
    'path=src/a; cat $path',
    'cat .../x',
    'git branch -d done',
    'curl -s http://localhost:8000/health',
    'python3 server.py & PID=$!; kill $PID',
    "find . -name '*.[ch]' | xargs grep -E 'expr'",
    "find . -name '*.py[co]' -exec rm -f {} +",
    "find . -name '*.ts' -not -path './node_modules/*'",
    `python3 -c "n = len(d) // 4; open('w.json','w').write(str(n))"`,
    'ls -la .env 2>/dev/null || echo none',
    'ls -d .*',
    'find .*',
    'stat .env && git status',
    'run-s format test:lib',
    'npm-run-all --parallel "build:*"',
    './scripts/format',
    'rm **/*.pyc',
    'mount -l -t nfs4',
  ])('%s', (line) => expect(['allow', 'sandbox'], judge(line).reason).toContain(judge(line).action))

  it.each([
    'cp notes.txt ~/',
    'cp notes.txt /',
    'mkdir -p .github/workflows',
    'echo x > .github/workflows/ci.yml',
    'touch .gitlab-ci.yml',
  ])('can be approved: %s', (line) => expect(judge(line).action).toBe('ask'))
})

describe('similar lines stay refused', () => {
  it.each([
    'cp evil.pth venv/lib/python3.12/site-packages/x.pth',
    'NODE_OPTIONS=--require=./x.js node a.js',
    'NODE_OPTIONS="--max-old-space-size=1 --import=./x.mjs" node a.js',
    'mount -o remount,rw /',
    'mount --bind a b',
    'tshark -i eth0',
    'tcpdump -i any -r x',
    'mv ~/* /tmp/x',
    'format c: /q',
    'rm -rf */*',
    'rm -rf ./$dir/*',
    'mount -t nfs4 host:/x y',
    'run-s --npm-path ./evil build',
    'ls .env | xargs cat',
    'cat $(ls .env)',
    'ls .env > names; xargs cat < names',
    "eval ls .env $'\\x7c' xargs cat",
    'ls -d .* | while read f; do cat "$f"; done',
    'find .env -exec cat {} +',
    'ls .env; cat .env',
    'ls -la ~/.aws/credentials',
    'cp -r evil/. ~',
    'cp -rT evil ~',
    'cp -T evil ~/.bashrc',
    'mv -T evil .git/hooks/pre-commit',
    'cp evil/.bashrc ~/',
    'cp * ~/',
    'mv .env x && cat x',
    'PATH=.:$PATH ls',
    'curl http://127.1:8000/',
    'curl http://localhost:2375/containers/json',
    'kill -STOP $PPID',
    'kill -9 1234',
    'pkill -f ringfence',
    `python3 -c "import subprocess; subprocess.run(['rm','-rf','/home/agent'])"`,
    `python3 -c "import os; os.system('r'+'m -rf /')"`,
    `python3 -c "import shutil; shutil.rmtree('/')"`,
  ])('%s', (line) => expect(['ask', 'deny']).toContain(judge(line).action))

  it('treats `path` as `PATH` in zsh', () => expect(judge('path=(. $path)', 'zsh').action).toBe('ask'))
})

describe('a line is allowed on the host only if all its effects are known', () => {
  it.each([
    'cat -v ~/.ssh/id_rsa',
    'grep --color KEY ~/.ssh/id_rsa',
    'od -b /etc/shadow',
    'column -t .env',
    'paste -s .env',
    'diff --unified .env /dev/null',
    'cat .e?v',
    'cat .[e]nv',
    'cat .*',
    'shopt -s dotglob; cat *',
    "find . -name '.e*' -exec cat {} +",
    "find . -name '.e*' | xargs cat",
    'git show HEAD:.env',
    'git log -p -- .env',
    "git grep -h . -- '.e*'",
    'cat /dev/fd/../environ',
    'cat /proc/self/fd/3/../../etc/shadow',
    'cat /proc/self/task/1/root/etc/shadow',
    `gawk '@load "./evil"; BEGIN{}'`,
    'grep -r --include=.env . .',
    'strings @/etc/shadow',
    'awk -f /etc/shadow x',
  ])('asks or denies: %s', (line) =>
    expect(['ask', 'deny'], judge(line).reason).toContain(judge(line).action),
  )

  it.each([
    'tail /dev/zero',
    'sort /dev/urandom',
    'printf "%2147483647d" 1',
    'seq 1 999999999999',
    'seq -f%2000000000f 1',
    'seq 0 .00001 999999',
    'seq 1 0 5',
    'sleep infinity',
    'shuf -r -e x',
    `awk 'BEGIN{while(1);}'`,
    `awk '{x=x x} END{print x}' a`,
    `sed ':a;s/^/x/;ta' a`,
    `sed 'H;G;h' a`,
    `jq 'def f: f; f' a.json`,
    `jq '"x" * 1e9' a.json`,
    'expand -t 2000000000 a',
    'cat --no-such-option a',
    'cat *',
    'wc -l *',
    'grep -r foo .',
    'busybox cat a',
    'git status',
    'cd evil && git status',
    'yarn --version',
    'cargo --version',
    'dotnet --version',
    'python3 -v',
    'tac -s x $FILES',
    'head -n $N a.txt',
    'ls -R /',
    'zgrep x a.gz',
  ])('is never allowed on the host: %s', (line) => expect(judge(line).action).not.toBe('allow'))

  it.each([
    'cat -n src/a.ts',
    'grep -n --color=auto TODO src/a.ts',
    "sed -n '1,5p' a",
    "awk '{print $1}' a",
    "awk -F: '$3 > 5 {s += $3} END {print s}' a",
    'jq ".scripts | keys" package.json',
    'sort -t: -k2,2n a | uniq -c',
    'head -c 100 a',
    'diff -u a b',
    "find src -name '*.ts' -newer a",
    'node --version',
  ])('is still allowed on the host: %s', (line) =>
    expect(judge(line).action, judge(line).reason).toBe('allow'),
  )
})

describe('a here-document without a terminator', () => {
  const action = (line: string) => judge(line).action

  it('is text up to the end of the line, as in bash', () => {
    expect(action("cat <<'EOF' > notes.md\n# Title\n`code`")).toBe('sandbox')
    expect(action("bash <<'EOF'\nrm -rf /")).toBe('deny')
  })

  it('cannot be judged where shells differ', () => {
    expect(action('cat <<EOF > notes.md\n$(id)')).toBe('ask')
    expect(action('cat <(cat <<E\nx\nE\ncase $a in *) ls;; esac)')).toBe('ask')
    expect(action('declare w=<(ls); ${w:+rm} ls -rf ~')).toBe('ask')
    expect(action('w=<(ls) cat x')).toBe('ask')
    expect(action("echo $(cat <<'EOF'\nx")).toBe('ask')
  })
})
