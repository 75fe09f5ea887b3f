import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { launchBrowser } from '../console/browser.ts'
import { canHaveRoot } from '../root/root-host.ts'
import { FULL } from '../server/test-server.ts'
import { client, here as dir, get, type Loose, until, type World, world } from './kit.ts'

/** E2B's client for desktops, unmodified, with a template of Debian's packages; the set-up installs both for the full tests. */

const more = join(dir, 'more')
const PROGRAMS = ['/usr/bin/Xvfb', '/usr/bin/startxfce4', '/usr/bin/x11vnc', '/usr/share/novnc/vnc.html']
const can =
  FULL &&
  canHaveRoot &&
  [...PROGRAMS, join(more, 'node_modules', '@e2b', 'desktop')].every((path) => existsSync(path))
const MINUTE = 60_000

describe.runIf(can)('a desktop', () => {
  let here: World
  let browser: Browser
  let desktop: Loose
  let Sandbox: Loose
  beforeAll(async () => {
    here = await world('')
    browser = await launchBrowser()
    const { Template } = await client('e2b', more)
    // The client looks for noVNC in this directory.
    const template = Template().fromBaseImage().runCmd('ln -s /usr/share/novnc /opt/noVNC', { user: 'root' })
    await Template.build(template, 'desktop', here.options)
    Sandbox = (await client('@e2b/desktop', more)).Sandbox
    desktop = await Sandbox.create({ ...here.options, resolution: [800, 600] })
  }, 3 * MINUTE)
  afterAll(async () => {
    await browser?.close()
    await here?.close()
  }, MINUTE)

  test('has a screen, a mouse, a keyboard and windows', { timeout: MINUTE }, async () => {
    expect(await desktop.getScreenSize()).toEqual({ width: 800, height: 600 })
    await desktop.moveMouse(100, 200)
    expect(await desktop.getCursorPosition()).toEqual({ x: 100, y: 200 })
    await desktop.commands.run('xterm', { background: true })
    await until(
      async () => (await desktop.getApplicationWindows('xterm').catch(() => [])).length > 0,
      'the window',
    )
    await desktop.leftClick()
    await until(async () => {
      await desktop.write('touch /tmp/typed')
      await desktop.press('enter')
      return desktop.files.exists('/tmp/typed')
    }, 'what was typed')
    const picture = Buffer.from(await desktop.screenshot())
    expect(picture.subarray(1, 4).toString()).toBe('PNG')
    expect([picture.readUInt32BE(16), picture.readUInt32BE(20)]).toEqual([800, 600])
  })

  test('can be seen in a browser only with its password', { timeout: 2 * MINUTE }, async () => {
    await desktop.stream.start({ requireAuth: true })
    const authKey = desktop.stream.getAuthKey()
    const shows = async (key: string): Promise<boolean> => {
      const page = await browser.newPage()
      const url = desktop.stream.getUrl({ authKey: key }).replace('https:', 'http:')
      await page.goto(url)
      const connected = page.locator('html.noVNC_connected').waitFor({ state: 'attached', timeout: 10_000 })
      const seen = await connected.then(
        () => true,
        () => false,
      )
      await page.close()
      return seen
    }
    await until(() => shows(authKey), 'the picture')
    expect(await shows('wrong')).toBe(false)
    await desktop.stream.stop()
  })

  test('that is not public requires its token', { timeout: MINUTE }, async () => {
    const hidden = await Sandbox.create({ ...here.options, network: { allowPublicTraffic: false } })
    await hidden.stream.start()
    const host = new URL(hidden.stream.getUrl()).host
    const page = `${here.options.apiUrl}/vnc.html`
    const headers = { 'e2b-traffic-access-token': hidden.trafficAccessToken }
    await until(async () => (await get(page, host, headers)).status === 200, 'the page')
    expect((await get(page, host)).status).toBe(403)
    await hidden.kill()
  })
})
