import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { compose, skillRunner } from '../../src/compose/compose.ts'
import { packageRoot } from '../conformance/world.ts'
import { FULL, startTestServer, type TestServer } from '../server/test-server.ts'
import {
  accessibilityProblems,
  type ConsolePage,
  launchBrowser,
  openConsole,
  rememberView,
  saveDocImage,
  saveScreenshot,
  saveSheets,
  signIn,
} from './browser.ts'

/** Every page, in both themes and on a phone: its content, accessibility, width, and no requests to other hosts. */

let home: TestServer
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
[[tenant]]
name = "red"
max_sandboxes = 20
network_modes = ["offline", "fetch"]
allow_hosts = ["pypi.org"]
host_paths = [{ path = "/srv/datasets", mode = "ro" }]
waive = ["limit.disk"]
`

async function exec(id: string, command: string, background = false): Promise<void> {
  // A command that is still pending when the server closes fails.
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

/** An ended sandbox with pending changes. */
async function left(name: string, agent: string, command: string): Promise<void> {
  const workspace = join(home.dir, name)
  mkdirSync(workspace)
  const id = await make(name, agent, { workspace, review: true })
  await exec(id, command)
  await home.call('DELETE', `/v1/sandboxes/${id}`)
}

beforeAll(async () => {
  home = await startTestServer(CONFIG)
  mkdirSync(join(home.dir, 'project'))
  browser = await launchBrowser()
  const [tests, build] = await Promise.all([
    make('api-tests', 'claude-code', {
      network: { mode: 'fetch', allow_hosts: ['pypi.org', '*.github.com'] },
    }),
    make('nightly-build', 'build-bot', { workspace: join(home.dir, 'project') }),
    make('refactor', 'codex', { network: { mode: 'loopback' } }),
    make('scrape-docs', 'research-agent'),
  ])
  const site = join(home.dir, 'site')
  mkdirSync(join(site, 'guide'), { recursive: true })
  writeFileSync(
    join(site, 'README.md'),
    '# The guide\n\nInstall it with the colour of your choice.\n\nSee the guide for the rest.\n',
  )
  writeFileSync(join(site, 'guide', 'old.md'), 'Nobody reads this.\n')
  const docs = await make('docs-fix', 'claude-code', { workspace: site, review: true })
  await exec(
    docs,
    "sed -i 's/colour/color/' README.md && echo 'One more line.' >> README.md && rm guide/old.md && mkdir guide/start && echo '# Start' > guide/start/index.md && head -c 300 /dev/zero > logo.png",
  )
  await left('translate', 'codex', 'mkdir de && cd de && touch index.md start.md usage.md')
  await left('changelog', 'claude-code', 'echo "- The guide says color" > CHANGELOG.md')
  await exec(tests as string, 'mkdir -p src && echo "export const answer = 42" > src/index.ts && ls src')
  const fetching = "import urllib.request as u\nu.urlopen('http://telemetry.example.com/x', timeout=5)\n"
  await home.call('PUT', `/v1/sandboxes/${tests}/files?path=/tmp/report.py`, { body: fetching })
  await home.call('POST', `/v1/sandboxes/${tests}/exec`, { body: { argv: ['python3', '/tmp/report.py'] } })
  await exec(build as string, 'rm -rf /')
  await exec(build as string, 'cat /etc/shadow')
  await exec(build as string, 'for n in 1 2 3 4 5 6 7 8 9 10; do echo "unit $n"; sleep 1; done', true)
  await home.call('POST', `/v1/sandboxes/${ids.refactor}/snapshot`, { body: { name: 'before-upgrade' } })
  await home.call('POST', '/v1/volumes', { body: { name: 'models', size_mb: 20_480 } })
  await home.call('POST', '/v1/webhooks', { body: { url: 'https://hooks.example/ringfence' } })
  const env = { PATH: process.env.PATH, HOME: home.dir, RINGFENCE_HOME: join(home.dir, 'state') }
  const skills = await skillRunner(await compose({ env }))
  for (const name of ['word-count', 'csv-summary'])
    await skills.inspect(join(packageRoot(), 'examples', 'skills', name))
  await skills.close()
  for (const input of ['"one two three"', '"four"', '"a b c d e f"'])
    await home.call('POST', '/v1/skills/word-count/run', { body: { input: JSON.parse(input) } })
  // In the background: these stay pending.
  void exec(ids['scrape-docs'] as string, './deploy.sh production')
  await new Promise((resolve) => setTimeout(resolve, 300))
  void exec(tests as string, 'cd src && git push origin main && npm publish')
}, 60_000)
afterAll(async () => {
  await saveSheets(browser)
  await browser.close()
  await home.close()
})

const PAGES: readonly (readonly [name: string, path: string, shows: string | RegExp])[] = [
  ['overview', '/', 'nightly-build'],
  ['approvals', '/approvals', 'Why approval is needed'],
  ['sandbox', '/sandboxes/{api-tests}', 'mkdir -p src'],
  ['new-sandbox', '/sandboxes/new', 'ringfence sandbox create'],
  ['terminal', '/sandboxes/{refactor}/terminal', 'A shell inside this sandbox'],
  ['files', '/sandboxes/{api-tests}/files?dir=/tmp/src&file=/tmp/src/index.ts', 'export const answer = 42'],
  ['changes', '/sandboxes/{docs-fix}/changes?path={site}/README.md', 'One more line.'],
  ['ports', '/sandboxes/{refactor}/ports', 'Find listening ports'],
  ['network', '/sandboxes/{api-tests}/network', 'telemetry.example.com'],
  ['isolation', '/sandboxes/{nightly-build}/wall', 'Layers, as reported by the kernel'],
  ['timeline', '/sandboxes/{api-tests}/timeline', 'from the start'],
  ['sandbox-records', '/sandboxes/{api-tests}/record', 'mkdir -p src'],
  ['policy', '/policy', 'deploys to production'],
  ['policy-test', '/policy/try?subject=cat+notes.txt+%7C+xargs+git+push', 'Strictest decision wins'],
  ['policy-edit', '/policy/edit', 'Valid: '],
  ['policy-suggestions', '/policy/suggestions', 'Suggested rules'],
  ['audit-log', '/trail', 'Newest first'],
  ['egress', '/egress', 'telemetry.example.com'],
  ['templates', '/templates', 'No templates yet'],
  ['snapshots', '/snapshots', 'before-upgrade'],
  ['volumes', '/volumes', 'models'],
  ['webhooks', '/webhooks', 'hooks.example'],
  ['skills', '/skills', 'word-count'],
  ['backends', '/backends', 'bubblewrap'],
  ['nodes', '/nodes', 'This server is alone'],
  ['tenants', '/tenants', '/srv/datasets (read)'],
  ['settings', '/settings', 'server.requests_per_second'],
  ['keys', '/keys', 'console sign-in links'],
  ['not-found', '/no/such/page', 'This page does not exist'],
]

/** Screenshots that the documentation shows, dark and wide. */
const DOC_IMAGES = [
  'overview',
  'approvals',
  'changes',
  'isolation',
  'policy-test',
  'egress',
  'tenants',
  'settings',
]

const pathOf = (path: string): string =>
  path.replace(/\{(.*?)\}/g, (_, name: string) => ids[name] ?? join(home.dir, name))

async function visit(at: ConsolePage, path: string, shows: string | RegExp): Promise<void> {
  await at.go(pathOf(path))
  await at.page.locator('#main').getByText(shows).first().waitFor()
}

const ALL_VIEWS = [
  ['dark', 1360, 850],
  ['light', 1360, 850],
  ['dark', 390, 844],
  ['light', 390, 844],
] as const
/** Each theme and each width once; all of them in the full tests and for the pictures. */
const VIEWS = FULL || process.env.RINGFENCE_PICTURES === '1' ? ALL_VIEWS : [ALL_VIEWS[0], ALL_VIEWS[3]]

describe.each(VIEWS)('the console in the %s theme, %i wide', (theme, width, height) => {
  const phone = width < 600
  const suffix = `${theme === 'light' ? '-light' : ''}${phone ? '-phone' : ''}`

  test('shows every page with its content, without overflow and axe errors', async () => {
    const at = await openConsole(browser, home.server.url, { theme, width, height })
    await signIn(at, home.server)
    const found: string[] = []
    for (const [name, path, shows] of PAGES) {
      await visit(at, path, shows)
      if (name === 'overview' && !phone)
        await at.page.locator('.sparkline polyline').first().waitFor({ state: 'attached' })
      found.push(...(await accessibilityProblems(at)).map((line) => `${name}: ${line}`))
      const wide = (await at.page.evaluate(
        'Math.max(document.documentElement.scrollWidth, document.getElementById("main").scrollWidth)',
      )) as number
      if (wide > width) found.push(`${name}: ${wide} wide`)
      await saveScreenshot(at.page, `${name}${suffix}`)
      await rememberView(at.page, name)
      if (suffix === '' && DOC_IMAGES.includes(name)) await saveDocImage(at.page, name)
    }
    expect(found).toEqual([])
    expect(at.problems).toEqual([])
    await at.context.close()
  }, 180_000)
})

test('the sign-in page accepts a key and rejects a wrong one', async () => {
  const at = await openConsole(browser, home.server.url)
  await at.page.goto(`${home.server.url}/console/policy`)
  await at.page.getByLabel('API key').fill('rf_0000000000000000000000000000000000000000')
  await at.page.keyboard.press('Enter')
  await at.page.getByRole('alert').getByText('a valid API key is needed').waitFor()
  expect(await accessibilityProblems(at)).toEqual([])
  await saveScreenshot(at.page, 'sign-in')
  await at.page.getByLabel('API key').fill(await home.key(['read'], 'red'))
  await at.page.keyboard.press('Enter')
  await at.page.getByRole('heading', { name: 'Policy' }).waitFor()
  await at.page.getByText('Tenant red').waitFor()
  // Another tenant sees none of the sandboxes and none of the operator's pages.
  await at.go('/')
  await at.page.getByText('No sandboxes yet').waitFor()
  expect(await at.page.getByRole('link', { name: 'Keys' }).count()).toBe(0)
  expect(at.problems).toEqual([])
  await at.page.getByRole('button', { name: 'Sign out' }).click()
  await at.page.getByLabel('API key').waitFor()
  await at.page.reload()
  await at.page.getByLabel('API key').waitFor()
  await at.context.close()
})

test('a used sign-in link is rejected', async () => {
  const at = await openConsole(browser, home.server.url)
  const { keys, sessions } = home.server.parts
  const secret = await sessions.newLink(await keys.consoleKey())
  await at.page.goto(`${home.server.url}/console/#${secret}`)
  await at.page.getByRole('navigation', { name: 'Pages' }).waitFor()
  const other = await openConsole(browser, home.server.url)
  await other.page.goto(`${home.server.url}/console/#${secret}`)
  await other.page.getByRole('alert').getByText('has been used').waitFor()
  await at.context.close()
  await other.context.close()
})

test('revoking a key signs out its sessions and no others', async () => {
  const { secret, key } = await home.server.parts.keys.create({ scopes: ['read', 'exec'], tenant: 'red' })
  const [at, other] = [
    await openConsole(browser, home.server.url),
    await openConsole(browser, home.server.url),
  ]
  for (const [one, by] of [
    [at, secret],
    [other, await home.key(['read'], 'red')],
  ] as const) {
    await one.page.goto(`${home.server.url}/console/`)
    await one.page.getByLabel('API key').fill(by)
    await one.page.keyboard.press('Enter')
    await one.page.locator('.status').getByText('live').waitFor()
  }
  await home.call('DELETE', `/v1/keys/${key.id}`)
  await at.page.getByLabel('API key').waitFor()
  await other.page.locator('.status').getByText('live').waitFor()
  expect(await other.page.getByLabel('API key').count()).toBe(0)
  await at.context.close()
  await other.context.close()
})
