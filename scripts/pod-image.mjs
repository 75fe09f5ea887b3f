/**
 * `npm run image:pod [-- FILE]`: builds the image with the guest agent and the channel that the backend `kubernetes` puts into every
 * Pod, without a container engine. FILE (default: `dist/ringfence-pod.tar`) is for `docker load`, `ctr image import`,
 * `skopeo copy docker-archive:`. Needs gcc and mbedTLS with its static libraries (Debian: libmbedtls-dev).
 */
import { createHash } from 'node:crypto'
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { root, run } from './setup.mjs'

const ARCHITECTURES = { x64: 'amd64', arm64: 'arm64' }
const TIME = '1970-01-01T00:00:00Z'
/** The same content gives the same bytes. */
const STABLE = ['--sort=name', '--mtime=@0', '--owner=0', '--group=0', '--numeric-owner']

/** Builds the image; returns its name. */
export function buildPodImage(file = join(root, 'dist', 'ringfence-pod.tar')) {
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))
  const work = mkdtempSync(join(tmpdir(), 'ringfence-pod-image-'))
  try {
    const tree = join(work, 'tree')
    mkdirSync(tree)
    cpSync(join(root, 'dist', 'guest', 'ringfence-agent'), join(tree, 'ringfence-agent'))
    run('sh', [join(root, 'guest', 'channel', 'build.sh'), join(tree, 'ringfence-channel')])
    run('tar', [
      '-C',
      tree,
      ...STABLE,
      '-cf',
      join(work, 'layer.tar'),
      'ringfence-agent',
      'ringfence-channel',
    ])
    const digest = hashOf(readFileSync(join(work, 'layer.tar')))
    const config = JSON.stringify({
      architecture: ARCHITECTURES[process.arch],
      os: 'linux',
      created: TIME,
      config: { User: '65534:65534', Entrypoint: ['/ringfence-agent'], WorkingDir: '/' },
      rootfs: { type: 'layers', diff_ids: [`sha256:${digest}`] },
    })
    const name = `ringfence-pod:${version}`
    const id = `${hashOf(config)}.json`
    writeFileSync(join(work, id), config)
    const manifest = [{ Config: id, RepoTags: [name], Layers: ['layer.tar'] }]
    writeFileSync(join(work, 'manifest.json'), JSON.stringify(manifest))
    mkdirSync(dirname(file), { recursive: true })
    run('tar', ['-C', work, ...STABLE, '-cf', file, 'manifest.json', id, 'layer.tar'])
    return name
  } finally {
    rmSync(work, { recursive: true, force: true })
  }
}

const hashOf = (bytes) => createHash('sha256').update(bytes).digest('hex')

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const file = resolve(process.argv[2] ?? join(root, 'dist', 'ringfence-pod.tar'))
  process.stdout.write(`${file}: ${buildPodImage(file)}\n`)
}
