import { mkdirSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { type Browser, type BrowserContext, chromium, type Page } from 'playwright-core'
import { expect } from 'vitest'
import { packageRoot } from '../conformance/world.ts'

/** Debian's Chromium on our real page. Whatever it complains about or asks another host for fails the test. */

export type BrowserSession = {
  readonly page: Page
  readonly context: BrowserContext
  /** Everything that went wrong so far: errors of the page, refused styles and scripts, requests to elsewhere. */
  readonly complaints: readonly string[]
  readonly go: (path: string) => Promise<void>
}

export const launch = (): Promise<Browser> =>
  chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-dev-shm-usage'] })

export type BrowserSessionOptions = {
  readonly theme?: 'dark' | 'light'
  readonly width?: number
  readonly height?: number
  readonly reducedMotion?: boolean
  /** For a certificate that nobody signed but ourselves. */
  readonly anyCertificate?: boolean
}

export async function seat(
  browser: Browser,
  url: string,
  options: BrowserSessionOptions = {},
): Promise<BrowserSession> {
  const context = await browser.newContext({
    viewport: { width: options.width ?? 1360, height: options.height ?? 850 },
    colorScheme: options.theme ?? 'dark',
    reducedMotion: options.reducedMotion === false ? 'no-preference' : 'reduce',
    acceptDownloads: true,
    ignoreHTTPSErrors: options.anyCertificate === true,
  })
  const page = await context.newPage()
  page.setDefaultTimeout(15_000)
  const complaints: string[] = []
  page.on('console', (message) => {
    // A page that comes back after a restart tries and fails first; that is said to nobody but the console.
    if (message.type() === 'error' && !/ERR_CONNECTION|Failed to load resource/.test(message.text()))
      complaints.push(message.text())
  })
  page.on('pageerror', (error) => complaints.push(error.message))
  page.on('dialog', (dialog) => {
    complaints.push(`a dialog of the browser: ${dialog.message()}`)
    void dialog.dismiss()
  })
  page.on('request', (request) => {
    const at = request.url()
    if (!at.startsWith(url) && !at.startsWith(`blob:${url}`)) complaints.push(`asked for ${at}`)
  })
  const go = async (path: string): Promise<void> => {
    // As text: this half of the tests knows no browser's types.
    await page.evaluate(
      `history.pushState(null, '', ${JSON.stringify(`/console${path}`)}); dispatchEvent(new PopStateEvent('popstate'))`,
    )
  }
  return { page, context, complaints, go }
}

/** Signs in with a fresh link, as a person who clicks on it. */
export async function signIn(
  { page }: BrowserSession,
  server: { readonly url: string; readonly parts: Parts },
): Promise<void> {
  const { keys, sessions } = server.parts
  await page.goto(`${server.url}/console/#${await sessions.newLink(await keys.consoleKey())}`)
  await page.getByRole('navigation', { name: 'Pages' }).waitFor()
  expect(new URL(page.url()).hash).toBe('')
}

type Parts = {
  readonly keys: { consoleKey(): Promise<string> }
  readonly sessions: { newLink(id: string): Promise<string> }
}

const axeFile = createRequire(import.meta.url).resolve('axe-core/axe.min.js')

/** What axe finds serious or critical, a line each. The page's policy holds: the script comes in by the debugger. */
export async function seriousIn(
  { page, context }: BrowserSession,
  rules?: readonly string[],
): Promise<readonly string[]> {
  const session = await context.newCDPSession(page)
  await session.send('Page.setBypassCSP', { enabled: false })
  await page.evaluate(axeSource())
  const found = await page.evaluate(async (only) => {
    const { axe } = globalThis as unknown as { axe: { run(options: unknown): Promise<AxeResults> } }
    const some = only === null ? {} : { runOnly: { type: 'rule', values: only } }
    const { violations } = await axe.run({ resultTypes: ['violations'], ...some })
    return violations
      .filter(({ impact }) => impact === 'serious' || impact === 'critical')
      .map(
        ({ id, nodes }) =>
          `${id}: ${nodes.map(({ html, any }) => `${html.slice(0, 120)} ${any[0]?.message ?? ''}`).join(' | ')}`,
      )
  }, rules ?? null)
  await session.detach()
  return found
}
type AxeResults = {
  readonly violations: readonly {
    readonly id: string
    readonly impact: string
    readonly nodes: readonly {
      readonly html: string
      readonly any: readonly { readonly message: string }[]
    }[]
  }[]
}

let source: string | undefined
function axeSource(): string {
  source ??= createRequire(import.meta.url)('node:fs').readFileSync(axeFile, 'utf8') as string
  return source
}

/** Pictures for the documentation, only when they are asked for: a test run leaves the tree as it was. */
export async function picture(page: Page, name: string): Promise<void> {
  if (process.env.RINGFENCE_PICTURES !== '1') return
  const dir = join(packageRoot(), 'docs', 'images')
  mkdirSync(dir, { recursive: true })
  await page.screenshot({ path: join(dir, `${name}.png`) })
}

/** Pictures of everything, into a directory of one's own, for whoever judges how it looks. */
export async function look(page: Page, name: string): Promise<void> {
  const dir = process.env.RINGFENCE_LOOK
  if (dir) await page.screenshot({ path: join(dir, `${name}.png`) })
}
