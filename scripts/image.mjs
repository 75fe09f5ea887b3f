/**
 * `npm run image [-- FILE]`: builds a container image of this checkout without a container engine: Debian's packages by
 * mmdebstrap, this machine's Node, and the npm package. FILE (default: `dist/ringfence-image.tar`) is for `docker load`, `podman load`,
 * `ctr image import`, `skopeo copy docker-archive:`. Needs root, Debian, and the package mmdebstrap.
 */
import { createHash } from 'node:crypto'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { root, run } from './setup.mjs'

/** What a node needs to run sandboxes with bubblewrap, and what people expect in them. */
const PACKAGES = ['bubblewrap', 'ca-certificates', 'curl', 'git', 'libstdc++6', 'python3-minimal', 'tini']
const ARCHITECTURES = { x64: 'amd64', arm64: 'arm64' }
/** Equal for the same content; only the order of events inside an image would differ. */
const TIME = '1970-01-01T00:00:00Z'

const file = resolve(process.argv[2] ?? join(root, 'dist', 'ringfence-image.tar'))
const { version, devDependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))
/** Optional packages that servers use: an object store and traces. */
const OPTIONAL = Object.entries(devDependencies)
  .filter(([name]) => name === 'aws4fetch' || name.startsWith('@opentelemetry/'))
  .map(([name, exact]) => `${name}@${exact}`)
const work = mkdtempSync(join(tmpdir(), 'ringfence-image-'))
try {
  const layers = [system(), program()]
  const config = {
    architecture: ARCHITECTURES[process.arch],
    os: 'linux',
    created: TIME,
    config: {
      Env: ['PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin', 'RINGFENCE_HOME=/var/lib/ringfence'],
      Entrypoint: ['/usr/bin/tini', '--', 'ringfence'],
      Cmd: ['help'],
      WorkingDir: '/',
      Labels: { 'org.opencontainers.image.version': version },
    },
    rootfs: { type: 'layers', diff_ids: layers.map((layer) => `sha256:${hashOf(layer)}`) },
    history: [
      { created: TIME, created_by: 'Debian packages' },
      { created: TIME, created_by: `ringfence ${version}` },
    ],
  }
  const text = JSON.stringify(config)
  const id = createHash('sha256').update(text).digest('hex')
  writeFileSync(join(work, `${id}.json`), text)
  const manifest = [
    {
      Config: `${id}.json`,
      RepoTags: [`ringfence:${version}`, 'ringfence:latest'],
      Layers: layers.map((layer) => layer.slice(work.length + 1)),
    },
  ]
  writeFileSync(join(work, 'manifest.json'), JSON.stringify(manifest))
  mkdirSync(join(file, '..'), { recursive: true })
  run('tar', ['-C', work, '-cf', file, 'manifest.json', `${id}.json`, ...manifest[0].Layers])
  console.log(`${file}: ringfence:${version} (${id.slice(0, 12)})`)
} finally {
  rmSync(work, { recursive: true, force: true })
}

/** Debian, from the package sources of this machine; kept for the next build with the same packages. */
function system() {
  const release = /^VERSION_CODENAME=(\w+)$/m.exec(readFileSync('/etc/os-release', 'utf8'))?.[1]
  if (!release) throw new Error('this is not a Debian machine')
  const key = createHash('sha256').update(`${release} ${PACKAGES.join()}`).digest('hex').slice(0, 16)
  const cached = join(root, 'node_modules', '.cache', `image-${key}.tar`)
  if (!existsSync(cached)) {
    mkdirSync(join(cached, '..'), { recursive: true })
    // mmdebstrap chooses the format by the end of the name.
    const draft = join(work, 'draft.tar')
    const sources = [
      '/etc/apt/sources.list',
      ...readdirSync('/etc/apt/sources.list.d')
        .filter((name) => /^debian\.(list|sources)$/.test(name))
        .map((name) => join('/etc/apt/sources.list.d', name)),
    ]
    run('mmdebstrap', [
      '--quiet',
      '--variant=minbase',
      `--include=${PACKAGES.join()}`,
      release,
      draft,
      ...sources.filter((path) => existsSync(path)),
    ])
    run('mv', [draft, cached])
  }
  cpSync(cached, join(work, 'system.tar'))
  return join(work, 'system.tar')
}

/** Node and the npm package, as `npm install --global` would have put them. */
function program() {
  const tree = join(work, 'tree')
  const bin = join(tree, 'usr', 'local', 'bin')
  const library = join(tree, 'usr', 'local', 'lib', 'ringfence')
  for (const path of [bin, library, join(tree, 'var', 'lib', 'ringfence'), join(tree, 'etc', 'ringfence')])
    mkdirSync(path, { recursive: true })
  cpSync(process.execPath, join(bin, 'node'))
  run('npm', ['pack', '--silent', '--pack-destination', work], { cwd: root })
  const tarball = readdirSync(work).find((name) => name.endsWith('.tgz'))
  run('npm', [
    'install',
    '--silent',
    '--no-audit',
    '--no-fund',
    '--omit=dev',
    '--prefix',
    library,
    join(work, tarball),
    ...OPTIONAL,
  ])
  symlinkSync('../lib/ringfence/node_modules/.bin/ringfence', join(bin, 'ringfence'))
  const layer = join(work, 'program.tar')
  run('tar', [
    '-C',
    tree,
    '--owner=0',
    '--group=0',
    '--numeric-owner',
    '--mtime',
    TIME,
    '--sort=name',
    '-cf',
    layer,
    '.',
  ])
  rmSync(tree, { recursive: true, force: true })
  return layer
}

function hashOf(path) {
  return createHash('sha256').update(readFileSync(path)).digest('hex')
}
