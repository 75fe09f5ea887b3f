import { existsSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import { expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { PAGES, pageText } from './pages.ts'

/** Links between the pages: each names a file that exists, and a heading that the page has. */

const withoutCode = (text: string): string =>
  text.replace(/^```[\s\S]*?^```/gm, '').replace(/`[^`\n]*`/g, 'code')

/** As GitHub makes them from headings. */
const anchorsOf = (text: string): Set<string> =>
  new Set(
    [...text.replace(/^```[\s\S]*?^```/gm, '').matchAll(/^#+ (.+)$/gm)].map(([, heading = '']) =>
      heading
        .toLowerCase()
        .replace(/[^\p{L}\p{N}\s_-]/gu, '')
        .replace(/\s/g, '-'),
    ),
  )

test.each(PAGES)('%s links to files and headings that exist', (page) => {
  for (const [, target = ''] of withoutCode(pageText(page)).matchAll(/\]\(([^)\s]+)\)/g)) {
    if (/^[a-z]+:/.test(target)) continue
    const [path = '', anchor] = target.split('#')
    const file = path === '' ? page : normalize(join(dirname(page), path))
    expect(existsSync(join(packageRoot(), file)), `${page}: ${target}`).toBe(true)
    if (anchor) expect([...anchorsOf(pageText(file))], `${page}: ${target}`).toContain(anchor)
  }
})

test('the README links to every page', () => {
  const readme = pageText('README.md')
  for (const page of PAGES.filter((one) => one !== 'README.md')) expect(readme).toContain(`(${page})`)
})
