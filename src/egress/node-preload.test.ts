import { execFile } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { packageRoot } from '../../test/conformance/world.ts'
import { certificateEnvironment, proxyEnvironment } from '../policy/network/proxy-environment.ts'
import { World } from './testkit/world.ts'

const run = promisify(execFile)
const preload = join(packageRoot(), 'guest', 'node', 'proxy.cjs')
/** Other Node versions to test, if given: `RINGFENCE_NODES=/path/to/node:/other/node`. */
const nodes = [process.execPath, ...(process.env.RINGFENCE_NODES ?? '').split(':').filter(Boolean)]

let world: World
let dir: string
beforeEach(() => {
  world = new World()
  dir = mkdtempSync(join(tmpdir(), 'ringfence-preload-'))
})
afterEach(async () => {
  rmSync(dir, { recursive: true, force: true })
  await world.end()
})

describe.each(nodes.filter((node) => existsSync(node)))('%s goes through the proxy', (node) => {
  const program = async (text: string, nodePreload: string | undefined = preload): Promise<string> => {
    const { port } = await world.proxy()
    const bundle = join(dir, 'ca.pem')
    writeFileSync(bundle, world.authority.certificate)
    const env = { ...proxyEnvironment(port, { nodePreload }), ...certificateEnvironment(bundle) }
    const { stdout } = await run(node, ['-e', text], { env, timeout: 20_000 })
    return stdout.trim()
  }

  it('with fetch, over HTTP and HTTPS', async () => {
    const [plain, secure] = [await world.http(), await world.https()]
    const text = `
      const text = async (url) => (await fetch(url)).text()
      Promise.all(['http://a.example:${plain}/', 'https://b.example:${secure}/'].map(text)).then((all) => console.log(all.join(' ')))`
    expect(await program(text)).toBe('hello hello')
    await expect
      .poll(() => world.events.map(({ host, verdict }) => `${host} ${verdict}`).sort())
      .toEqual(['a.example allow', 'b.example allow'])
  })

  it('with http and https, and with custom agents', async () => {
    const [plain, secure] = [await world.http(), await world.https()]
    const text = `
      const http = require('http'), https = require('https')
      const get = (module, url, options) => new Promise((resolve, reject) => module.get(url, options, (response) => {
        let body = ''; response.on('data', (chunk) => body += chunk).on('end', () => resolve(body)) }).on('error', reject))
      ;(async () => console.log(
        await get(http, 'http://a.example:${plain}/', {}),
        await get(https, 'https://b.example:${secure}/', {}),
        // Newer Node versions have no proxy for custom agents.
        await get(https, 'https://b.example:${secure}/', ${node === process.execPath ? '{ agent: new https.Agent({ keepAlive: true }) }' : '{}'})))()`
    expect(await program(`${text}.then(() => process.exit())`)).toBe('hello hello hello')
  })

  it('and gets the reason of a refusal', async () => {
    const text = `fetch('https://b.test/').catch((error) => console.log(String(error.cause?.message ?? error), error.cause?.code))`
    const said = await program(text)
    // Newer Node versions use the proxy by themselves, and do not report its reason.
    expect(said).toMatch(node === process.execPath ? /ringfence: ssrf-blocked: `b.test`/ : /./)
    expect(world.events).toMatchObject([{ host: 'b.test', verdict: 'deny' }])
  })

  it('but not for loopback', async () => {
    const plain = await world.http()
    expect(await program(`fetch('http://127.0.0.1:${plain}/').then((r) => r.text()).then(console.log)`)).toBe(
      'hello',
    )
    expect(world.events).toEqual([])
  })
})
