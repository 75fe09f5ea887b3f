const words = (list: string): readonly string[] => list.trim().split(/\s+/)

const INTERPRETERS = words(
  'bash sh zsh fish dash ksh ash mksh csh tcsh pwsh powershell cmd python python3 node deno bun ruby perl php lua tclsh osascript Rscript julia awk gawk ipython ts-node tsx',
)
const WRAPPERS = words(
  'sudo su doas env xargs nice nohup timeout time stdbuf setsid script ssh find parallel watch flock busybox toybox strace command exec builtin eval source npx pnpx bunx uvx pipx nsenter chroot unshare docker podman kubectl make gmake',
)

/**
 * Programs that run their arguments, each with arguments that do not say which program runs. A grant that matches one of
 * them would grant everything.
 */
export const LAUNCHERS: readonly (readonly [string, readonly (readonly string[])[]])[] = [
  ...INTERPRETERS.map((name) => [name, [[], ['-c', 'x'], ['-e', 'x'], ['-lc', 'x']]] as const),
  ...WRAPPERS.map((name) => [name, [[], ['-c', 'x']]] as const),
  ['git', [[], ['-c', 'alias.x=!x', 'x']]],
  ['npm', [['exec'], ['exec', '-c', 'x'], ['x']]],
  ['pnpm', [['exec'], ['dlx']]],
  ['yarn', [['exec'], ['dlx']]],
  ['uv', [['run']]],
]
