import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { startTestServer, type TestServer } from '../server/test-server.ts'
import {
  type ConsolePage,
  launchBrowser,
  openConsole,
  saveDocImage,
  saveScreenshot,
  signIn,
} from './browser.ts'

/** Templates, snapshots, volumes and webhooks in the console, each up to its effect on the server. */

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

async function openSignedIn(): Promise<ConsolePage> {
  const at = await openConsole(browser, home.server.url)
  await signIn(at, home.server)
  return at
}

const items = async (path: string): Promise<readonly Record<string, unknown>[]> =>
  (await home.call('GET', path)).json.items

/** Deletes the only row: first cancelled, then confirmed, by keyboard. */
async function removeOnly({ page }: ConsolePage, path: string): Promise<void> {
  await page.getByRole('button', { name: /^Delete/ }).click()
  await page.getByRole('dialog').waitFor()
  await page.keyboard.press('Escape')
  expect(await items(path)).toHaveLength(1)
  await page.getByRole('button', { name: /^Delete/ }).click()
  await page.getByRole('dialog').waitFor()
  await page.keyboard.press('Enter')
  await page.getByText(/^No .* yet$/).waitFor()
  expect(await items(path)).toHaveLength(0)
}

test('a volume is created, refused while it is mounted, and deleted', async () => {
  const at = await openSignedIn()
  const { page } = at
  await page.keyboard.press('g')
  await page.keyboard.press('v')
  await page.getByText('No volumes yet').waitFor()
  await page.getByRole('button', { name: 'Create volume…' }).click()
  await page.getByLabel('Name').fill('models')
  await page.getByLabel('Size (MB)').fill('64')
  await page.keyboard.press('Enter')
  await page.getByRole('cell', { name: 'models', exact: true }).waitFor()
  expect(await items('/v1/volumes')).toMatchObject([{ name: 'models', size_mb: 64 }])
  const made = await home.call('POST', '/v1/sandboxes', {
    body: { metadata: { name: 'trainer' }, volumes: [{ name: 'models', target: '/models' }] },
  })
  expect(made.status, made.text).toBe(201)
  await page.reload()
  await page.getByRole('link', { name: 'trainer' }).waitFor()
  await saveScreenshot(page, 'volumes-mounted')
  await saveDocImage(page, 'volumes')
  await page.getByRole('button', { name: /^Delete/ }).click()
  await page.getByRole('dialog').waitFor()
  await page.keyboard.press('Enter')
  const refused = await home.call('DELETE', '/v1/volumes/models')
  await page.locator('.toast.error').getByText(refused.json.message).waitFor()
  expect(await items('/v1/volumes')).toHaveLength(1)
  await home.call('DELETE', `/v1/sandboxes/${made.json.id}`)
  await page.keyboard.press('Escape')
  await removeOnly(at, '/v1/volumes')
  expect(at.problems).toEqual([])
  await at.context.close()
})

test('a webhook is created with a secret that is shown once, and deleted', async () => {
  const at = await openSignedIn()
  const { page } = at
  await at.go('/webhooks')
  await page.getByRole('button', { name: 'Create webhook…' }).click()
  await page.getByLabel('URL').fill('ftp://hooks.example')
  await page.getByRole('button', { name: 'Create webhook', exact: true }).click()
  await page.locator('.toast.error').getByText('http(s)').waitFor()
  await page.getByLabel('URL').fill('https://hooks.example/ringfence')
  await page.getByLabel('SandboxViolation').check()
  await saveScreenshot(page, 'webhook-create')
  await page.getByRole('button', { name: 'Create webhook', exact: true }).click()
  await page.getByText(/^whsec_/).waitFor()
  await page.getByRole('button', { name: 'Done' }).click()
  expect(await items('/v1/webhooks')).toMatchObject([
    { url: 'https://hooks.example/ringfence', events: ['SandboxViolation'] },
  ])
  await removeOnly(at, '/v1/webhooks')
  await at.context.close()
})

test('a sandbox is created from a snapshot, and the snapshot is deleted', async () => {
  const made = await home.call('POST', '/v1/sandboxes', { body: { metadata: { name: 'origin' } } })
  await home.call('POST', `/v1/sandboxes/${made.json.id}/exec`, {
    body: { command: 'echo kept > /tmp/note' },
  })
  await home.call('POST', `/v1/sandboxes/${made.json.id}/snapshot`, { body: { name: 'with-note' } })
  const at = await openSignedIn()
  const { page } = at
  await at.go('/snapshots')
  await page.getByRole('cell', { name: 'with-note', exact: true }).waitFor()
  await saveScreenshot(page, 'snapshots-one')
  await page.getByRole('link', { name: 'New sandbox' }).click()
  await page.getByRole('textbox', { name: 'Name' }).fill('copy')
  await page.getByRole('button', { name: 'Create sandbox' }).click()
  await page.getByRole('heading', { name: 'copy' }).waitFor()
  const id = new URL(page.url()).pathname.split('/').at(-1)
  const seen = await home.call('POST', `/v1/sandboxes/${id}/exec`, { body: { command: 'cat /tmp/note' } })
  expect(seen.json.stdout).toBe('kept\n')
  await at.go('/snapshots')
  await removeOnly(at, '/v1/snapshots')
  await at.context.close()
})

test('the build of a template shows its log and why it failed', async () => {
  const at = await openSignedIn()
  const { page } = at
  await at.go('/templates')
  await page.getByText('No templates yet').waitFor()
  await page.getByRole('button', { name: 'Build template…' }).click()
  await page.getByLabel('Name').fill('tools')
  await page.getByLabel('Start from').selectOption('template')
  await page.getByRole('textbox', { name: 'Template' }).fill('no-such-template')
  await saveScreenshot(page, 'template-build')
  await page.getByRole('dialog').getByRole('button', { name: 'Build' }).click()
  await page.getByRole('heading', { name: 'Build of tools' }).waitFor()
  await page.getByRole('alert').getByText('no-such-template').waitFor()
  await saveScreenshot(page, 'template-failed')
  await at.context.close()
})

test('a key that only reads sees the pages without their actions', async () => {
  await home.call('POST', '/v1/volumes', {
    body: { name: 'shared' },
    key: await home.key(['create', 'read'], 'red'),
  })
  const at = await openConsole(browser, home.server.url)
  await at.page.goto(`${home.server.url}/console/volumes`)
  await at.page.getByLabel('API key').fill(await home.key(['read'], 'red'))
  await at.page.keyboard.press('Enter')
  await at.page.getByRole('cell', { name: 'shared', exact: true }).waitFor()
  expect(await at.page.getByRole('button', { name: /Create|Delete/ }).count()).toBe(0)
  await at.context.close()
})
