import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { startTestServer, type TestServer } from '../server/test-server.ts'
import {
  accessibilityProblems,
  type ConsolePage,
  launchBrowser,
  openConsole,
  saveDocImage,
  saveScreenshot,
  signIn,
} from './browser.ts'

/** Creating a sandbox in the console, up to the sandbox itself and the one that the shown command creates. */

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

async function openWithKey(scopes: Parameters<TestServer['key']>[0], tenant: string): Promise<ConsolePage> {
  const at = await openConsole(browser, home.server.url)
  await at.page.goto(`${home.server.url}/console/`)
  await at.page.getByLabel('API key').fill(await home.key(scopes, tenant))
  await at.page.keyboard.press('Enter')
  await at.page.getByRole('heading', { name: 'Overview' }).waitFor()
  return at
}

/** Runs a line in a shell as a user would, with `ringfence` on the PATH. */
async function inShell(line: string): Promise<string> {
  const program = `ringfence() { '${process.execPath}' '${join(packageRoot(), 'dist/cli/ringfence.cjs')}' "$@"; }\n${line}`
  const env = {
    PATH: process.env.PATH,
    HOME: home.dir,
    RINGFENCE_URL: home.server.url,
    RINGFENCE_API_KEY: home.admin,
  }
  return (await promisify(execFile)('/bin/sh', ['-c', program], { env })).stdout.trim()
}

test('the form creates the sandbox that its command creates, and opens its page', async () => {
  const at = await openConsole(browser, home.server.url)
  await signIn(at, home.server)
  const { page } = at
  await page.getByRole('heading', { name: 'Overview' }).waitFor()
  await page.keyboard.press('n')
  await page.getByRole('heading', { name: 'New sandbox' }).waitFor()
  await page.getByLabel('Name', { exact: true }).fill("api tests' home")
  await page.getByLabel('Agent').fill('claude-code')
  await page.getByLabel('Labels').fill('team=search tier')
  await page.getByText('Not KEY=VALUE: tier').waitFor()
  await page.getByLabel('Labels').fill('team=search tier=test')
  await page.getByLabel('Backend').locator('option', { hasText: 'bubblewrap' }).waitFor({ state: 'attached' })
  await page.getByLabel('Backend').selectOption('bubblewrap')
  await page.getByLabel('Mode').selectOption('fetch')
  await page.getByLabel('Allowed hosts').fill('pypi.org *.github.com')
  await page.getByLabel('Memory (MB)').fill('256')
  await page.getByLabel('Lifetime (minutes)').fill('1.5')
  expect(await accessibilityProblems(at)).toEqual([])
  await saveScreenshot(page, 'new-sandbox')
  await saveDocImage(page, 'new-sandbox')
  const command = await page.locator('.new-sandbox-create .code code').innerText()
  await page.getByLabel('Memory (MB)').press('Enter')
  await page.getByRole('heading', { name: "api tests' home" }).waitFor()
  const id = new URL(page.url()).pathname.split('/').at(-1)
  const other = await inShell(command)
  expect(other).not.toBe(id)
  const [made, same] = await Promise.all(
    [id, other].map(async (one) => (await home.call('GET', `/v1/sandboxes/${one}`)).json),
  )
  const asked = ({ backend, network, limits, metadata, agent_id }: Record<string, unknown>) => ({
    ...{ backend, network, limits, metadata, agent_id },
  })
  expect(asked(made)).toEqual(asked(same))
  expect(made).toMatchObject({
    backend: 'bubblewrap',
    agent_id: 'claude-code',
    limits: { memoryMb: 256 },
    network: { mode: 'fetch', allow_hosts: ['pypi.org', '*.github.com'] },
    metadata: { name: "api tests' home", team: 'search', tier: 'test' },
  })
  const lifetimeMs = Date.parse(made.expires_at) - Date.parse(made.created_at)
  expect(Math.round(lifetimeMs / 30_000)).toBe(3)
  expect(at.problems).toEqual([])
  await at.context.close()
})

test('a refused request shows the message and the hint of the server, and keeps the form', async () => {
  const at = await openConsole(browser, home.server.url)
  await signIn(at, home.server)
  const { page } = at
  await at.go('/sandboxes/new')
  await page.getByLabel('Name', { exact: true }).fill('bare')
  await page
    .getByLabel('Backend')
    .locator('optgroup[label="No isolation"] option[value=native]')
    .waitFor({ state: 'attached' })
  await page.getByLabel('Backend').selectOption('native')
  await page.getByText('does not isolate commands from the host').waitFor()
  await page.getByRole('button', { name: 'Create sandbox' }).click()
  const refused = await home.call('POST', '/v1/sandboxes', { body: { backend: 'native' } })
  expect(refused.status).toBeGreaterThanOrEqual(400)
  const alert = await page.getByRole('alert').innerText()
  expect(alert.toLowerCase()).toContain(refused.json.message.toLowerCase())
  expect(alert.toLowerCase()).toContain(refused.json.hint.toLowerCase())
  expect(await page.getByLabel('Name', { exact: true }).inputValue()).toBe('bare')
  await at.context.close()
})

test('a key of a tenant creates in its tenant; a key that only reads is offered nothing', async () => {
  const at = await openWithKey(['create', 'read'], 'red')
  await at.page.getByRole('link', { name: 'New sandbox' }).click()
  // Directories of the host belong to the operator.
  expect(await at.page.getByLabel('Workspace').count()).toBe(0)
  expect(await at.page.getByLabel('Mode').locator('option[value=full]').count()).toBe(0)
  await at.page.getByLabel('Name', { exact: true }).fill('mine')
  await at.page.getByRole('button', { name: 'Create sandbox' }).click()
  await at.page.getByRole('heading', { name: 'mine' }).waitFor()
  const id = new URL(at.page.url()).pathname.split('/').at(-1)
  expect((await home.call('GET', `/v1/sandboxes/${id}`)).json.tenant).toBe('red')
  await at.context.close()
  const reader = await openWithKey(['read'], 'red')
  expect(await reader.page.getByRole('link', { name: 'New sandbox' }).count()).toBe(0)
  await reader.go('/sandboxes/new')
  await reader.page.getByText('This key cannot create sandboxes').waitFor()
  await reader.context.close()
})
