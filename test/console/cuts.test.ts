import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startServer } from '../../src/serve.ts'
import { type House, house } from '../server/house.ts'
import { launch, look, type Seat, seat, seriousIn, signIn } from './browser.ts'

/** What a person reads when the server ends what they look at, and what sandboxes that have ended left for them. */

let home: House
let browser: Browser
const CONFIG = `[policy]
allow_interactive = true
[server]
requests_per_second = 100000
wrong_keys_per_second = 100000
`
beforeAll(async () => {
  home = await house(CONFIG)
  browser = await launch()
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

async function entered(options: Parameters<typeof seat>[2] = {}): Promise<Seat> {
  const one = await seat(browser, home.server.url, options)
  await signIn(one, home.server)
  return one
}

/** How often the page asked to be let in again after it was shown out. */
function callsOf({ page }: Seat): () => number {
  let calls = 0
  page.on('request', (request) => {
    if (request.url().includes('/v1/')) calls++
  })
  return () => calls
}

describe('whoever is out', () => {
  test('reads that the key was revoked, and does not knock again', async () => {
    const { key } = await home.server.parts.keys.create({ scopes: ['read', 'exec'], tenant: 'default' })
    const one = await seat(browser, home.server.url)
    const link = await home.server.parts.sessions.newLink(key.id)
    await one.page.goto(`${home.server.url}/console/#${link}`)
    // The stream, not the figure of the same name, which is there before it.
    await one.page.getByText('● live').first().waitFor()
    const calls = callsOf(one)
    await home.server.parts.keys.revoke(key.id)
    await one.page.getByRole('alert').getByText('the key was revoked').waitFor()
    await one.page.waitForTimeout(700)
    expect(calls()).toBe(0)
    expect(await seriousIn(one)).toEqual([])
    await look(one.page, 'revoked')
    expect(one.complaints).toEqual([])
    await one.context.close()
  })

  test('reads that they signed out elsewhere; who did it reads nothing of the kind', async () => {
    const one = await entered()
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

test('a terminal and a command say that their sandbox has ended', async () => {
  const [shell, busy] = [await make({}), await make({})]
  await run(busy, 'echo begun; sleep 60', true)
  const one = await entered()
  const second = await one.context.newPage()
  await second.goto(`${home.server.url}/console/sandboxes/${busy}`)
  await second.getByRole('button', { name: /echo begun/ }).click()
  await second.getByRole('log').getByText('begun').waitFor()
  await one.go(`/sandboxes/${shell}/terminal`)
  await one.page.getByText('A shell inside this sandbox').waitFor()
  await home.call('DELETE', `/v1/sandboxes/${shell}`)
  await home.call('DELETE', `/v1/sandboxes/${busy}`)
  const told = 'the sandbox has ended (killed)'
  await one.page.getByText(`Disconnected: ${told}`).waitFor()
  expect(await one.page.getByRole('button', { name: 'New session' }).count()).toBe(0)
  await second.getByRole('status').getByText(told).waitFor()
  expect(await seriousIn(one)).toEqual([])
  expect(one.complaints).toEqual([])
  await one.context.close()
})

test('a server that goes says so, and the page comes back with it', async () => {
  const env = { PATH: process.env.PATH, HOME: home.dir, RINGFENCE_HOME: join(home.dir, 'going') }
  const first = await startServer({ port: 0, env })
  const one = await seat(browser, first.url)
  await signIn(one, first)
  // The stream, not the figure of the same name, which is there before it.
  await one.page.getByText('● live').first().waitFor()
  await first.close()
  const words = 'the server is shutting down; reconnecting…'
  await one.page.getByRole('status').getByText(words).waitFor()
  await look(one.page, 'shutdown')
  await one.page.setViewportSize({ width: 390, height: 844 })
  expect(await one.page.evaluate('document.documentElement.scrollWidth > innerWidth')).toBe(false)
  await look(one.page, 'shutdown-phone')
  const second = await startServer({ port: first.port, env })
  await one.page.getByText(words).waitFor({ state: 'detached' })
  await one.page.locator('.status.live').waitFor()
  expect(one.complaints).toEqual([])
  await one.context.close()
  await second.close()
})

describe('changes of sandboxes that have ended', () => {
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

  test('wait on the overview, lead to where they are decided, and go when they are', async () => {
    const one = await entered()
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
      const other = await entered({ theme })
      await other.page.getByRole('list', { name: 'Needs attention' }).waitFor()
      expect(await seriousIn(other)).toEqual([])
      await look(other.page, `overview-changes-${theme}`)
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
    expect(one.complaints).toEqual([])
    await one.context.close()
  })

  test('stay in view on a phone, however many', async () => {
    for (let at = 0; at < 6; at++) await left(`many-${at}`, 'echo more >> README.md')
    const one = await entered({ width: 390, height: 844, theme: 'light' })
    await one.page.getByText('Changes of 2 more sandboxes').click()
    await one.page.getByRole('link', { name: /many-0/ }).waitFor()
    const wide = await one.page.evaluate('document.documentElement.scrollWidth > innerWidth')
    expect(wide).toBe(false)
    expect(await seriousIn(one)).toEqual([])
    await look(one.page, 'overview-changes-phone')
    await one.context.close()
  })
})
