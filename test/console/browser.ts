import { mkdirSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { type Browser, type BrowserContext, chromium, type Page } from 'playwright-core'
import { expect } from 'vitest'
import { packageRoot } from '../conformance/world.ts'

/** Debian's Chromium on the real console. Page errors and requests to other hosts fail the test. */

export type ConsolePage = {
  readonly page: Page
  readonly context: BrowserContext
  /** What went wrong so far: page errors, blocked styles and scripts, requests to other hosts. */
  readonly problems: readonly string[]
  readonly go: (path: string) => Promise<void>
}

export const launchBrowser = (): Promise<Browser> =>
  chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-dev-shm-usage'] })

export type PageOptions = {
  readonly theme?: 'dark' | 'light'
  readonly width?: number
  readonly height?: number
  readonly reducedMotion?: boolean
  /** Accepts a self-signed certificate. */
  readonly anyCertificate?: boolean
}

export async function openConsole(
  browser: Browser,
  url: string,
  options: PageOptions = {},
): Promise<ConsolePage> {
  const context = await browser.newContext({
    viewport: { width: options.width ?? 1360, height: options.height ?? 850 },
    colorScheme: options.theme ?? 'dark',
    reducedMotion: options.reducedMotion === false ? 'no-preference' : 'reduce',
    acceptDownloads: true,
    ignoreHTTPSErrors: options.anyCertificate === true,
  })
  const page = await context.newPage()
  page.setDefaultTimeout(15_000)
  const problems: string[] = []
  page.on('console', (message) => {
    // While the server restarts, failed reconnects are logged; they are expected.
    if (message.type() === 'error' && !/ERR_CONNECTION|Failed to load resource/.test(message.text()))
      problems.push(message.text())
  })
  page.on('pageerror', (error) => problems.push(error.message))
  page.on('dialog', (dialog) => {
    problems.push(`browser dialog: ${dialog.message()}`)
    void dialog.dismiss()
  })
  page.on('request', (request) => {
    const at = request.url()
    if (!at.startsWith(url) && !at.startsWith(`blob:${url}`)) problems.push(`requested ${at}`)
  })
  const go = async (path: string): Promise<void> => {
    // As text, because the tests are compiled without DOM types.
    await page.evaluate(
      `history.pushState(null, '', ${JSON.stringify(`/console${path}`)}); dispatchEvent(new PopStateEvent('popstate'))`,
    )
  }
  return { page, context, problems, go }
}

/** Signs in with a new link. */
export async function signIn(
  { page }: ConsolePage,
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

/** What axe finds serious or critical, a line each. The script is evaluated by the debugger, so the page's CSP stays in force. */
export async function accessibilityProblems(
  { page, context }: ConsolePage,
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

/** A screenshot for the documentation, only on request: a test run leaves the working tree unchanged. */
export async function saveDocImage(page: Page, name: string): Promise<void> {
  if (process.env.RINGFENCE_PICTURES !== '1') return
  const dir = join(packageRoot(), 'docs', 'images')
  mkdirSync(dir, { recursive: true })
  await page.screenshot({ path: join(dir, `${name}.png`) })
}

const views = new Map<string, Buffer[]>()

/** Remembers how one page looks in one view, for `saveSheets`. */
export async function rememberView(page: Page, name: string): Promise<void> {
  if (process.env.RINGFENCE_PICTURES !== '1') return
  views.set(name, [...(views.get(name) ?? []), await page.screenshot()])
}

/** For the documentation: one picture of each page, with all views side by side. */
export async function saveSheets(browser: Browser): Promise<void> {
  const dir = join(packageRoot(), 'docs', 'images', 'console')
  if (views.size > 0) mkdirSync(dir, { recursive: true })
  const page = await browser.newPage({ viewport: { width: 1370, height: 340 } })
  for (const [name, pictures] of views) {
    const images = pictures.map(
      (bytes) => `<img height="320" src="data:image/png;base64,${bytes.toString('base64')}">`,
    )
    await page.setContent(
      `<body style="margin:10px;display:flex;gap:10px;background:#8b95a1">${images.join('')}</body>`,
    )
    await page.screenshot({ path: join(dir, `${name}.jpg`), type: 'jpeg', quality: 78 })
  }
  await page.close()
}

/** A screenshot into the directory `RINGFENCE_LOOK`, to judge the design. */
export async function saveScreenshot(page: Page, name: string): Promise<void> {
  const dir = process.env.RINGFENCE_LOOK
  if (dir) await page.screenshot({ path: join(dir, `${name}.png`) })
}
