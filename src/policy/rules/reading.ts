import { type BuiltInRule, words } from './rule.ts'

/** Programs that only show something, once their options and paths have been looked at. */
export const READING: readonly BuiltInRule[] = [
  {
    id: 'reading/files',
    prefix: [
      words(
        'cat tac head tail nl rev fold fmt expand unexpand wc ls dir stat file du df tree readlink realpath basename dirname pathchk exa eza lsd less more bat batcat',
      ),
    ],
    action: 'allow',
    why: 'shows files',
    match: ['cat README.md', 'ls -la', 'wc -l src/a.ts', '/bin/ls'],
    notMatch: ['concat a', './cat a'],
  },
  {
    id: 'reading/checksums',
    prefix: [
      words('md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum shasum md5 crc32'),
    ],
    action: 'allow',
    why: 'prints checksums',
    match: ['sha256sum dist/app.js'],
  },
  {
    id: 'reading/binary',
    prefix: [
      words(
        'xxd od hexdump hd strings base64 base32 cmp diff colordiff sdiff comm join nm objdump readelf size',
      ),
    ],
    action: 'allow',
    why: 'shows or compares bytes',
    match: ['diff -u a.txt b.txt', 'xxd a.bin'],
  },
  {
    id: 'reading/text',
    prefix: [
      words(
        'grep rg ag ack ugrep sort uniq cut paste tr sed awk column jq yq gojq look bc seq factor expr numfmt iconv envsubst shuf tee xmllint cloc tokei scc',
      ),
    ],
    action: 'allow',
    why: 'filters text',
    match: ['grep -rn TODO src', 'sort a', "sed -n '1,5p' a", 'jq . package.json'],
  },
  {
    id: 'reading/find',
    prefix: [words('find fd fdfind locate')],
    action: 'allow',
    why: 'finds files',
    match: ["find . -name '*.ts'"],
  },
  {
    id: 'reading/machine',
    prefix: [
      words(
        'pwd whoami id groups logname tty arch nproc uname uptime free lscpu date cal locale getconf which whereis type ps pgrep pidof sleep hostname sw_vers lsb_release tput man whatis apropos info',
      ),
    ],
    action: 'allow',
    why: 'shows the machine',
    match: ['date -u', 'which node', 'uname -a'],
  },
  {
    id: 'reading/shell',
    prefix: [
      words(
        'echo printf true false : test [ cd pushd popd exit return break continue wait jobs command shift umask times hash local',
      ),
    ],
    action: 'allow',
    why: 'harmless shell builtin',
    match: ['echo hi', '[ -f a ]', 'cd src'],
  },
  {
    id: 'reading/versions',
    prefix: [
      words(
        'node python python3 npm pnpm yarn go cargo rustc git java javac ruby perl php deno bun make cmake gcc clang docker tsc pip uv dotnet',
      ),
      words('--version -v -V version'),
    ],
    action: 'allow',
    why: 'prints a version',
    // `cargo -v build` and `npm version patch` do something else.
    exact: true,
    match: ['node --version', 'go version'],
    notMatch: ['node a.js', 'cargo -v build', 'npm version patch'],
  },
]
