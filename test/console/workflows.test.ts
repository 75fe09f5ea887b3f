import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type RunningServer, startServer } from '../../src/compose/serve.ts'
import { callAt } from '../server/test-server.ts'
import {
  type ConsolePage,
  launchBrowser,
  openConsole,
  saveDocImage,
  saveScreenshot,
  signIn,
} from './browser.ts'

/** Complete workflows in the console, each up to its effect on the server. */

let browser: Browser
let dir: string
let server: RunningServer
let key: string

const start = (port = 0): Promise<RunningServer> =>
  startServer({
    port,
    config: join(dir, 'ringfence.toml'),
    env: { PATH: process.env.PATH, HOME: dir, RINGFENCE_HOME: join(dir, 'state') },
    cwd: dir,
  })

const call = (method: string, path: string, body?: unknown) =>
  callAt(server.url, method, path, { key, ...(body === undefined ? {} : { body }) })

async function make(body: Record<string, unknown> = {}): Promise<string> {
  const made = await call('POST', '/v1/sandboxes', body)
  expect(made.status, made.text).toBe(201)
  return made.json.id as string
}

async function openSignedIn(options: Parameters<typeof openConsole>[2] = {}): Promise<ConsolePage> {
  const at = await openConsole(browser, server.url, options)
  await signIn(at, server)
  return at
}

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'rf-console-'))
  writeFileSync(
    join(dir, 'ringfence.toml'),
    '[policy]\nallow_interactive = true\n[server]\nrequests_per_second = 100000\nwrong_keys_per_second = 100000\n',
  )
  server = await start()
  key = (await server.parts.keys.create({ scopes: ['create', 'exec', 'read', 'admin'] })).secret
  browser = await launchBrowser()
})
afterAll(async () => {
  await browser.close()
  await server.close()
  rmSync(dir, { recursive: true, force: true })
})

/** A network through which a push could publish something: that is asked about. */
const OPEN = { network: { mode: 'fetch', allow_hosts: ['git.example'] } }

describe('a host that is not on the allow list', () => {
  test('is allowed permanently: the policy change is shown and saved, and the connection continues', async () => {
    const id = await make({ agent_id: 'claude-code', network: { unlisted: 'ask' } })
    const at = await openSignedIn()
    const { page } = at
    const got = call('POST', `/v1/sandboxes/${id}/exec`, {
      command: 'python3 /dev/stdin',
      stdin:
        "import urllib.request\ntry: urllib.request.urlopen('http://files.test:8080/')\nexcept urllib.error.HTTPError as e: print(e.headers['x-ringfence-reason'])\n",
    })
    await page.getByRole('heading', { name: 'Needs attention' }).waitFor()
    await page.keyboard.press('g')
    await page.keyboard.press('a')
    const question = page.getByRole('article', { name: 'Approval request' })
    await question.getByText('connect to files.test:8080').waitFor()
    await saveScreenshot(page, 'host-1-question')
    await page.keyboard.press('w')
    const dialog = page.getByRole('dialog', { name: 'Always allow this host?' })
    await dialog.getByText('[[approved_host]]').waitFor()
    await saveScreenshot(page, 'host-2-always')
    await dialog.getByRole('button', { name: 'Save and allow' }).click()
    expect((await got).json.stdout).toContain('does not resolve')
    expect(readFileSync(join(dir, 'ringfence.toml'), 'utf8')).toContain('host = "files.test:8080"')
    await at.context.close()
  })
})

describe('an approval', () => {
  test('is found, explained, rejected and recorded, by keyboard alone', async () => {
    const id = await make({ agent_id: 'claude-code', metadata: { name: 'release' }, ...OPEN })
    const at = await openSignedIn()
    const { page } = at
    const { keyboard } = page
    await page.getByText('release').waitFor()
    const asked = call('POST', `/v1/sandboxes/${id}/exec`, { command: 'echo start && git push origin main' })
    // It appears at the top of the overview by itself.
    await page.getByRole('heading', { name: 'Needs attention' }).waitFor()
    await saveScreenshot(page, 'approval-1-overview')
    await keyboard.press('g')
    await keyboard.press('a')
    await page.getByRole('heading', { name: 'Approvals' }).waitFor()
    const question = page.getByRole('article', { name: 'Approval request' })
    await question.getByText('Why approval is needed').waitFor()
    expect(await question.innerText()).toContain('publishes work')
    const parts = await question
      .getByRole('list', { name: 'Commands in this line' })
      .getByRole('listitem')
      .allInnerTexts()
    expect(parts[0]).toMatch(/echo start[\s\S]*allow/)
    expect(parts[1]).toMatch(/git push origin main[\s\S]*ask[\s\S]*git\/push/)
    await question.getByText('git.example').first().waitFor()
    await saveScreenshot(page, 'approval-2-reasons')
    await keyboard.press('r')
    await page.getByRole('dialog').waitFor()
    // Escape cancels.
    await keyboard.press('Escape')
    await page.getByRole('dialog').waitFor({ state: 'detached' })
    expect((await call('GET', '/v1/approvals?state=pending')).json.items).toHaveLength(1)
    await keyboard.press('r')
    await page.getByLabel('Reason').waitFor()
    await keyboard.type('not before the review')
    await saveScreenshot(page, 'approval-3-reject')
    await keyboard.press('Enter')
    await question.getByText('not before the review').waitFor()
    expect((await asked).status).toBe(422)
    // From the decision to its record, by Tab and Enter.
    const link = question.getByRole('link', { name: /^record #/ })
    await link.waitFor()
    for (let turn = 0; turn < 60; turn++) {
      if (await page.evaluate('document.activeElement.textContent.startsWith("record #")')) break
      await keyboard.press('Tab')
    }
    await keyboard.press('Enter')
    const record = page.getByRole('region', { name: /^Record #/ })
    await record.getByText('rejected').first().waitFor()
    expect(await record.innerText()).toMatch(/not before the review/)
    await saveScreenshot(page, 'approval-4-record')
    expect(at.problems).toEqual([])
    await at.context.close()
  })

  test('is approved once with `a`, and the command runs', async () => {
    const id = await make({ agent_id: 'codex', ...OPEN })
    const at = await openSignedIn()
    const asked = call('POST', `/v1/sandboxes/${id}/exec`, { command: 'git push origin main; echo ran' })
    await at.page.getByRole('heading', { name: 'Needs attention' }).waitFor()
    await at.page.keyboard.press('g')
    await at.page.keyboard.press('a')
    await at.page.getByText('Why approval is needed').waitFor()
    await at.page.keyboard.press('a')
    await at.page.getByRole('dialog', { name: 'Approve this command once?' }).waitFor()
    await at.page.keyboard.press('Enter')
    expect((await asked).json.stdout).toContain('ran')
    await at.page.getByRole('article', { name: 'Approval request' }).getByText('approved').first().waitFor()
    await at.context.close()
  })

  test('is approved with a new rule, which is then active', async () => {
    const id = await make(OPEN)
    const at = await openSignedIn()
    const asked = call('POST', `/v1/sandboxes/${id}/exec`, { command: 'git push origin main' })
    await at.page.getByRole('heading', { name: 'Needs attention' }).waitFor()
    await at.go('/approvals')
    await at.page.getByText('Why approval is needed').waitFor()
    await at.page.keyboard.press('w')
    const rule = at.page.getByLabel('Rule to add to the policy')
    await at.page.getByText('Valid: all examples pass').waitFor()
    expect(await rule.inputValue()).toContain('prefix = ["git", "push", "origin", "main"]')
    await rule.fill((await rule.inputValue()).replace('match = ["git push', 'match = ["git pull'))
    await at.page.getByText('does not match').waitFor()
    expect(await at.page.getByRole('button', { name: 'Save rule and approve' }).isDisabled()).toBe(true)
    await rule.fill((await rule.inputValue()).replace('git pull', 'git push'))
    await at.page.getByText('Valid: all examples pass').waitFor()
    await saveScreenshot(at.page, 'approve-always')
    await at.page.getByRole('button', { name: 'Save rule and approve' }).click()
    expect((await asked).status).toBe(200)
    expect(readFileSync(join(dir, 'ringfence.toml'), 'utf8')).toContain('"origin", "main"')
    const again = await call('POST', '/v1/policy/evaluate', { command: 'git push origin main' })
    expect(again.json.action).toBe('sandbox')
    await at.context.close()
  })
})

describe('a sandbox', () => {
  test('has a terminal with a real shell, and its commands stream', async () => {
    const id = await make({ metadata: { name: 'shell' } })
    const at = await openSignedIn()
    await at.go(`/sandboxes/${id}/terminal`)
    const screen = at.page.locator('.xterm-rows')
    await screen.getByText(/[#$]/).first().waitFor()
    await at.page.keyboard.type('echo $((6*7))-from-inside; tty\n')
    await screen.getByText('42-from-inside').first().waitFor()
    await screen.getByText('/dev/pts/').first().waitFor()
    await saveScreenshot(at.page, 'terminal-used')
    // The terminal gets all keys while it has the focus.
    expect(new URL(at.page.url()).pathname).toBe(`/console/sandboxes/${id}/terminal`)
    await at.page.keyboard.type('exit\n')
    await at.page.getByText('Session ended (exit 0)').waitFor()
    expect(await screen.innerText()).toContain('42-from-inside')
    await at.go(`/sandboxes/${id}`)
    await at.page.getByLabel('Run a command').fill('for n in 1 2 3; do echo line-$n; sleep 0.2; done; exit 3')
    await at.page.keyboard.press('Enter')
    await at.page.getByRole('log').getByText('line-3').waitFor()
    await at.page.getByText('exit 3').first().waitFor()
    expect(at.problems).toEqual([])
    await at.context.close()
  })

  test('has the keys Ctrl, Tab and Esc below the terminal on a phone', async () => {
    const id = await make({ metadata: { name: 'phone' } })
    const at = await openSignedIn({ width: 390, height: 844 })
    const { page } = at
    await at.go(`/sandboxes/${id}/terminal`)
    const screen = page.locator('.xterm-rows')
    await screen.getByText(/[#$]/).first().waitFor()
    const keys = page.getByRole('toolbar', { name: 'Terminal keys' })
    await page.keyboard.type('sleep 300 || echo stopped-$((40+2))\n')
    await keys.getByRole('button', { name: 'Ctrl' }).click()
    expect(await keys.getByRole('button', { name: 'Ctrl' }).getAttribute('aria-pressed')).toBe('true')
    await page.keyboard.type('c')
    expect(await keys.getByRole('button', { name: 'Ctrl' }).getAttribute('aria-pressed')).toBe('false')
    await page.keyboard.type('cat | od -c\n')
    for (const name of ['Tab', 'Esc']) await keys.getByRole('button', { name }).click()
    await page.keyboard.type('\n')
    await keys.getByRole('button', { name: 'Ctrl' }).click()
    await page.keyboard.type('d')
    await screen
      .getByText(/\\t +033 +\\n/)
      .first()
      .waitFor()
    await saveScreenshot(page, 'terminal-keys-phone')
    await at.context.close()
  })

  test('has its isolation drawing whole on a phone, and its audit log in sentences', async () => {
    const id = await make({ metadata: { name: 'small' }, ...OPEN })
    await call('POST', `/v1/sandboxes/${id}/exec`, { command: 'exit 3' })
    const at = await openSignedIn({ width: 390, height: 844 })
    await at.go(`/sandboxes/${id}/wall`)
    const drawing = at.page.getByRole('img', { name: /isolation with \d+ layers/ })
    await drawing.waitFor()
    const box = await drawing.boundingBox()
    expect((box?.x ?? 0) + (box?.width ?? 0)).toBeLessThanOrEqual(390)
    expect(await drawing.innerText()).toMatch(
      /Host[\s\S]*no access[\s\S]*bubblewrap[\s\S]*Network[\s\S]*git\.example/,
    )
    await at.go(`/sandboxes/${id}/record`)
    await at.page.getByText(/^Command exited with code 3 after \d+/).waitFor()
    await at.page.getByText('Sandbox is ready on bubblewrap').waitFor()
    await at.context.close()
  })

  test('opens the output of a running command at once, and leaves it open when it ends', async () => {
    const id = await make({ metadata: { name: 'busy' } })
    await call('POST', `/v1/sandboxes/${id}/exec`, {
      command: 'echo first-line; sleep 4; echo last-line',
      background: true,
    })
    const at = await openSignedIn()
    await at.go(`/sandboxes/${id}`)
    const output = at.page.getByRole('log', { name: 'Output' })
    await output.getByText('first-line').waitFor()
    await output.getByText('last-line').waitFor()
    await at.page.getByText('exit 0').first().waitFor()
    expect(await output.count()).toBe(1)
    await at.context.close()
  })

  test('has files that are created, edited, uploaded, downloaded and deleted', async () => {
    const id = await make({})
    const at = await openSignedIn()
    const { page } = at
    await at.go(`/sandboxes/${id}/files?dir=/tmp`)
    await page.getByLabel('New file').fill('notes.txt')
    await page.keyboard.press('Enter')
    await page.getByRole('button', { name: 'Edit' }).click()
    await page.getByLabel('Contents of notes.txt').fill('first\nsecond\n')
    await page.getByRole('button', { name: 'Save…' }).click()
    await page.getByRole('group', { name: 'Changes to the text' }).getByText('second').waitFor()
    await page.keyboard.press('Enter')
    await page.locator('pre.file').getByText('second').waitFor()
    await page
      .locator('input[type=file]')
      .setInputFiles({ name: 'in.bin', mimeType: 'text/html', buffer: Buffer.from([1, 0, 2]) })
    await page.getByRole('button', { name: /in\.bin/ }).click()
    await page.getByText('Binary file.').waitFor()
    const [download] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('button', { name: 'Download' }).click(),
    ])
    expect([...readFileSync((await download.path()) as string)]).toEqual([1, 0, 2])
    await page.getByRole('button', { name: 'Delete…' }).click()
    await page.keyboard.press('Enter')
    await page.getByRole('button', { name: /in\.bin/ }).waitFor({ state: 'detached' })
    expect(at.problems).toEqual([])
    await at.context.close()
  })

  test('is paused, resumed, snapshotted, forked and destroyed', async () => {
    const id = await make({})
    const at = await openSignedIn()
    const { page } = at
    await at.go(`/sandboxes/${id}`)
    await page.getByRole('button', { name: 'Pause' }).click()
    await page.getByRole('button', { name: 'Resume' }).click()
    await page.getByRole('button', { name: 'Pause' }).waitFor()
    await page.getByRole('button', { name: 'Snapshot' }).click()
    await page.getByRole('status').getByText('Snapshot created').waitFor()
    await page.getByRole('button', { name: 'Fork' }).click()
    await page.getByRole('status').getByText('This is the fork').waitFor()
    expect(page.url()).not.toContain(id)
    await at.go(`/sandboxes/${id}`)
    await page.getByText(id).first().waitFor()
    await page.getByRole('button', { name: 'Destroy…' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Destroy' }).click()
    await page.getByText('destroyed').first().waitFor()
    await at.go('/?state=ended')
    await page.getByRole('link', { name: id.slice(0, 11) }).waitFor()
    await at.context.close()
  })

  test('lets a blocked host be allowed with one click', async () => {
    const id = await make({ network: { mode: 'fetch', allow_hosts: [] } })
    const script = "import urllib.request as u\nu.urlopen('http://wanted.example.com/', timeout=5)\n"
    await call('PUT', `/v1/sandboxes/${id}/files?path=/tmp/get.py`, script)
    await call('POST', `/v1/sandboxes/${id}/exec`, { argv: ['python3', '/tmp/get.py'] })
    const at = await openSignedIn()
    await at.go(`/sandboxes/${id}/network`)
    await at.page.getByRole('button', { name: 'Allow this host' }).click()
    await at.page.getByRole('dialog').waitFor()
    await at.page.keyboard.press('Enter')
    await at.page.getByRole('button', { name: 'Remove wanted.example.com' }).waitFor()
    expect((await call('GET', `/v1/sandboxes/${id}`)).json.network.allow_hosts).toEqual([
      'wanted.example.com',
    ])
    await at.context.close()
  })
})

describe('the audit log', () => {
  test('is verified as a whole and record by record, and exported', async () => {
    await make({ agent_id: 'claude-code' })
    const at = await openSignedIn()
    const { page } = at
    await at.go('/trail')
    await page.getByRole('button', { name: 'Verify in this browser' }).click()
    await page.getByText(/Verified: /).waitFor()
    await page.locator('.records [data-row="0"] a').click()
    await page.getByRole('button', { name: 'Verify record' }).click()
    await page.getByText('Verified in this browser').waitFor()
    await saveDocImage(page, 'audit-log-verified')
    const [download] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('button', { name: 'Export' }).click(),
    ])
    const lines = readFileSync((await download.path()) as string, 'utf8')
      .trim()
      .split('\n')
    expect(JSON.parse(lines[0] as string)).toMatchObject({ seq: 0 })
    // j and k move between rows, Enter opens one.
    await page.getByLabel('Event').selectOption('Approval')
    expect(new URL(page.url()).searchParams.get('event')).toBe('Approval')
    await page.locator('h1').focus()
    await page.keyboard.press('j')
    await page.locator('[data-row="0"] a:focus').waitFor()
    await page.keyboard.press('j')
    await page.locator('[data-row="1"] a:focus').waitFor()
    await page.keyboard.press('Enter')
    await page
      .getByRole('region', { name: /^Record #/ })
      .getByText('Approval')
      .first()
      .waitFor()
    expect(at.problems).toEqual([])
    await at.context.close()
  })
})

describe('the policy and the keys', () => {
  test('a policy change is validated, compared and activated', async () => {
    const at = await openSignedIn()
    const { page } = at
    await at.go('/policy/edit')
    const file = page.getByLabel('Policy file')
    const before = await file.inputValue()
    await file.fill(`${before}\n[[policy.rule]]\nprefx = ["npm"]\naction = "deny"\n`)
    await page.getByText(/unknown field/).waitFor()
    expect(await page.getByRole('button', { name: 'Review changes…' }).isDisabled()).toBe(true)
    await file.fill(
      `${before}\n[[policy.rule]]\nprefix = ["npm"]\naction = "deny"\nwhy = "no packages here"\nmatch = ["npm install"]\n`,
    )
    await page.getByText('Valid: ').waitFor()
    await page.getByRole('button', { name: 'Review changes…' }).click()
    await page.getByRole('group', { name: 'Changes to the text' }).getByText('no packages here').waitFor()
    await saveScreenshot(page, 'policy-change')
    await page.getByRole('button', { name: 'Save and activate' }).click()
    await page.getByText('Policy saved and active').waitFor()
    expect(
      (await call('POST', '/v1/policy/evaluate', { command: 'npm install left-pad' })).json,
    ).toMatchObject({ action: 'deny', reason: 'no packages here' })
    // A save based on an older text is rejected.
    const stale = await call('PUT', '/v1/policy', { text: before, base: 'x' })
    expect(stale.status).toBe(409)
    await at.context.close()
  })

  test('a key is created, shown once, and revoked', async () => {
    const at = await openSignedIn()
    const { page } = at
    await at.go('/keys')
    await page.getByRole('button', { name: 'Create key…' }).click()
    await page.getByRole('textbox', { name: 'Name' }).fill('for the build')
    await page.getByRole('textbox', { name: 'Tenant' }).fill('build')
    await page.getByRole('button', { name: 'Create key', exact: true }).click()
    const secret = (await page.getByRole('dialog').locator('code').innerText()).trim()
    expect(secret).toMatch(/^rf_[0-9a-f]{40}$/)
    expect((await callAt(server.url, 'GET', '/v1/sandboxes', { key: secret })).status).toBe(200)
    await page.getByRole('button', { name: 'Done' }).click()
    expect(await page.content()).not.toContain(secret)
    const row = page.getByRole('row').filter({ hasText: 'for the build' })
    await row.getByRole('button', { name: 'Revoke…' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click()
    await row.getByText('revoked').waitFor()
    expect((await callAt(server.url, 'GET', '/v1/sandboxes', { key: secret })).status).toBe(401)
    await at.context.close()
  })
})

test('a server restart keeps the content of the page', async () => {
  const id = await make({ agent_id: 'claude-code', metadata: { name: 'before-the-restart' } })
  await call('POST', `/v1/sandboxes/${id}/exec`, { command: 'echo said-before' })
  const at = await openSignedIn()
  const { page } = at
  const other = await openConsole(browser, server.url)
  await signIn(other, server)
  await other.go(`/sandboxes/${id}/terminal`)
  const screen = other.page.locator('.xterm-rows')
  await screen.getByText(/[#$]/).first().waitFor()
  await other.page.keyboard.type('echo typed-$((40+2))\n')
  await screen.getByText('typed-42').first().waitFor()
  await page.getByText('before-the-restart').waitFor()
  const { port } = server
  await server.close()
  await page.getByText('reconnecting…').waitFor()
  expect(await page.locator('#main').innerText()).toContain('before-the-restart')
  server = await start(port)
  await page.locator('.status').getByText('live').waitFor()
  const row = page.getByRole('row').filter({ hasText: 'before-the-restart' })
  await row.getByText(/destroyed|failed/).waitFor()
  expect(await screen.innerText()).toContain('typed-42')
  // Still signed in, and new sandboxes appear.
  await make({ metadata: { name: 'after-the-restart' } })
  await page.getByText('after-the-restart').waitFor()
  await page.reload()
  await page.getByText('after-the-restart').waitFor()
  await at.context.close()
  await other.context.close()
})

test('a host that stays blocked is not reported as allowed', async () => {
  const id = await make({ network: { mode: 'fetch', allow_hosts: ['pypi.org'] } })
  const at = await openSignedIn()
  const { page } = at
  await at.go(`/sandboxes/${id}/network`)
  const allow = async (host: string): Promise<string> => {
    await page.getByRole('button', { name: 'Allow host…' }).click()
    await page.getByLabel('Host', { exact: true }).fill(host)
    await page.getByRole('button', { name: 'Allow host', exact: true }).click()
    const message = page.locator('.toast', { hasText: host }).last()
    await message.waitFor()
    return (await message.textContent()) ?? ''
  }
  const refused = await allow('169.254.169.254')
  expect(refused).toMatch(/^✕ 169\.254\.169\.254 was added but stays blocked: .*cloud metadata/)
  const allowed = await allow('files.pythonhosted.org')
  expect(allowed).toMatch(/^✓ files\.pythonhosted\.org: allowed by name; the addresses behind it are judged/)
  expect(await page.getByText('can be reached now').count()).toBe(0)
  await saveScreenshot(page, 'network-refused')
  const answer = await call('PUT', `/v1/sandboxes/${id}/network`, { allow_hosts: ['10.0.0.1', 'pypi.org'] })
  expect(answer.json.hosts).toMatchObject([
    { host: '10.0.0.1', verdict: 'deny', reason: expect.stringContaining('private address') },
    { host: 'pypi.org', verdict: 'allow' },
  ])
  expect(at.problems).toEqual([])
  await at.context.close()
})
