import { execFileSync } from 'node:child_process'
import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { FULL } from '../server/test-server.ts'
import { PAGES, pageText } from './pages.ts'

/** The documentation site; it is built only in the full tests, because its tools are a large download. */

const site = join(packageRoot(), 'dist', 'docs')
const config = readFileSync(join(packageRoot(), 'docs-site', '.vitepress', 'config.mjs'), 'utf8')

test('the sidebar lists every page', () => {
  for (const page of PAGES.filter((one) => one !== 'README.md'))
    expect(config).toContain(`'${page.slice('docs/'.length, -'.md'.length)}'`)
})

describe.runIf(FULL)('npm run docs', () => {
  test('builds every page, a search index, and valid links', () => {
    execFileSync(process.execPath, ['scripts/docs.mjs'], { cwd: packageRoot(), stdio: 'ignore' })
    const htmlOf = (page: string): string =>
      join(site, page.replace(/^README\.md$/, 'index.md').replace(/\.md$/, '.html'))
    for (const page of PAGES) {
      const html = readFileSync(htmlOf(page), 'utf8')
      const title = /^# (.+)$/m.exec(pageText(page))?.[1] as string
      expect(html, page).toContain(title)
      for (const [, target = ''] of html.matchAll(/<a[^>]* href="([^"#:]+\.html)/g)) {
        const file = target.startsWith('/') ? join(site, target) : join(dirname(htmlOf(page)), target)
        expect(existsSync(file), `${page}: ${target}`).toBe(true)
      }
    }
    const chunks = join(site, 'assets', 'chunks')
    const index = readdirSync(chunks).find((name) => name.includes('localSearchIndex'))
    const found = readFileSync(join(chunks, index as string), 'utf8')
    for (const word of ['webhook', 'extendtimeout', 'terraform']) expect(found.toLowerCase()).toContain(word)
  }, 180_000)

  test('--releases builds the site of every tag, with a menu of all versions', () => {
    const clone = join(mkdtempSync(join(tmpdir(), 'rf-site-')), 'clone')
    const run = (file: string, ...args: string[]): unknown =>
      execFileSync(file, args, { cwd: clone, stdio: 'ignore' })
    try {
      execFileSync('git', ['clone', '-q', packageRoot(), clone])
      run('git', 'tag', 'v0.0.9')
      run('git', 'tag', 'vacation')
      const tools = join('docs-site', 'node_modules')
      cpSync(join(packageRoot(), tools), join(clone, tools), { recursive: true, verbatimSymlinks: true })
      run(process.execPath, 'scripts/docs.mjs', '--releases', 'https://docs.example.com')
      const page = readFileSync(join(clone, 'dist', 'docs', 'index.html'), 'utf8')
      expect(page.match(/https:\/\/docs\.example\.com\/[^"]*/g)).toEqual(
        expect.arrayContaining(['https://docs.example.com/', 'https://docs.example.com/0.0.9/']),
      )
      const old = readFileSync(join(clone, 'dist', 'docs', '0.0.9', 'docs', 'cli.html'), 'utf8')
      expect(old).toContain('href="/0.0.9/docs/concepts.html"')
    } finally {
      rmSync(dirname(clone), { recursive: true, force: true })
    }
  }, 300_000)
})
