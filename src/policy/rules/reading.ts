import { type BuiltInRule, words } from './rule.ts'

/** Programs that only display data, once their options and paths have been checked. */
export const READING: readonly BuiltInRule[] = [
  {
    id: 'reading/files',
    prefix: [
      words(
        'cat tac head tail nl rev fold fmt expand unexpand wc ls dir stat file du df tree readlink realpath basename dirname pathchk less more',
      ),
    ],
    action: 'allow',
    why: 'shows files',
    match: ['cat README.md', 'ls -la', 'wc -l src/a.ts', '/bin/ls'],
    notMatch: ['concat a', './cat a'],
  },
  {
    id: 'reading/checksums',
    prefix: [words('md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum')],
    action: 'allow',
    why: 'prints checksums',
    match: ['sha256sum dist/app.js'],
  },
  {
    id: 'reading/binary',
    prefix: [words('xxd od hexdump hd strings base64 base32 basenc cmp diff comm join')],
    action: 'allow',
    why: 'shows or compares bytes',
    match: ['diff -u a.txt b.txt', 'xxd a.bin'],
  },
  {
    id: 'reading/text',
    prefix: [words('grep rg sort uniq cut paste tr sed awk column jq look seq expr iconv shuf tee')],
    action: 'allow',
    why: 'filters text',
    match: ['grep -n TODO src/a.ts', 'sort a', "sed -n '1,5p' a", 'jq . package.json'],
  },
  {
    id: 'reading/find',
    prefix: [words('find fd fdfind')],
    action: 'allow',
    why: 'finds files',
    match: ["find . -name '*.ts'"],
  },
  {
    id: 'reading/machine',
    prefix: [
      words(
        'pwd whoami id groups logname tty arch nproc uname uptime free lscpu date cal locale getconf which whereis type ps pgrep pidof sleep hostname tput',
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
    // Only programs that do not read workspace settings first: `yarn`, `cargo`, `go`, `dotnet` and package managers start
    // programs that a file there names.
    id: 'reading/versions',
    prefix: [
      words('node python git java javac ruby perl php gcc g++ clang make cmake docker'),
      words('--version'),
    ],
    action: 'allow',
    why: 'prints a version',
    exact: true,
    match: ['node --version', 'python3 --version'],
    notMatch: ['node a.js', 'make --version build', 'yarn --version', 'cargo --version'],
  },
  {
    id: 'reading/short-versions',
    prefix: [words('node perl php gcc make docker'), words('-v')],
    action: 'allow',
    why: 'prints a version',
    exact: true,
    match: ['node -v'],
    notMatch: ['python3 -v', 'cargo -v build'],
  },
]
