import { readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { type Attack, says } from './attack.ts'
import { contentOf, exists } from './world.ts'

/** Protected names reached by other ways than writing a file: renames, links, shapes, settings, metadata. */

const python = (...lines: readonly string[]): string => `python3 - <<'X'\n${lines.join('\n')}\nX`

/** renameat2(RENAME_EXCHANGE), which no shell has. */
const EXCHANGE = [
  'import ctypes,os',
  'exchange=lambda a,b: ctypes.CDLL(None).renameat2(-100,a.encode(),-100,b.encode(),2)',
]

/** Makes the working directory a repository; the last file is written only if everything else was. */
const REPOSITORY_HERE = [
  'os.mkdir("objects"); os.mkdir("refs"); open("HEAD","w").write("ref: refs/heads/x\\n")',
  'open("config","w").write("PWNED"); open("made","w").write("PWNED")',
]

const planted = (name: string, script: string, file: string): Attack => ({
  name,
  script: () => script,
  succeeded: (_, __, workspace) => contentOf(join(workspace, file)).includes('PWNED'),
})

const MOVES: readonly Attack[] = [
  planted(
    'build a repository where paths are too long to be judged, and move it up',
    `${python(
      'import os',
      'top=os.open(".",os.O_RDONLY); n="d"*200',
      'for i in range(25): os.mkdir(n); os.chdir(n)',
      'os.makedirs("r/.git"); open("r/.git/config","w").write("PWNED")',
      'os.rename("r","up",src_dir_fd=os.open(".",os.O_RDONLY),dst_dir_fd=top)',
    )}\nrm -rf d*`,
    'up/.git/config',
  ),
  planted(
    'build a repository whose own path is just short enough, and move it up',
    `${python(
      'import os',
      'top=os.open(".",os.O_RDONLY)',
      'while (rest := 4091-len(os.getcwdb())) > 0: name="d"*(rest if rest <= 200 else 199); os.mkdir(name); os.chdir(name)',
      ...REPOSITORY_HERE,
      'os.chdir(".."); os.rename(name,"up",dst_dir_fd=top)',
    )}\nrm -rf d*`,
    'up/made',
  ),
  planted(
    'build a repository below a directory that nobody may search',
    `mkdir -p A/b; (cd A/b; chmod 0 ..; ${python('import os', ...REPOSITORY_HERE)}\n); chmod 755 A`,
    'A/b/made',
  ),
  planted(
    'exchange a directory for one among dependencies, where names are free',
    `mkdir -p node_modules/p/.vscode other; echo PWNED > node_modules/p/.vscode/tasks.json; ${python(...EXCHANGE, 'exchange("other","node_modules/p")')}`,
    'other/.vscode/tasks.json',
  ),
  planted(
    'exchange a symlink for one to a dependency directory',
    `mkdir -p node_modules/p/.vscode; echo PWNED > node_modules/p/.vscode/tasks.json; ln -s node_modules/p node_modules/l; ln -s x d; ${python(...EXCHANGE, 'exchange("d","node_modules/l")')}`,
    'd/.vscode/tasks.json',
  ),
  planted(
    'exchange a link for a directory that leads to protected names',
    `mkdir -p w/workflows .github; echo PWNED > w/workflows/ci.yml; ln -s w l; ${python(...EXCHANGE, 'exchange("l",".github")')}`,
    '.github/workflows/ci.yml',
  ),
  planted(
    'exchange it the other way round',
    `mkdir -p w/workflows .github; echo PWNED > w/workflows/ci.yml; ln -s w l; ${python(...EXCHANGE, 'exchange(".github","l")')}`,
    '.github/workflows/ci.yml',
  ),
  planted(
    'rename a link onto a directory’s name',
    'mkdir -p w/workflows; echo PWNED > w/workflows/ci.yml; ln -s w l; mv -T l .github',
    '.github/workflows/ci.yml',
  ),
  planted(
    'give a link a second name',
    'mkdir -p w/workflows; echo PWNED > w/workflows/ci.yml; ln -s w l; ln -P l .github',
    '.github/workflows/ci.yml',
  ),
  planted(
    'lead git to other attributes by a link',
    'mkdir w; echo PWNED > w/attributes; ln -s ../w l; rmdir .git/info; mv -T l .git/info',
    '.git/info/attributes',
  ),
  planted(
    'lead git to other objects by a link',
    'mkdir w; echo PWNED > w/alternates; ln -s ../../w l; rmdir .git/objects/info; mv -T l .git/objects/info',
    '.git/objects/info/alternates',
  ),
  {
    name: 'create a protected name as a socket',
    script: () => python('import socket', 'socket.socket(socket.AF_UNIX).bind(".envrc")'),
    succeeded: (_, __, workspace) => exists(join(workspace, '.envrc')),
  },
  {
    // The process that makes the call has other descriptors under these numbers.
    name: 'create a protected name as a socket, by a descriptor of the process that binds it',
    script: () =>
      python(
        'import os,shutil,socket,tempfile',
        'other=tempfile.mkdtemp(); d=os.open(other,os.O_RDONLY)',
        'def bind(path):',
        '  try: socket.socket(socket.AF_UNIX).bind(path)',
        '  except OSError: pass',
        'for n in range(d+1,40): os.dup2(d,n); bind(f"/proc/self/fd/{n}/.envrc"); os.close(n)',
        'bind("/proc/self/cwd/.envrc"); shutil.rmtree(other)',
      ),
    succeeded: (_, __, workspace) => exists(join(workspace, '.envrc')),
  },
]

const REPOSITORIES: readonly Attack[] = [
  planted(
    'a repository without the name',
    'mkdir -p b/objects b/refs; echo "ref: refs/heads/x" > b/HEAD && echo PWNED > b/config',
    'b/config',
  ),
  planted(
    'the same, put together by renames',
    'mkdir -p b/refs o; echo PWNED > b/config; echo "ref: refs/heads/x" > b/HEAD; mv o b/objects && cat b/config > b/made',
    'b/made',
  ),
  planted(
    'the same, with the configuration of another directory',
    'mkdir -p node_modules/b c/objects c/refs; echo PWNED > c/config; echo ../../c > node_modules/b/commondir; echo "ref: refs/heads/x" > node_modules/b/HEAD && cat c/config > node_modules/b/made',
    'node_modules/b/made',
  ),
  planted(
    'the git directory of a nested repository that lies elsewhere',
    'echo PWNED > real/split.git/hooks/post-commit',
    'real/split.git/hooks/post-commit',
  ),
  planted('its configuration', 'echo "#PWNED" >> real/split.git/config', 'real/split.git/config'),
  planted(
    'its configuration, once it is no repository any more',
    'mv real/split.git/HEAD h && echo PWNED > real/split.git/config',
    'real/split.git/config',
  ),
  planted(
    'where core.hooksPath points',
    'mkdir -p tools/hooks; echo PWNED > tools/hooks/pre-commit',
    'tools/hooks/pre-commit',
  ),
  planted('what the configuration includes', 'echo "#PWNED" >> shared.gitconfig', 'shared.gitconfig'),
  planted(
    'what it includes, by a directory that is moved there',
    'mkdir w; echo PWNED > w/hooks; mv tools t; mv w tools',
    'tools/hooks',
  ),
  planted(
    'commands for the next rebase --continue',
    'mkdir -p .git/rebase-merge; echo "exec PWNED" > .git/rebase-merge/git-rebase-todo',
    '.git/rebase-merge/git-rebase-todo',
  ),
  planted(
    'commands for the next cherry-pick --continue',
    'mkdir -p .git/sequencer; echo "exec PWNED" > .git/sequencer/todo',
    '.git/sequencer/todo',
  ),
  planted('a package manager’s settings', 'echo "script-shell=PWNED" > .npmrc', '.npmrc'),
  planted('a package manager’s own code', 'echo PWNED > .pnpmfile.cjs', '.pnpmfile.cjs'),
  planted('tools that a shell switches to', 'echo PWNED > mise.toml', 'mise.toml'),
]

/** Whether the host's own first process can be looked into at all. */
function closedInit(): string | undefined {
  try {
    readFileSync('/proc/1/maps')
    return undefined
  } catch {
    return 'the first process of this machine is closed to us without a wall too'
  }
}

const CONFIG = '.git/config'

const METADATA: readonly Attack[] = [
  {
    name: 'change the times of a protected file',
    script: () => `touch -d @1000000 ${CONFIG}`,
    succeeded: (_, __, workspace) => statSync(join(workspace, CONFIG)).mtimeMs === 1e9,
  },
  {
    name: 'change the times of a protected file through a descriptor',
    script: () => python('import os', `os.utime(os.open("${CONFIG}",os.O_RDONLY),(1e6,1e6))`),
    succeeded: (_, __, workspace) => statSync(join(workspace, CONFIG)).mtimeMs === 1e9,
  },
  ...(['path', 'descriptor'] as const).map(
    (by): Attack => ({
      name: `set an attribute of a protected file by its ${by}`,
      script: () =>
        python(
          'import os',
          `at=${by === 'path' ? `"${CONFIG}"` : `os.open("${CONFIG}",os.O_RDONLY)`}`,
          'os.setxattr(at,"user.x",b"1"); print("got" if os.getxattr(at,"user.x")==b"1" else "")',
        ),
      succeeded: says('got'),
    }),
  ),
  {
    name: 'change the flags of a protected file through a read-only descriptor',
    script: () =>
      python(
        'import fcntl,os,struct',
        `f=os.open("${CONFIG}",os.O_RDONLY); flags=lambda: struct.unpack("l",fcntl.ioctl(f,0x80086601,b"\\0"*8))[0]`,
        'fcntl.ioctl(f,0x40086602,struct.pack("l",flags()|0x40)); print("got" if flags()&0x40 else "")',
      ),
    succeeded: says('got'),
  },
  {
    name: 'make the guard open files of PID 1',
    script: () =>
      python(
        'import os',
        'for name in ("environ","maps","auxv"):',
        ' try: print("got",os.read(os.open("/proc/1/"+name,os.O_RDONLY|os.O_CREAT),9))',
        ' except OSError as error: print(error.strerror)',
      ),
    succeeded: says('got'),
    notApplicable: closedInit,
  },
]

/** Attacks on `fs.protect` through git repositories and metadata. */
export const REPOSITORY: readonly Attack[] = [...MOVES, ...REPOSITORIES, ...METADATA]
