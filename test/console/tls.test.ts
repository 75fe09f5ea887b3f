import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { request } from 'node:https'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { startTestServer, type TestServer } from '../server/test-server.ts'
import { launchBrowser, openConsole, signIn } from './browser.ts'

/** Over TLS the cookie is bound to this host and to TLS. The certificate is self-signed. */

let home: TestServer
let browser: Browser
let dir: string

const CONFIG =
  '[policy]\nallow_interactive = true\n[server]\nrequests_per_second = 100000\nwrong_keys_per_second = 100000\n'

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'rf-tls-'))
  const [key, cert] = [join(dir, 'key.pem'), join(dir, 'cert.pem')]
  const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '1']
  const name = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1']
  execFileSync('openssl', ['req', '-x509', ...curve, '-keyout', key, '-out', cert, ...name], {
    stdio: 'ignore',
  })
  home = await startTestServer(CONFIG, { host: '127.0.0.1', tlsCert: cert, tlsKey: key })
  browser = await launchBrowser()
})
afterAll(async () => {
  await browser.close()
  await home.close()
  rmSync(dir, { recursive: true, force: true })
})

type Heard = { readonly status: number; readonly cookie: string; readonly json: { readonly page: string } }

const send = (method: string, headers: Record<string, string>, body?: unknown): Promise<Heard> =>
  new Promise((resolve, reject) => {
    const asked = request(
      `${home.server.url}/v1/console/session`,
      { method, rejectUnauthorized: false, headers: { 'content-type': 'application/json', ...headers } },
      async (response) => {
        let text = ''
        for await (const chunk of response) text += chunk
        const cookie = response.headers['set-cookie']?.[0] ?? ''
        resolve({ status: response.statusCode ?? 0, cookie, json: text ? JSON.parse(text) : {} })
      },
    )
    asked.on('error', reject).end(body === undefined ? undefined : JSON.stringify(body))
  })

test('over TLS the session cookie has the __Host- prefix', async () => {
  const { keys, sessions } = home.server.parts
  const own = { origin: home.server.url }
  const made = await send('POST', own, { link: await sessions.newLink(await keys.consoleKey()) })
  expect(made.status).toBe(201)
  expect(made.cookie).toMatch(/^__Host-ringfence=[\w-]{43}; Path=\/; HttpOnly; SameSite=Strict; Secure$/)
  const cookie = made.cookie.split(';')[0] as string
  const both = { cookie, 'x-ringfence-console': made.json.page }
  expect((await send('GET', both)).status).toBe(200)
  expect((await send('GET', { cookie })).status).toBe(401)
  const out = await send('DELETE', { ...both, ...own })
  expect([out.status, out.cookie]).toEqual([
    204,
    '__Host-ringfence=; Path=/; HttpOnly; SameSite=Strict; Secure; Max-Age=0',
  ])
  expect((await send('GET', both)).status).toBe(401)
})

test('over TLS a browser hides the cookie from scripts, and event stream and terminal work', async () => {
  const made = await home.server.parts.supervisor.create(
    { keyId: '', tenant: 'default', scopes: ['create'] },
    { spec: { metadata: { name: 'over-tls' } } },
  )
  const at = await openConsole(browser, home.server.url, { anyCertificate: true })
  await signIn(at, home.server)
  const [cookie] = await at.context.cookies()
  expect(cookie).toMatchObject({
    name: '__Host-ringfence',
    secure: true,
    httpOnly: true,
    sameSite: 'Strict',
    path: '/',
  })
  expect(await at.page.evaluate('document.cookie')).toBe('')
  await at.page.getByText('over-tls').waitFor()
  await at.page.locator('.status').getByText('live').waitFor()
  await at.go(`/sandboxes/${made.row.id}/terminal`)
  const screen = at.page.locator('.xterm-rows')
  await screen.getByText(/[#$]/).first().waitFor()
  await at.page.keyboard.type('echo typed-$((40+2))\n')
  await screen.getByText('typed-42').first().waitFor()
  await at.page.reload()
  await at.page.getByText('over-tls').first().waitFor()
  expect(at.problems).toEqual([])
  await at.context.close()
})
