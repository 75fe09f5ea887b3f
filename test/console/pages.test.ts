import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { compose, skillRunner } from '../../src/compose.ts'
import { packageRoot } from '../conformance/world.ts'
import { type House, house } from '../server/house.ts'
import { launch, picture, type Seat, seat, seriousIn, signIn } from './browser.ts'

/** Every page, in both themes and on a phone: what it shows, what axe says, and that nothing is asked of anybody else. */

let home: House
let browser: Browser
const ids: Record<string, string> = {}

const CONFIG = `[policy]
allow_interactive = true
[[policy.rule]]
id = "deploys"
prefix = ["./deploy.sh"]
action = "ask"
why = "deploys to production"
match = ["./deploy.sh staging"]
[server]
requests_per_second = 100000
wrong_keys_per_second = 100000
`

async function exec(id: string, command: string, background = false): Promise<void> {
  // What still waits when the house closes is answered by nobody.
  await home
    .call('POST', `/v1/sandboxes/${id}/exec`, { body: { command, ...(background ? { background } : {}) } })
    .catch(() => {})
}

async function make(name: string, agent: string, body: Record<string, unknown> = {}): Promise<string> {
  const made = await home.call('POST', '/v1/sandboxes', {
    body: { agent_id: agent, metadata: { name }, limits: { memoryMb: 512 }, ...body },
  })
  expect(made.status, made.text).toBe(201)
  ids[name] = made.json.id as string
  return made.json.id as string
}

beforeAll(async () => {
  home = await house(CONFIG)
  mkdirSync(join(home.dir, 'project'))
  browser = await launch()
  const [tests, build] = await Promise.all([
    make('api-tests', 'claude-code', {
      network: { mode: 'fetch', allow_hosts: ['pypi.org', '*.github.com'] },
    }),
    make('nightly-build', 'build-bot', { workspace: join(home.dir, 'project') }),
    make('refactor', 'codex', { network: { mode: 'loopback' } }),
    make('scrape-docs', 'research-agent'),
  ])
  await exec(tests as string, 'mkdir -p src && echo "export const answer = 42" > src/index.ts && ls src')
  const fetching = "import urllib.request as u\nu.urlopen('http://telemetry.example.com/x', timeout=5)\n"
  await home.call('PUT', `/v1/sandboxes/${tests}/files?path=/tmp/report.py`, { body: fetching })
  await home.call('POST', `/v1/sandboxes/${tests}/exec`, { body: { argv: ['python3', '/tmp/report.py'] } })
  await exec(build as string, 'rm -rf /')
  await exec(build as string, 'cat /etc/shadow')
  await exec(build as string, 'for n in 1 2 3 4 5 6 7 8 9 10; do echo "unit $n"; sleep 1; done', true)
  const env = { PATH: process.env.PATH, HOME: home.dir, RINGFENCE_HOME: join(home.dir, 'state') }
  const skills = await skillRunner(await compose({ env }))
  for (const name of ['word-count', 'csv-summary'])
    await skills.inspect(join(packageRoot(), 'examples', 'skills', name))
  await skills.close()
  for (const input of ['"one two three"', '"four"', '"a b c d e f"'])
    await home.call('POST', '/v1/skills/word-count/run', { body: { input: JSON.parse(input) } })
  // Asked in the background; whoever looks finds them waiting.
  void exec(ids['scrape-docs'] as string, './deploy.sh production')
  await new Promise((resolve) => setTimeout(resolve, 300))
  void exec(tests as string, 'cd src && git push origin main && npm publish')
}, 60_000)
afterAll(async () => {
  await browser.close()
  await home.close()
})

const PAGES: readonly (readonly [name: string, path: string, shows: string | RegExp])[] = [
  ['overview', '/', 'nightly-build'],
  ['approvals', '/approvals', 'Why you are asked'],
  ['sandbox', '/sandboxes/{api-tests}', 'mkdir -p src'],
  ['terminal', '/sandboxes/{refactor}/terminal', 'a shell inside the wall'],
  ['files', '/sandboxes/{api-tests}/files?dir=/tmp/src&file=/tmp/src/index.ts', 'export const answer = 42'],
  ['ports', '/sandboxes/{refactor}/ports', 'Look for listening ports'],
  ['network', '/sandboxes/{api-tests}/network', 'telemetry.example.com'],
  ['wall', '/sandboxes/{nightly-build}/wall', 'Layers, read back from the kernel'],
  ['record', '/sandboxes/{api-tests}/record', 'mkdir -p src'],
  ['policy', '/policy', 'deploys to production'],
  ['policy-try', '/policy/try?subject=cat+notes.txt+%7C+xargs+git+push', 'the strictest wins'],
  ['policy-edit', '/policy/edit', 'it loads'],
  ['policy-suggestions', '/policy/suggestions', 'Suggestions from the record'],
  ['trail', '/trail', 'newest first'],
  ['skills', '/skills', 'word-count'],
  ['backends', '/backends', 'bubblewrap'],
  ['keys', '/keys', 'console sign-in links'],
  ['nothing', '/no/such/page', 'There is nothing here'],
]

/** Pictures that the documentation shows. */
const KEPT = ['overview', 'approvals', 'files', 'network', 'wall', 'policy', 'policy-try', 'skills']

const pathOf = (path: string): string => path.replace(/\{(.*?)\}/g, (_, name: string) => ids[name] as string)

async function visit(at: Seat, path: string, shows: string | RegExp): Promise<void> {
  await at.go(pathOf(path))
  await at.page.locator('#main').getByText(shows).first().waitFor()
}

/** The markup is the same in both themes; the second look is for the colours. */
describe.each(['dark', 'light'] as const)('in the %s theme', (theme) => {
  test('every page shows what it should, and axe finds nothing serious', async () => {
    const at = await seat(browser, home.server.url, { theme })
    await signIn(at, home.server)
    const found: string[] = []
    for (const [name, path, shows] of PAGES) {
      await visit(at, path, shows)
      if (name === 'overview') await at.page.locator('.spark polyline').first().waitFor()
      found.push(
        ...(await seriousIn(at, theme === 'dark' ? undefined : ['color-contrast'])).map(
          (line) => `${name}: ${line}`,
        ),
      )
      if ((theme === 'dark' ? KEPT : ['overview', 'wall']).includes(name))
        await picture(at.page, theme === 'dark' ? name : `${name}-light`)
    }
    expect(found).toEqual([])
    expect(at.complaints).toEqual([])
    await at.context.close()
  })
})

test('on a phone nothing is wider than the screen', async () => {
  const at = await seat(browser, home.server.url, { width: 390, height: 844 })
  await signIn(at, home.server)
  for (const [name, path, shows] of PAGES) {
    await visit(at, path, shows)
    const wide = (await at.page.evaluate(
      'Math.max(document.documentElement.scrollWidth, document.getElementById("main").scrollWidth)',
    )) as number
    expect(wide, name).toBeLessThanOrEqual(390)
    if (['overview', 'approvals', 'sandbox'].includes(name)) await picture(at.page, `${name}-phone`)
  }
  expect(await seriousIn(at)).toEqual([])
  expect(at.complaints).toEqual([])
  await at.context.close()
})

test('the sign-in page takes a key, and says no to a wrong one', async () => {
  const at = await seat(browser, home.server.url)
  await at.page.goto(`${home.server.url}/console/policy`)
  await at.page.getByLabel('API key').fill('rf_0000000000000000000000000000000000000000')
  await at.page.keyboard.press('Enter')
  await at.page.getByRole('alert').getByText('a valid API key is needed').waitFor()
  expect(await seriousIn(at)).toEqual([])
  await picture(at.page, 'sign-in')
  await at.page.getByLabel('API key').fill(await home.key(['read'], 'red'))
  await at.page.keyboard.press('Enter')
  await at.page.getByRole('heading', { name: 'Policy' }).waitFor()
  await at.page.getByText('tenant red').waitFor()
  // Another tenant sees none of this, and is offered none of the operator's pages.
  await at.go('/')
  await at.page.getByText('No sandbox is running').waitFor()
  expect(await at.page.getByRole('link', { name: 'Keys' }).count()).toBe(0)
  expect(at.complaints).toEqual([])
  await at.page.getByRole('button', { name: 'Sign out' }).click()
  await at.page.getByLabel('API key').waitFor()
  await at.page.reload()
  await at.page.getByLabel('API key').waitFor()
  await at.context.close()
})

test('a link that was used says so', async () => {
  const at = await seat(browser, home.server.url)
  const { keys, sessions } = home.server.parts
  const secret = await sessions.newLink(await keys.consoleKey())
  await at.page.goto(`${home.server.url}/console/#${secret}`)
  await at.page.getByRole('navigation', { name: 'Pages' }).waitFor()
  const other = await seat(browser, home.server.url)
  await other.page.goto(`${home.server.url}/console/#${secret}`)
  await other.page.getByRole('alert').getByText('used already').waitFor()
  await at.context.close()
  await other.context.close()
})
