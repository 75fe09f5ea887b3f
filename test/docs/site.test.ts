import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { FULL } from '../server/test-server.ts'
import { PAGES, pageText } from './pages.ts'

/** The documentation site; it is built only in the full tests, because its tools are a large download. */

const site = join(packageRoot(), 'dist', 'docs')
const config = readFileSync(join(packageRoot(), 'docs-site', '.vitepress', 'config.mjs'), 'utf8')

test('the sidebar has every page', () => {
  for (const page of PAGES.filter((one) => one !== 'README.md'))
    expect(config).toContain(`'${page.slice('docs/'.length, -'.md'.length)}'`)
})

describe.runIf(FULL)('npm run docs', () => {
  test('builds every page, a search index, and links that lead somewhere', () => {
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
})
