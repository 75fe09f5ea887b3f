import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startServer } from '../../src/compose/serve.ts'
import { startTestServer, type TestServer } from '../server/test-server.ts'
import {
  accessibilityProblems,
  type ConsolePage,
  launchBrowser,
  openConsole,
  saveScreenshot,
  signIn,
} from './browser.ts'

/** What the console shows when the server ends a stream, and the pending changes of ended sandboxes. */

let home: TestServer
let browser: Browser
const CONFIG = `[policy]
allow_interactive = true
[server]
requests_per_second = 100000
wrong_keys_per_second = 100000
`
beforeAll(async () => {
  home = await startTestServer(CONFIG)
  browser = await launchBrowser()
})
afterAll(async () => {
  await browser.close()
  await home.close()
})

async function make(body: Record<string, unknown>): Promise<string> {
  const made = await home.call('POST', '/v1/sandboxes', { body })
  expect(made.status, made.text).toBe(201)
  return made.json.id as string
}
const run = (id: string, command: string, background = false) =>
  home.call('POST', `/v1/sandboxes/${id}/exec`, { body: { command, background } })

async function openSignedIn(options: Parameters<typeof openConsole>[2] = {}): Promise<ConsolePage> {
  const one = await openConsole(browser, home.server.url, options)
  await signIn(one, home.server)
  return one
}

/** Counts the page's API requests from now on. */
function callsOf({ page }: ConsolePage): () => number {
  let calls = 0
  page.on('request', (request) => {
    if (request.url().includes('/v1/')) calls++
  })
  return () => calls
}

describe('the console after the end of a session', () => {
  test('says that the key was revoked, and does not reconnect', async () => {
    const { key } = await home.server.parts.keys.create({ scopes: ['read', 'exec'], tenant: 'default' })
    const one = await openConsole(browser, home.server.url)
    const link = await home.server.parts.sessions.newLink(key.id)
    await one.page.goto(`${home.server.url}/console/#${link}`)
    // Until the event stream is connected.
    await one.page.getByText('● live').first().waitFor()
    const calls = callsOf(one)
    await home.server.parts.keys.revoke(key.id)
    await one.page.getByRole('alert').getByText('the key was revoked').waitFor()
    await one.page.waitForTimeout(700)
    expect(calls()).toBe(0)
    expect(await accessibilityProblems(one)).toEqual([])
    await saveScreenshot(one.page, 'revoked')
    expect(one.problems).toEqual([])
    await one.context.close()
  })

  test('says that it was signed out elsewhere, except in the tab that signed out', async () => {
    const one = await openSignedIn()
    const other = await one.context.newPage()
    await other.goto(`${home.server.url}/console/`)
    await other.getByRole('navigation', { name: 'Pages' }).waitFor()
    await other.getByRole('button', { name: 'Sign out' }).click()
    await one.page.getByRole('alert').getByText('signed out elsewhere').waitFor()
    await other.getByLabel('API key').waitFor()
    expect(await other.getByRole('alert').count()).toBe(0)
    await one.context.close()
  })
})

test('a terminal and a running command say that their sandbox has ended', async () => {
  const [shell, busy] = [await make({}), await make({})]
  await run(busy, 'echo begun; sleep 60', true)
  const one = await openSignedIn()
  const second = await one.context.newPage()
  await second.goto(`${home.server.url}/console/sandboxes/${busy}`)
  // The output of a running command is open at once.
  await second.getByRole('log').getByText('begun').waitFor()
  await one.go(`/sandboxes/${shell}/terminal`)
  await one.page.getByText('A shell inside this sandbox').waitFor()
  await home.call('DELETE', `/v1/sandboxes/${shell}`)
  await home.call('DELETE', `/v1/sandboxes/${busy}`)
  const told = 'the sandbox has ended (killed)'
  await one.page.getByText(`Disconnected: ${told}`).waitFor()
  expect(await one.page.getByRole('button', { name: 'New session' }).count()).toBe(0)
  await second.getByRole('status').getByText(told).waitFor()
  expect(await accessibilityProblems(one)).toEqual([])
  expect(one.problems).toEqual([])
  await one.context.close()
})

test('the page says that the server shuts down, and reconnects', async () => {
  const env = { PATH: process.env.PATH, HOME: home.dir, RINGFENCE_HOME: join(home.dir, 'going') }
  const first = await startServer({ port: 0, env })
  const one = await openConsole(browser, first.url)
  await signIn(one, first)
  // Until the event stream is connected.
  await one.page.getByText('● live').first().waitFor()
  await first.close()
  const words = 'the server is shutting down; reconnecting…'
  await one.page.getByRole('status').getByText(words).waitFor()
  await saveScreenshot(one.page, 'shutdown')
  await one.page.setViewportSize({ width: 390, height: 844 })
  expect(await one.page.evaluate('document.documentElement.scrollWidth > innerWidth')).toBe(false)
  await saveScreenshot(one.page, 'shutdown-phone')
  const second = await startServer({ port: first.port, env })
  await one.page.getByText(words).waitFor({ state: 'detached' })
  await one.page.locator('.status.live').waitFor()
  expect(one.problems).toEqual([])
  await one.context.close()
  await second.close()
})

describe('pending changes of ended sandboxes', () => {
  async function left(name: string, command: string): Promise<{ readonly id: string; readonly dir: string }> {
    const dir = join(home.dir, name)
    mkdirSync(dir)
    writeFileSync(join(dir, 'README.md'), 'one\n')
    const id = await make({ workspace: dir, review: true, agent_id: 'claude-code', metadata: { name } })
    await run(id, command)
    await home.call('DELETE', `/v1/sandboxes/${id}`)
    return { id, dir }
  }

  const firstWords = (text: string): string => text.split('\n').slice(0, 2).join(': ')

  test('are on the overview until they are applied or discarded', async () => {
    const one = await openSignedIn()
    const { page } = one
    await page.getByText('Nothing was blocked').waitFor()
    expect(await page.getByRole('heading', { name: 'Needs attention' }).count()).toBe(0)
    await left('docs', 'echo two >> README.md; echo new > new.txt; rm -f gone')
    await left('typo', 'sed -i s/one/One/ README.md')
    await left('idle', 'true')
    const list = page.getByRole('list', { name: 'Needs attention' })
    await expect
      .poll(async () => (await list.getByRole('link').allInnerTexts()).map(firstWords))
      .toEqual(['1 pending change: typo', '2 pending changes: docs'])
    for (const theme of ['dark', 'light'] as const) {
      const other = await openSignedIn({ theme })
      await other.page.getByRole('list', { name: 'Needs attention' }).waitFor()
      expect(await accessibilityProblems(other)).toEqual([])
      await saveScreenshot(other.page, `overview-changes-${theme}`)
      await other.context.close()
    }
    await list.getByRole('link', { name: /docs/ }).click()
    await page.getByRole('button', { name: 'Apply all…' }).click()
    await page.getByRole('dialog').waitFor()
    await page.keyboard.press('Enter')
    await page.getByText('No pending changes').waitFor()
    await one.go('/')
    await list.getByRole('link', { name: /docs/ }).waitFor({ state: 'detached' })
    await list.getByRole('link', { name: /typo/ }).click()
    await page.getByRole('button', { name: 'Discard all…' }).click()
    await page.getByRole('dialog').waitFor()
    await page.keyboard.press('Enter')
    await page.getByText('No pending changes').waitFor()
    await one.go('/')
    await page.getByRole('heading', { name: 'Needs attention' }).waitFor({ state: 'detached' })
    expect(one.problems).toEqual([])
    await one.context.close()
  })

  test('fit on a phone, whatever their number', async () => {
    for (let at = 0; at < 6; at++) await left(`many-${at}`, 'echo more >> README.md')
    const one = await openSignedIn({ width: 390, height: 844, theme: 'light' })
    await one.page.getByText('Changes of 2 more sandboxes').click()
    await one.page.getByRole('link', { name: /many-0/ }).waitFor()
    const wide = await one.page.evaluate('document.documentElement.scrollWidth > innerWidth')
    expect(wide).toBe(false)
    expect(await accessibilityProblems(one)).toEqual([])
    await saveScreenshot(one.page, 'overview-changes-phone')
    await one.context.close()
  })
})
