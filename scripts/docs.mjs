/**
 * `npm run docs`: builds the documentation site into dist/docs. Its tools are installed in docs-site, for this command alone.
 * `--releases https://docs.example.com` builds the site of every release (a tag `v1.2.3`) as well, into dist/docs/1.2.3, with a menu
 * of all versions; the URL is where dist/docs will be served.
 */
import { execFileSync } from 'node:child_process'
import { cpSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { installClients, root, run } from './setup.mjs'

const RELEASE = /^v(\d+\.\d+\.\d+)$/
const MAX_ARCHIVE = 1 << 30

const git = (...args) => execFileSync('git', args, { cwd: root, maxBuffer: MAX_ARCHIVE })

/** The versions that have a tag, newest first. */
function releases() {
  const tags = git('tag', '--list', 'v*', '--sort=-version:refname').toString().split('\n')
  return tags.flatMap((tag) => RELEASE.exec(tag)?.[1] ?? [])
}

function build(dir, base) {
  process.env.RINGFENCE_DOCS_BASE = base
  const site = join(dir, 'docs-site')
  // VitePress looks for its own packages from this absolute path, and puts a link to Vue into the package of the current directory.
  run(process.execPath, [join(site, 'node_modules/vitepress/bin/vitepress.js'), 'build', site], { cwd: dir })
}

/** Builds the site of a release from its own files, with today's tools. */
function buildRelease(version) {
  const dir = mkdtempSync(join(tmpdir(), 'ringfence-docs-'))
  try {
    execFileSync('tar', ['-x', '-C', dir], { input: git('archive', `v${version}`) })
    const tools = join('docs-site', 'node_modules')
    cpSync(join(root, tools), join(dir, tools), { recursive: true, verbatimSymlinks: true })
    build(dir, `/${version}/`)
    cpSync(join(dir, 'dist', 'docs'), join(root, 'dist', 'docs', version), { recursive: true })
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
}

installClients('docs-site')
const at = process.argv.indexOf('--releases')
const url = at < 0 ? undefined : process.argv[at + 1]?.replace(/\/$/, '')
if (at >= 0 && !URL.canParse(url ?? '')) {
  console.error('npm run docs -- --releases URL: the URL is missing where the site will be served')
  process.exit(2)
}
const versions = url ? releases() : []
Object.assign(process.env, { RINGFENCE_DOCS_URL: url ?? '', RINGFENCE_DOCS_VERSIONS: versions.join(' ') })
build(root, '/')
for (const version of versions) buildRelease(version)
