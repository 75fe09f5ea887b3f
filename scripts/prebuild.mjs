/**
 * `npm run build:agents [-- DIRECTORY]`: cross-compiles the programs of `guest` for x64 and arm64, statically with musl, so that the npm package needs no
 * compiler where it is installed. Compiler: clang and lld; C library and kernel headers: Debian's packages of each
 * architecture, unpacked below `node_modules/.cache`. The same sources and packages give the same bytes.
 */
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { filesIn, hashOf, output, root, run, upToDate } from './setup.mjs'

/** Node's name of an architecture, Debian's, and the compiler's. */
const TARGETS = [
  { arch: 'x64', debian: 'amd64', cpu: 'x86_64' },
  { arch: 'arm64', debian: 'arm64', cpu: 'aarch64' },
]
const PACKAGES = ['musl-dev', 'linux-libc-dev', 'libgcc-12-dev']
/** The programs, with the directories of their sources. */
const PROGRAMS = [
  ['ringfence-agent', join(root, 'guest', 'agent')],
  ['ringfence-probe', join(root, 'guest', 'probe')],
]

/** Builds the agents into `directory` and writes their checksums. */
export function prebuild(directory = join(root, 'dist', 'guest')) {
  const list = join(directory, 'SHA256SUMS')
  const sources = PROGRAMS.flatMap(([, from]) => filesIn(from))
  if (upToDate(list, sources)) return readFileSync(list, 'utf8').trim().split('\n')
  mkdirSync(directory, { recursive: true })
  const sums = TARGETS.flatMap((target) =>
    PROGRAMS.map(([program, from]) => {
      const name = `${program}-linux-${target.arch}`
      compile(target, sysroot(target), from, join(directory, name))
      const digest = createHash('sha256')
        .update(readFileSync(join(directory, name)))
        .digest('hex')
      return `${digest}  ${name}`
    }),
  )
  writeFileSync(list, `${sums.join('\n')}\n`)
  writeFileSync(`${list}.stamp`, hashOf(sources))
  return sums
}

/** The C library, compiler runtime and kernel headers of an architecture. */
function sysroot({ debian }) {
  const cache = join(root, 'node_modules', '.cache', 'sysroot', debian)
  const done = join(cache, 'complete')
  if (existsSync(done)) return join(cache, 'root')
  rmSync(cache, { recursive: true, force: true })
  for (const part of ['lists/partial', 'cache/archives/partial', 'root', 'packages'])
    mkdirSync(join(cache, part), { recursive: true })
  // A package index of its own: the system's may know only one architecture, and must not change.
  const apt = [
    `APT::Architecture=${debian}`,
    `Dir::State::lists=${join(cache, 'lists')}`,
    'Dir::State::status=/dev/null',
    `Dir::Cache=${join(cache, 'cache')}`,
    'APT::Sandbox::User=root',
  ].flatMap((setting) => ['-o', setting])
  const cwd = join(cache, 'packages')
  run('apt-get', [...apt, 'update', '-qq'], { cwd })
  run('apt-get', [...apt, 'download', '-qq', ...PACKAGES.map((name) => `${name}:${debian}`)], { cwd })
  for (const file of readdirSync(cwd)) run('dpkg-deb', ['-x', join(cwd, file), join(cache, 'root')])
  writeFileSync(done, '')
  return join(cache, 'root')
}

function compile({ cpu }, system, from, out) {
  const musl = join(system, 'usr', 'lib', `${cpu}-linux-musl`)
  const gcc = join(system, 'usr', 'lib', 'gcc', `${cpu}-linux-gnu`, '12')
  const sources = readdirSync(from, { recursive: true })
    .filter((name) => name.endsWith('.c'))
    .sort()
  run(
    'clang',
    [
      ...[
        `--target=${cpu}-linux-musl`,
        '-std=gnu11',
        '-O2',
        '-fno-strict-aliasing',
        '-static',
        '-nostdinc',
        '-nostdlib',
      ],
      ...['-fuse-ld=lld', '-Wl,--build-id=none', '-s', '-w', '-I.'],
      ...['-isystem', join(system, 'usr', 'include', `${cpu}-linux-musl`)],
      ...['-isystem', join(output('clang', ['-print-resource-dir']).trim(), 'include')],
      ...['-idirafter', join(system, 'usr', 'include')],
      ...['-idirafter', join(system, 'usr', 'include', `${cpu}-linux-gnu`)],
      ...['-o', out, join(musl, 'crt1.o'), join(musl, 'crti.o'), join(gcc, 'crtbeginT.o')],
      ...sources,
      ...[`-L${musl}`, `-L${gcc}`, '-lc', '-lgcc', '-lc', join(gcc, 'crtend.o'), join(musl, 'crtn.o')],
    ],
    // Relative names, so that the directory of the sources is not part of the result.
    { cwd: from },
  )
}

if (import.meta.url === pathToFileURL(process.argv[1]).href)
  process.stdout.write(`${prebuild(process.argv[2]).join('\n')}\n`)
