import { lstatSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { run } from '../../host/process/run.ts'
import { systemProgram } from '../../host/system.ts'
import { SandboxError } from '../../model/errors.ts'
import { skeleton } from './host-programs.ts'
import { addHostPath, type Tree } from './tree.ts'

const NAME = /^[a-z0-9][a-z0-9+.-]+$/
const MINUTES = 60_000
/** The packages of every image. */
const BASE = ['bash', 'coreutils', 'dash', 'libc-bin']
const MERGED = ['bin', 'sbin', 'lib', 'lib64']

/** Debian packages with their dependencies, downloaded and unpacked in a temporary directory; nothing is installed. */
export async function packageTree(
  packages: readonly string[],
  onProgress: (text: string) => void,
): Promise<{ readonly tree: Tree; readonly release: () => void }> {
  for (const name of packages)
    if (!NAME.test(name)) throw new SandboxError('invalid-input', `\`${name}\` is not a package name`)
  const dir = mkdtempSync(join(tmpdir(), 'ringfence-image-'))
  const release = (): void => rmSync(dir, { recursive: true, force: true })
  try {
    const all = await closure([...BASE, ...packages])
    onProgress(`fetching ${all.length} packages`)
    const debs = join(dir, 'debs')
    const root = join(dir, 'root')
    mkdirSync(debs)
    await program('apt-get', ['-qq', '-o', 'APT::Sandbox::User=root', 'download', ...all], debs)
    mkdirSync(root)
    for (const deb of readdirSync(debs).sort()) {
      onProgress(`unpacking ${deb.split('_')[0]}`)
      await program('dpkg-deb', ['-x', join(debs, deb), root], dir)
    }
    return { tree: treeOf(root), release }
  } catch (error) {
    release()
    throw error
  }
}

async function closure(names: readonly string[]): Promise<readonly string[]> {
  const flags = ['recommends', 'suggests', 'conflicts', 'breaks', 'replaces', 'enhances'].map(
    (kind) => `--no-${kind}`,
  )
  const text = await program('apt-cache', ['depends', '--recurse', ...flags, ...names], '/')
  // Indented lines are the relations; virtual packages are in angle brackets.
  const found = text.split('\n').filter((line) => NAME.test(line.split(':')[0] ?? '') && !line.includes('<'))
  return [...new Set(found.map((line) => line.split(':')[0] as string))].sort()
}

async function program(name: string, args: readonly string[], cwd: string): Promise<string> {
  const file = systemProgram(name)
  if (!file)
    throw new SandboxError('unsupported', `images from packages require \`${name}\``, {
      hint: 'build from the host’s own programs instead: ringfence image build NAME',
    })
  const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C', DEBIAN_FRONTEND: 'noninteractive' }
  const result = await run({ file, args, env, cwd, control: false }, { wallMs: 10 * MINUTES })
  if (result.exit.code === 0) return Buffer.from(result.stdout).toString('utf8')
  const errorText = Buffer.from(result.stderr).toString('utf8').trim().split('\n').at(-1)
  throw new SandboxError('launch-failed', `${name} failed: ${errorText || result.exit.signal}`)
}

/** Packages still name `/bin/sh`; in the image that is `/usr/bin/sh`, and `/bin` is a symbolic link. */
const merged = (path: string): string => (MERGED.includes(path.split('/')[1] ?? '') ? `/usr${path}` : path)

function treeOf(root: string): Tree {
  const tree = skeleton()
  const walk = (dir: string): void => {
    for (const name of readdirSync(join(root, dir)).sort()) {
      const from = `${dir}/${name}`
      const at = merged(from)
      if (lstatSync(join(root, from)).isDirectory()) {
        if (!tree.has(at)) tree.set(at, { kind: 'dir', mode: 0o755 })
        walk(from)
      } else if (!/^\/usr\/share\/(doc|man|info|locale|lintian)\//.test(at))
        addHostPath(tree, join(root, from), at)
    }
  }
  for (const name of MERGED) tree.set(`/${name}`, { kind: 'link', target: `usr/${name}` })
  walk('')
  // Debian creates this link during installation, and nothing is installed here.
  if (!tree.has('/usr/bin/sh')) tree.set('/usr/bin/sh', { kind: 'link', target: 'dash' })
  return tree
}
