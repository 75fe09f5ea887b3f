import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { compose } from '../../src/compose/compose.ts'
import { parseSpec } from '../../src/model/spec.ts'
import { AutoSandboxRouter } from '../../src/policy/router.ts'
import { blocksOf, pageText } from './pages.ts'

/** The recipes of docs/cookbook.md: each loads, and decides as its table says. */

const base = realpathSync(mkdtempSync(join(tmpdir(), 'rf-cookbook-')))
const workspace = join(base, 'workspace')
for (const name of ['infra', 'packages/a', 'customer-data', 'Secrets'])
  mkdirSync(join(workspace, name), { recursive: true })
afterAll(() => rmSync(base, { recursive: true, force: true }))

/** The pages say /workspace; here it is a directory that exists. */
const here = (text: string): string => text.replaceAll('/workspace', workspace)

const recipes = pageText('docs/cookbook.md')
  .split(/^## /m)
  .slice(1)
  .map((section) => ({
    title: section.split('\n')[0] as string,
    policy: here(
      blocksOf(section)
        .find(({ language }) => language === 'toml')
        ?.lines.join('\n') ?? '',
    ),
    rows: [...section.matchAll(/^\| `(.+)` \| (\w+) \|$/gm)].map(([, what = '', wanted]) => ({
      what: here(what.replaceAll('\\|', '|')),
      wanted,
    })),
  }))

test('the cookbook has twenty recipes', () => {
  expect(recipes.map(({ title }) => Number.parseInt(title, 10))).toEqual(
    Array.from({ length: 20 }, (_, at) => at + 1),
  )
})

test.each(recipes)('recipe $title decides as documented', async ({ policy, rows }) => {
  const config = join(mkdtempSync(join(base, 'policy-')), 'ringfence.toml')
  writeFileSync(config, `${policy}\n`)
  const env = { PATH: process.env.PATH, HOME: base, RINGFENCE_HOME: join(base, 'state') }
  const ringfence = await compose({ config, cwd: workspace, env })
  const decide = async (what: string): Promise<string> => {
    const context = { workspace, cwd: workspace, home: base }
    if (ringfence.config.router)
      return AutoSandboxRouter.fromConfig(ringfence.config, context).route(what).mode
    if (!what.startsWith('{'))
      return (await ringfence.judge({ line: what }, { workspace, cwd: workspace })).action
    try {
      ringfence.gate.plan(parseSpec({ workspace, ...JSON.parse(what) }))
      return 'accepted'
    } catch {
      return 'refused'
    }
  }
  try {
    expect(rows.length).toBeGreaterThan(0)
    for (const { what, wanted } of rows) expect.soft(await decide(what), what).toBe(wanted)
  } finally {
    await ringfence.close()
  }
})

test('the configuration of docs/production.md loads', async () => {
  const config = join(mkdtempSync(join(base, 'production-')), 'ringfence.toml')
  const [block] = blocksOf(pageText('docs/production.md')).filter(({ language }) => language === 'toml')
  writeFileSync(config, block?.lines.join('\n') ?? 'missing')
  const env = { PATH: process.env.PATH, HOME: base, RINGFENCE_HOME: join(base, 'state') }
  const ringfence = await compose({ config, cwd: workspace, env })
  expect(ringfence.config.server?.keep_days).toBe(30)
  await ringfence.close()
})
