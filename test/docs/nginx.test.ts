import { execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { type RequestOptions, request } from 'node:https'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { startTestServer, type TestServer } from '../server/test-server.ts'
import { blocksOf, pageText } from './pages.ts'

/** The configuration of docs/production.md in a real nginx, in front of a real server. */

const NGINX = '/usr/sbin/nginx'
const HOST = 'sandboxes.example.com'
const dir = mkdtempSync(join(tmpdir(), 'rf-nginx-'))
const cert = join(dir, 'cert.pem')
const key = join(dir, 'key.pem')

const freePort = (): Promise<number> =>
  new Promise((resolve) => {
    const probe = createServer().listen(0, '127.0.0.1', () => {
      const { port } = probe.address() as { port: number }
      probe.close(() => resolve(port))
    })
  })

/** As printed, with the ports and paths of this test. */
function configuration(listen: number, upstream: number): string {
  const printed = blocksOf(pageText('docs/production.md')).find(({ language }) => language === 'nginx')
  const here = (printed?.lines.join('\n') ?? '')
    .replace('listen 443 ssl', `listen 127.0.0.1:${listen} ssl`)
    .replace(/\/etc\/ssl\/\S+\.pem/, cert)
    .replace(/\/etc\/ssl\/\S+\.key/, key)
    .replace('127.0.0.1:4200', `127.0.0.1:${upstream}`)
  const paths = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map((n) => `${n}_temp_path ${dir}/${n};`)
  return `daemon off; master_process off; pid ${dir}/pid; error_log stderr; events {}
http { access_log off; ${paths.join(' ')} ${here} }`
}

describe.runIf(existsSync(NGINX))('a server behind nginx', () => {
  let home: TestServer
  let port = 0
  let stop: () => Promise<unknown>

  beforeAll(async () => {
    const subject = ['-subj', `/CN=${HOST}`, '-addext', `subjectAltName=DNS:${HOST}`]
    const made = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '1']
    const args = ['req', '-x509', ...made, ...subject, '-keyout', key, '-out', cert]
    execFileSync('openssl', args, { stdio: 'ignore' })
    home = await startTestServer(`[server]\nhosts = ["${HOST}"]\n[policy]\nallow_interactive = true\n`)
    port = await freePort()
    const config = join(dir, 'nginx.conf')
    writeFileSync(config, configuration(port, home.server.port))
    const child = spawn(NGINX, ['-e', 'stderr', '-p', dir, '-c', config], { stdio: 'ignore' })
    const ended = new Promise((resolve) => child.once('exit', resolve))
    stop = () => {
      child.kill('SIGTERM')
      return ended
    }
    while ((await call('GET', '/healthz').catch(() => undefined))?.status !== 200)
      await new Promise((resolve) => setTimeout(resolve, 50))
  }, 60_000)
  afterAll(async () => {
    await stop?.()
    await home?.close()
    rmSync(dir, { recursive: true, force: true })
  })

  const at = (): RequestOptions => ({
    host: '127.0.0.1',
    port,
    servername: HOST,
    rejectUnauthorized: false,
    headers: { host: HOST, authorization: `Bearer ${home.admin}`, 'content-type': 'application/json' },
  })

  /** `until`: the text after which the answer is not read any further. */
  const call = (method: string, path: string, body?: string | Buffer, until?: string) =>
    new Promise<{ status: number; text: string }>((resolve, reject) => {
      const headers = { ...(at().headers as object), ...(until && { accept: 'text/event-stream' }) }
      const sent = request({ ...at(), headers, method, path }, (answer) => {
        let text = ''
        const done = (): void => resolve({ status: answer.statusCode ?? 0, text })
        answer.on('data', (chunk) => {
          text += chunk
          if (until && text.includes(until)) {
            done()
            sent.destroy()
          }
        })
        answer.on('end', done)
      })
      sent.on('error', reject)
      sent.end(body)
    })

  const create = async (): Promise<string> => JSON.parse((await call('POST', '/v1/sandboxes', '{}')).text).id

  test('handles requests, streamed output, and uploads above nginx’s default size', async () => {
    const id = await create()
    const body = JSON.stringify({ command: 'echo one; sleep 600' })
    // The command still runs when its first output arrives.
    const { text } = await call('POST', `/v1/sandboxes/${id}/exec`, body, 'event: stdout')
    expect(text).toContain('event: start')
    const large = Buffer.alloc(3 * 1024 * 1024, 'x')
    const put = await call('PUT', `/v1/sandboxes/${id}/files?path=/tmp/large`, large)
    expect(put.status, put.text).toBeLessThan(300)
    expect((await call('DELETE', `/v1/sandboxes/${id}`)).status).toBeLessThan(300)
  }, 60_000)

  test('opens terminals', async () => {
    const id = await create()
    const socket = new WebSocket(
      `wss://127.0.0.1:${port}/v1/sandboxes/${id}/pty?command=echo%20from-inside`,
      {
        ...at(),
      },
    )
    let said = ''
    socket.on('message', (data) => (said += data))
    socket.on('error', (error) => (said += error.message))
    await expect.poll(() => said, { timeout: 20_000 }).toContain('from-inside')
    socket.close()
  }, 60_000)

  test('sets a Secure console cookie, and refuses another host name', async () => {
    const refused = await new Promise<number>((resolve, reject) =>
      request({ ...at(), path: '/v1/sandboxes', headers: { host: 'other.example.com' } }, (answer) =>
        resolve(answer.resume().statusCode ?? 0),
      )
        .on('error', reject)
        .end(),
    )
    expect(refused).toBe(421)
    const page = { ...(at().headers as object), origin: `https://${HOST}`, 'sec-fetch-site': 'same-origin' }
    const cookie = await new Promise<string>((resolve, reject) =>
      request({ ...at(), headers: page, method: 'POST', path: '/v1/console/session' }, (answer) =>
        resolve(`${answer.statusCode} ${answer.resume().headers['set-cookie']}`),
      )
        .on('error', reject)
        .end(JSON.stringify({ key: home.admin })),
    )
    expect(cookie).toContain('Secure')
  }, 60_000)
})
