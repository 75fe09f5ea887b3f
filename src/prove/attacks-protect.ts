import { statSync } from 'node:fs'
import { join } from 'node:path'
import type { Attack } from './attack.ts'
import { contentOf, exists } from './world.ts'

/** Changing what would run outside the sandbox later. */

/** One change that must not reach the host's workspace; `file` appears or holds PWNED when it did. */
const protectedWrite = (name: string, script: string, file: string): Attack => ({
  name,
  script: () => script,
  succeeded: (_, __, workspace) => contentOf(join(workspace, file)).includes('PWNED'),
})

/** A package with a name that is free among dependencies. */
const FREE = 'mkdir -p node_modules/p/.vscode; echo PWNED > node_modules/p/.vscode/tasks.json'

/** Attacks on `fs.protect` by names. */
export const PROTECTED: readonly Attack[] = [
  protectedWrite('write a git hook', 'echo PWNED > .git/hooks/pre-commit', '.git/hooks/pre-commit'),
  protectedWrite('append to the git configuration', 'echo "#PWNED" >> .git/config', '.git/config'),
  protectedWrite('replace it by rename', 'echo PWNED > c; mv -f c .git/config', '.git/config'),
  protectedWrite('plant commondir', 'echo PWNED > .git/commondir', '.git/commondir'),
  protectedWrite('plant config.worktree', 'echo PWNED > .git/config.worktree', '.git/config.worktree'),
  protectedWrite(
    "a submodule's hooks",
    'mkdir -p .git/modules/m/hooks; echo PWNED > .git/modules/m/hooks/post-checkout',
    '.git/modules/m/hooks/post-checkout',
  ),
  protectedWrite(
    "a worktree's configuration",
    'mkdir -p .git/worktrees/w; echo PWNED > .git/worktrees/w/commondir',
    '.git/worktrees/w/commondir',
  ),
  protectedWrite(
    'a nested repository',
    'echo PWNED > vendor/sub/.git/hooks/post-commit',
    'vendor/sub/.git/hooks/post-commit',
  ),
  protectedWrite(
    'a new repository where there was none',
    'mkdir -p deep/er/.git/hooks; echo PWNED > deep/er/.git/config',
    'deep/er/.git/config',
  ),
  protectedWrite('a .git file that points elsewhere', 'mkdir d; echo PWNED > d/.git', 'd/.git'),
  protectedWrite(
    'move the repository away and make another',
    'mv .git old; mkdir .git; echo PWNED > .git/config',
    '.git/config',
  ),
  protectedWrite(
    'build it elsewhere and rename it',
    'mkdir -p n/hooks; echo PWNED > n/config; mv n m/.git || mkdir m && mv n m/.git',
    'm/.git/config',
  ),
  protectedWrite('in other letters', 'mkdir -p q/.GIT; echo PWNED > q/.GIT/config', 'q/.GIT/config'),
  protectedWrite(
    'through a symlinked directory',
    'ln -s .git/hooks h; echo PWNED > h/pre-commit',
    '.git/hooks/pre-commit',
  ),
  protectedWrite('through a hard link', 'ln .git/config l && echo PWNED >> l', '.git/config'),
  protectedWrite(
    'through a descriptor that was opened for reading',
    'exec 5< .git/config; echo PWNED >> /proc/self/fd/5',
    '.git/config',
  ),
  protectedWrite(
    'from inside the directory',
    'cd .git/hooks && echo PWNED > post-merge',
    '.git/hooks/post-merge',
  ),
  protectedWrite(
    'with dots in the path',
    'echo PWNED > ./vendor/../.git/./hooks/pre-rebase',
    '.git/hooks/pre-rebase',
  ),
  protectedWrite('editor tasks', 'mkdir .vscode; echo PWNED > .vscode/tasks.json', '.vscode/tasks.json'),
  protectedWrite(
    'editor settings by rename',
    'mkdir v; echo PWNED > v/tasks.json; mv v .idea',
    '.idea/tasks.json',
  ),
  protectedWrite('an agent’s tool servers', 'echo PWNED > .mcp.json', '.mcp.json'),
  protectedWrite(
    'an agent’s commands',
    'mkdir -p .claude/commands; echo PWNED > .claude/commands/x.md',
    '.claude/commands/x.md',
  ),
  protectedWrite('direnv', 'echo PWNED > .envrc', '.envrc'),
  protectedWrite('husky', 'mkdir .husky; echo PWNED > .husky/pre-commit', '.husky/pre-commit'),
  protectedWrite('a shell start-up file', 'echo PWNED > .bashrc', '.bashrc'),
  protectedWrite('our own configuration', 'echo PWNED > ringfence.toml', 'ringfence.toml'),
  protectedWrite('a symlink to a file of its own', 'echo PWNED > mine; ln -s mine .envrc', '.envrc'),
  protectedWrite(
    'out of a dependency directory, where the names are free',
    'mkdir -p node_modules/p/.vscode; echo PWNED > node_modules/p/.vscode/tasks.json; mv node_modules/p other',
    'other/.vscode/tasks.json',
  ),
  protectedWrite(
    'a symlink to a dependency directory',
    `${FREE}; ln -s node_modules/p other`,
    'other/.vscode/tasks.json',
  ),
  protectedWrite(
    'a symlink to a dependency directory, moved out of another one',
    `${FREE}; ln -s ../node_modules/p node_modules/l; mkdir d; mv node_modules/l d`,
    'd/l/.vscode/tasks.json',
  ),
  protectedWrite(
    'a second name outside for a symlink to a dependency directory',
    `${FREE}; ln -s ../node_modules/p node_modules/l; mkdir d; ln -P node_modules/l d`,
    'd/l/.vscode/tasks.json',
  ),
  {
    name: 'make a hook executable',
    script: () => 'chmod +x .git/hooks/pre-push',
    succeeded: (_, __, workspace) => (statSync(join(workspace, '.git/hooks/pre-push')).mode & 0o111) !== 0,
  },
  {
    name: 'remove the configuration',
    script: () => 'rm -rf .git',
    succeeded: (_, __, workspace) => !exists(join(workspace, '.git/config')),
  },
  {
    name: 'race the check with a second thread that replaces the path',
    script: () => racing('.git/hooks/race', 'harmless'),
    succeeded: (_, __, workspace) => exists(join(workspace, '.git/hooks/race')),
  },
  protectedWrite(
    'a new repository made by git itself, with a program for it to run',
    'mkdir fresh; cd fresh; git init -q . ; git config core.fsmonitor PWNED; echo PWNED >> .git/config',
    'fresh/.git/config',
  ),
  protectedWrite(
    'a repository five directories down',
    'mkdir -p a/b/c/d/e/.git/hooks; echo PWNED > a/b/c/d/e/.git/hooks/post-checkout',
    'a/b/c/d/e/.git/hooks/post-checkout',
  ),
  protectedWrite(
    'the repository above the working directory',
    'cd vendor/sub && echo PWNED > ../../.git/hooks/pre-commit',
    '.git/hooks/pre-commit',
  ),
  protectedWrite(
    'in namespaces of its own, where mounts can be taken away',
    'unshare -Urm bash -c "umount -l .git; mv .git gone; mkdir -p .git/hooks; echo PWNED > .git/hooks/pre-commit"',
    '.git/hooks/pre-commit',
  ),
  protectedWrite(
    'what runs on somebody else’s machine after the next push',
    'mkdir -p .github/workflows; echo PWNED > .github/workflows/ci.yml',
    '.github/workflows/ci.yml',
  ),
  protectedWrite(
    'the same by rename',
    'mkdir -p w/workflows; echo PWNED > w/workflows/ci.yml; mv w .github',
    '.github/workflows/ci.yml',
  ),
  protectedWrite('what another agent takes for its instructions', 'echo PWNED > CLAUDE.md', 'CLAUDE.md'),
]

/** Names flip between a symlink to the protected directory and an ordinary one while files are opened below. */
const racing = (target: string, harmless: string): string => `
mkdir -p ${harmless} a; ln -s ../.git/hooks a/l
( end=$((SECONDS+2)); while [ $SECONDS -lt $end ]; do mv -T ${harmless} s 2>/dev/null; ln -sfn .git/hooks ${harmless}; rm -f ${harmless}; mv -T s ${harmless} 2>/dev/null; done ) &
end=$((SECONDS+2)); while [ $SECONDS -lt $end ]; do echo PWNED > ${harmless}/${target.split('/').at(-1)}; done 2>/dev/null
wait`
