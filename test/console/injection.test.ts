import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { startTestServer, type TestServer } from '../server/test-server.ts'
import { type ConsolePage, launchBrowser, openConsole, signIn } from './browser.ts'

/** Script injection: names, commands, files, hosts and output that an agent chooses, and input in fields, are only ever text. */

const PAYLOADS = [
  '<img src=x onerror="window.hit=1">',
  '"><script>window.hit=1</script>',
  "';window.hit=1;//",
  '{{constructor.constructor("window.hit=1")()}}',
  'javascript:window.hit=1',
  '</pre><svg/onload=window.hit=1>',
  '\u202egnp.exe\u2066',
]
const ALL = PAYLOADS.join(' ')

let home: TestServer
let browser: Browser
let at: ConsolePage
let id: string
let reviewed: string

beforeAll(async () => {
  home = await startTestServer(
    '[policy]\nallow_interactive = true\n[server]\nrequests_per_second = 100000\nwrong_keys_per_second = 100000\n',
  )
  browser = await launchBrowser()
  const made = await home.call('POST', '/v1/sandboxes', {
    body: {
      agent_id: ALL.slice(0, 256),
      metadata: { name: ALL },
      network: { mode: 'fetch', allow_hosts: ['example.com'] },
    },
  })
  expect(made.status, made.text).toBe(201)
  id = made.json.id as string
  const run = (argv: readonly string[], more = {}): Promise<unknown> =>
    home.call('POST', `/v1/sandboxes/${id}/exec`, { body: { argv, ...more } }).catch(() => {})
  const started: Promise<unknown>[] = []
  for (const mark of PAYLOADS) {
    // Policy wants an approval for some of them; those stay pending.
    started.push(run(['echo', mark], { background: true }))
    const name = encodeURIComponent(`/tmp/${mark.replaceAll('/', '∕')}`)
    await home.call('PUT', `/v1/sandboxes/${id}/files?path=${name}`, { body: `<html>${mark}</html>` })
  }
  await home.call('PUT', `/v1/sandboxes/${id}/files?path=/tmp/page.html`, {
    body: `<script>window.hit=1</script>${ALL}`,
  })
  await Promise.race([Promise.all(started), new Promise((resolve) => setTimeout(resolve, 3000))])
  void run(['cat', `/etc/shadow`, ALL])
  void run(['git', 'push', 'origin', ALL])
  reviewed = await changed()
  await home.server.parts.keys.create({ name: ALL, scopes: ['read'] })
  at = await openConsole(browser, home.server.url)
  await signIn(at, home.server)
})
afterAll(async () => {
  await browser.close()
  await home.close()
})

/** A sandbox with hostile names and contents among its pending changes. */
async function changed(): Promise<string> {
  const workspace = join(home.dir, 'work')
  mkdirSync(workspace)
  const made = await home.call('POST', '/v1/sandboxes', { body: { workspace, review: true } })
  for (const mark of PAYLOADS) {
    const name = encodeURIComponent(join(workspace, mark.replaceAll('/', '∕')))
    await home.call('PUT', `/v1/sandboxes/${made.json.id}/files?path=${name}`, { body: `${mark}\n` })
  }
  return made.json.id as string
}

async function expectNoInjection(where: string): Promise<void> {
  expect(await at.page.evaluate('window.hit'), where).toBeUndefined()
  // Only the console's own elements: no payload became one.
  const strange = await at.page.evaluate(
    "[...document.querySelectorAll(\"script:not([src^='/console/assets/']), img:not([src='/console/mark.svg']), iframe, object, embed, [onerror], [onload], a[href^='javascript:']\")].length",
  )
  expect(strange, where).toBe(0)
}

test('input of an agent is shown as text on every page', async () => {
  const pages: readonly (readonly [string, string])[] = [
    ['/', '<img src=x'],
    [`/sandboxes/${id}`, '"><script>'],
    [`/sandboxes/${id}/files?dir=/tmp&file=/tmp/page.html`, '<script>window.hit=1'],
    [`/sandboxes/${reviewed}/changes`, '<img src=x'],
    [`/sandboxes/${id}/wall`, 'Layers'],
    [`/sandboxes/${id}/network`, 'example.com'],
    [`/sandboxes/${id}/record`, '<img src=x'],
    ['/approvals', '<img src=x'],
    ['/trail', '<img src=x'],
    ['/trail?seq=2', 'Record #2'],
    ['/keys', '<img src=x'],
    [`/sandboxes/${encodeURIComponent(PAYLOADS[0] as string)}`, 'Sandbox not found'],
    [
      `/trail?agent=${encodeURIComponent(ALL)}&sandbox=${encodeURIComponent(ALL)}&event=${encodeURIComponent(ALL)}`,
      'Records',
    ],
    [
      `/?q=${encodeURIComponent(ALL)}&state=${encodeURIComponent(ALL)}&from=${encodeURIComponent(ALL)}&to=NaN`,
      'Sandboxes',
    ],
    [`/policy/try?subject=${encodeURIComponent(ALL)}`, 'Evaluation'],
    [`/approvals/${encodeURIComponent(PAYLOADS[1] as string)}`, 'no such approval'],
  ]
  for (const [path, shows] of pages) {
    await at.go(path)
    await at.page.locator('#main').getByText(shows).first().waitFor()
    await expectNoInjection(path)
  }
  await at.go(`/sandboxes/${reviewed}/changes`)
  const changes = at.page.getByRole('list', { name: 'Changes' }).getByRole('button')
  for (const change of await changes.all()) {
    await change.click()
    await at.page.getByRole('group', { name: 'Changes to the text' }).waitFor()
    await expectNoInjection('changes')
  }
  // Characters that change the text direction are shown as code points.
  await at.go('/approvals')
  await at.page.locator('pre.command').getByText('‹202e›').first().waitFor()
  expect(at.problems).toEqual([])
})

test('command output and port responses are shown as text', async () => {
  await at.go(`/sandboxes/${id}`)
  const heads = at.page.locator('.exec-head').filter({ hasText: /^[\d:]+\s*echo <img/ })
  await heads.first().click()
  await at.page.getByRole('log').getByText('onerror').first().waitFor()
  await expectNoInjection('output')
  const serve = `import http.server as s
class H(s.BaseHTTPRequestHandler):
  def do_GET(self):
    self.send_response(200); self.send_header('content-type','text/html'); self.send_header('set-cookie','ringfence_session=stolen'); self.end_headers(); self.wfile.write(b'<script>window.hit=1</script>')
s.HTTPServer(('127.0.0.1',8077),H).serve_forever()`
  await home.call('PUT', `/v1/sandboxes/${id}/files?path=/tmp/serve.py`, { body: serve })
  await home.call('POST', `/v1/sandboxes/${id}/exec`, {
    body: { argv: ['python3', '/tmp/serve.py'], background: true },
  })
  await at.go(`/sandboxes/${id}/ports`)
  const look = at.page.getByRole('button', { name: 'Find listening ports' })
  const found = at.page.getByText('8077', { exact: true })
  for (let turn = 0; turn < 40 && (await found.count()) === 0; turn++) {
    await look.click()
    await at.page.waitForTimeout(150)
  }
  await at.page
    .locator('.chips li')
    .filter({ hasText: '8077' })
    .getByRole('button', { name: 'GET /' })
    .click()
  await at.page.getByRole('log').getByText('window.hit=1').waitFor()
  await expectNoInjection('port')
  expect(at.problems).toEqual([])
})

test('the session cookie alone does not open a file or port of a sandbox', async () => {
  const direct = await at.context.newPage()
  const answer = await direct.goto(`${home.server.url}/v1/sandboxes/${id}/ports/8077/`)
  // The cookie alone is not enough, so no page is served.
  expect(answer?.status()).toBe(401)
  const file = await direct
    .goto(`${home.server.url}/v1/sandboxes/${id}/files?path=/tmp/page.html`)
    .catch(() => null)
  expect(file?.status() ?? 401).toBe(401)
  await direct.close()
})

test('input in any field is shown as text', async () => {
  const fields: readonly (readonly [path: string, open: string | undefined])[] = [
    ['/', undefined],
    ['/trail', undefined],
    ['/policy/try', undefined],
    ['/policy/edit', undefined],
    ['/skills', undefined],
    ['/keys', 'Create key…'],
    [`/sandboxes/${id}`, undefined],
    [`/sandboxes/${id}/files?dir=/tmp`, undefined],
    [`/sandboxes/${id}/network`, 'Allow host…'],
    ['/approvals', 'Reject…'],
  ]
  for (const [path, open] of fields) {
    await at.go(path)
    if (open) await at.page.getByRole('button', { name: open }).click()
    const boxes = at.page.locator('input:not([type=checkbox]):not([type=file]):visible, textarea:visible')
    await boxes.first().waitFor()
    for (const box of await boxes.all()) {
      await box.fill(ALL)
      await box.press('Enter')
    }
    await at.page.waitForTimeout(100)
    await expectNoInjection(path)
    await at.page.keyboard.press('Escape')
    await at.page.keyboard.press('Escape')
  }
  expect(at.problems).toEqual([])
})
