import { ARCHIVES } from './tools/archives.ts'
import { BUILD } from './tools/build.ts'
import { BUILTINS } from './tools/builtins.ts'
import { DATABASES } from './tools/databases.ts'
import { EDITORS } from './tools/editors.ts'
import { FILES } from './tools/files.ts'
import { GIT } from './tools/git/git.ts'
import { INTERPRETERS } from './tools/interpreters.ts'
import { MACHINE } from './tools/machine.ts'
import { HTTP } from './tools/network/http.ts'
import { NETWORK } from './tools/network/network.ts'
import { SSH } from './tools/network/ssh.ts'
import { PACKAGES } from './tools/packages.ts'
import { SESSION } from './tools/session.ts'
import { SHELLS } from './tools/shells.ts'
import { SYSTEM } from './tools/system.ts'
import { READERS } from './tools/text/readers.ts'
import { SEARCH } from './tools/text/search.ts'
import { TEXT } from './tools/text/text.ts'
import { BATCHES } from './tools/wrappers/batches.ts'
import { PRIVILEGES } from './tools/wrappers/privileges.ts'
import { WRAPPERS } from './tools/wrappers/wrappers.ts'
import type { Handler } from './walk.ts'

/** Every program with a known effect, and its handler. */
const HANDLERS: ReadonlyMap<string, Handler> = new Map(
  [
    READERS,
    MACHINE,
    SEARCH,
    TEXT,
    FILES,
    ARCHIVES,
    GIT,
    PACKAGES,
    BUILD,
    HTTP,
    NETWORK,
    DATABASES,
    EDITORS,
    INTERPRETERS,
    SYSTEM,
    SESSION,
    SSH,
    PRIVILEGES,
    BATCHES,
    WRAPPERS,
    BUILTINS,
    SHELLS,
  ].flatMap((table) => Object.entries(table)),
)

/** The handler of a program by its family name. */
export const handlerOf = (name: string): Handler | undefined => HANDLERS.get(name)

const FAMILIES: readonly (readonly [RegExp, string])[] = [
  [/^(python|pypy)[\d.]*w?$/, 'python'],
  [/^nodejs$/, 'node'],
  [/^(perl|ruby|php|lua|luajit|tclsh|wish|guile)[\d.]*(-cli|jit)?$/, '$1'],
  [/^(g|m|n|original-)awk$/, 'awk'],
  [/^gsed$/, 'sed'],
  [/^(gtar|bsdtar|star)$/, 'tar'],
  [/^(e|f|g)grep$/, 'grep'],
  // Shell scripts that wrap grep and a decompressor.
  [/^(z|bz|xz|zstd|lz|lzop)[ef]?grep$/, 'zgrep'],
  [/^pip[\d.]*$/, 'pip'],
  [/^mkfs\..+$/, 'mkfs'],
  [/^fsck\..+$/, 'fsck'],
  [/^mount\..+$/, 'mount'],
  [/^(vi|vim|nvim|view|ex|rvim|gvim|vimdiff|nview|elvis|vim\.\w+|evim|rview)$/, 'vim'],
  [/^ld(-linux)?([-.\w]*)\.so[.\d]*$|^ld-musl[-\w]*\.so[.\d]*$/, 'ld.so'],
  [
    /^g(cat|cp|mv|rm|ls|find|xargs|chmod|chown|dd|head|tail|sort|split|tee|timeout|env|stat|date|install|ln|shred|touch|mkdir|realpath|readlink|nice|nohup|stdbuf)$/,
    '$1',
  ],
  [/^(nc\.(traditional|openbsd)|netcat|ncat)$/, 'nc'],
  [/^(rbash|bash-static|bash[\d.]+)$/, 'bash'],
  [/^zsh-[\d.]+$/, 'zsh'],
  [/^(chromium|google-chrome|firefox)(-\w+)?$/, 'browser'],
  [/^docker-compose$/, 'docker-compose'],
  [/^qemu-(?!img|nbd)(\w+)(-static)?$/, 'qemu-user'],
  [/^(\w+)\.exe$/i, '$1'],
]

/** One name for all versions of a program; lower case if the file system may ignore case. */
export function familyOf(name: string): string {
  if (HANDLERS.has(name)) return name
  for (const [pattern, family] of FAMILIES) if (pattern.test(name)) return name.replace(pattern, family)
  const lower = name.toLowerCase()
  return lower !== name && HANDLERS.has(lower) ? lower : name
}
