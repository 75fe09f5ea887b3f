import type { RunBuiltin } from '../guest-files.ts'
import { inPieces } from '../remote/collect.ts'
import type { RemoteTransport } from '../remote/sandbox.ts'

/**
 * Our agent's file operations as shell scripts, for sandboxes without the agent: each prints what the agent would print
 * (guest/agent/files/file_operations.c), and reports errors the same way.
 */
const FAIL = 'fail() { printf "%s " "$1" >&2; exit 1; }\n'
const SHOWN = `-printf '%y %m %U %G %s %T@ \\0%p\\0%l\\0\\0'`

const SCRIPTS: Readonly<Record<string, string>> = {
  read: `[ -e "$1" ] || fail ENOENT; [ -d "$1" ] && fail EISDIR; [ -f "$1" ] || fail EINVAL
if [ -n "$3" ]; then tail -c "+$(($2 + 1))" -- "$1" | head -c "$3"; else exec tail -c "+$(($2 + 1))" -- "$1"; fi`,
  write: `[ -z "$2" ] || fail EOPNOTSUPP; [ -d "$1" ] && fail EISDIR; mkdir -p -- "$(dirname -- "$1")" || fail ENOTDIR
cat > "$1.$$" && mv -f -- "$1.$$" "$1" || { rm -f -- "$1.$$"; fail EACCES; }`,
  list: `[ -e "$1" ] || fail ENOENT; [ -d "$1" ] || fail ENOTDIR
exec find "$1/" -mindepth 1 -maxdepth "$2" ${SHOWN}`,
  stat: `[ -e "$1" ] || [ -L "$1" ] || fail ENOENT; exec find "$1" -maxdepth 0 ${SHOWN}`,
  mkdir: `[ -e "$1" ] && fail EEXIST; exec mkdir -p -- "$1"`,
  move: `[ -e "$1" ] || [ -L "$1" ] || fail ENOENT; exec mv -T -- "$1" "$2"`,
  remove: `[ -e "$1" ] || [ -L "$1" ] || fail ENOENT; exec rm -rf -- "$1"`,
  pack: `[ -d "$1" ] || fail ENOENT; exec tar -c -f - -C "$1" .`,
  unpack: `mkdir -p -- "$1" || fail ENOTDIR; exec tar -x -f - -C "$1"`,
  watch: `fail EOPNOTSUPP`,
}

const ENVIRONMENT = { PATH: '/usr/local/bin:/usr/bin:/bin', LC_ALL: 'C.UTF-8' }

/** Runs our agent's operations in the shell of a remote sandbox. */
export function scriptedFiles(start: RemoteTransport['start']): RunBuiltin {
  return async ([operation, ...args], { input, output, signal }) => {
    const script = FAIL + (SCRIPTS[operation] ?? 'fail EOPNOTSUPP')
    const process = start({
      argv: ['/bin/sh', '-c', script, operation, ...args],
      env: ENVIRONMENT,
      cwd: '/',
      stdin: input !== undefined,
      held: false,
      onOutput: output,
    })
    const stop = (): void => process.kill()
    signal?.addEventListener('abort', stop, { once: true })
    try {
      if (input) {
        for await (const piece of inPieces(input)) await process.write(piece)
        process.endInput()
      }
      const { exit } = await process.ended
      return exit && !exit.signaled ? exit.code : 1
    } finally {
      signal?.removeEventListener('abort', stop)
    }
  }
}
