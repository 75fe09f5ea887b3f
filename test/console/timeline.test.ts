import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { startTestServer, type TestServer } from '../server/test-server.ts'
import {
  accessibilityProblems,
  launchBrowser,
  openConsole,
  saveDocImage,
  saveScreenshot,
  signIn,
} from './browser.ts'

/** The timeline of a sandbox that no page had open. */

let home: TestServer
let browser: Browser

beforeAll(async () => {
  home = await startTestServer('[server]\nrequests_per_second = 100000\nwrong_keys_per_second = 100000\n')
  browser = await launchBrowser()
})
afterAll(async () => {
  await browser.close()
  await home.close()
})

test('the timeline shows commands, approvals, blocked actions, egress and usage from before the page was opened, also after the end', async () => {
  const made = await home.call('POST', '/v1/sandboxes', {
    body: {
      agent_id: 'claude-code',
      metadata: { name: 'api-tests' },
      network: { mode: 'fetch', allow_hosts: ['pypi.org'] },
    },
  })
  expect(made.status, made.text).toBe(201)
  const id = made.json.id as string
  const run = (command: string) => home.call('POST', `/v1/sandboxes/${id}/exec`, { body: { command } })
  await run('timeout 3 python3 -c "x = bytearray(60_000_000)\nwhile True: pass"')
  await run('rm -rf /')
  const fetching =
    "import urllib.request as u\nfor h in ['telemetry.example.com', 'stats.example.com']:\n  try: u.urlopen('http://' + h, timeout=5)\n  except OSError: pass\n"
  await home.call('PUT', `/v1/sandboxes/${id}/files?path=/tmp/report.py`, { body: fetching })
  await run('python3 /tmp/report.py')
  const asked = run('git push origin main')
  await expect
    .poll(async () => (await home.call('GET', '/v1/approvals?state=pending')).json.items.length)
    .toBe(1)
  // Two samples make a line; no page has been open so far.
  await expect
    .poll(async () => (await home.call('GET', `/v1/sandboxes/${id}/usage`)).json.items.length, {
      timeout: 30_000,
      interval: 500,
    })
    .toBeGreaterThanOrEqual(2)
  const [approval] = (await home.call('GET', '/v1/approvals?state=pending')).json.items
  await home.call('POST', `/v1/approvals/${approval.id}`, { body: { approve: false } })
  await asked
  await run('sleep 1; echo done')
  const at = await openConsole(browser, home.server.url)
  await signIn(at, home.server)
  const { page } = at
  await at.go(`/sandboxes/${id}/timeline`)
  const picture = page.getByRole('img', { name: /^Commands: / })
  await picture.waitFor()
  expect(await picture.getAttribute('aria-label')).toBe('Commands: 4, Approvals: 1, Blocked: 1, Egress: 2')
  const lines = await picture
    .locator('polyline')
    .evaluateAll((all) => all.map((one) => String(one.getAttribute('points'))))
  expect(lines).toHaveLength(2)
  for (const line of lines) expect(line.split(' ').length).toBeGreaterThanOrEqual(2)
  expect(await picture.innerText()).toMatch(/CPU[\s\S]*100%[\s\S]*Memory[\s\S]*MB/)
  await page.getByText(/\d+ events as text/).click()
  await page.getByRole('listitem').getByText('rm -rf /').first().waitFor()
  expect(await accessibilityProblems(at)).toEqual([])
  await page.getByText(/\d+ events as text/).click()
  await saveScreenshot(page, 'timeline-life')
  await saveDocImage(page, 'timeline')
  await home.call('DELETE', `/v1/sandboxes/${id}`)
  await page.getByText('destroyed').first().waitFor()
  await page.reload()
  await picture.locator('polyline').first().waitFor({ state: 'attached' })
  expect((await home.call('GET', `/v1/sandboxes/${id}/usage`)).json.items.length).toBeGreaterThanOrEqual(2)
  expect(at.problems).toEqual([])
  await at.context.close()
})
