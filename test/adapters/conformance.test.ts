import { execFile } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, request as httpRequest, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { mcpMount, OPERATIONS } from '../../src/agents.ts'
import { type RunningServer, startServer } from '../../src/compose/serve.ts'
import { packageRoot } from '../conformance/world.ts'
import { extendWithFixtures } from './conformance-fixtures.ts'
import { chatAnswer, modelServer } from './model-server.ts'
import { full, fullFolder, installed, node24 } from './sdk.ts'

/** The official suite and the inspector need a newer Node than ours: both run on the one that npm carries. */

const base = mkdtempSync(join(tmpdir(), 'rf-conf-'))
const workspace = join(base, 'work')
let server: RunningServer
let door: Server
let key = ''

type Ran = { readonly code: number; readonly output: string; readonly said: string }
const run = (args: readonly string[], env: Record<string, string> = {}): Promise<Ran> =>
  new Promise((resolve) => {
    const options = { cwd: base, env: { ...process.env, ...env }, maxBuffer: 64 * 1024 * 1024 }
    execFile(node24, [...args], options, (error, stdout, stderr) => {
      resolve({ code: error ? Number(error.code ?? 1) : 0, output: stdout, said: stdout + stderr })
    })
  })

/** The suite has no keys: this adds one and passes everything else on as it came, the Host header too. */
function doorTo(port: number): Server {
  return createServer((incoming, outgoing) => {
    const path = (incoming.url ?? '').replace(/^\/mcp/, '/mcp-conformance')
    const headers = { ...incoming.headers, authorization: `Bearer ${key}` }
    const inner = httpRequest(
      { host: '127.0.0.1', port, path, method: incoming.method, headers },
      (answer) => {
        outgoing.writeHead(answer.statusCode ?? 502, answer.headers)
        answer.pipe(outgoing)
      },
    )
    inner.on('error', () => outgoing.destroy())
    outgoing.on('close', () => inner.destroy())
    incoming.pipe(inner)
  })
}

describe.skipIf(!full)('MCP with the newest Node', () => {
  beforeAll(async () => {
    installed(fullFolder)
    mkdirSync(workspace)
    writeFileSync(join(workspace, 'p.png'), Buffer.from('89504e470d0a1a0a', 'hex'))
    writeFileSync(join(workspace, 'a.txt'), 'one\ntwo\n')
    server = await startServer({
      env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: join(base, 'state') },
      port: 0,
      mounts: [mcpMount('0.1.0', { path: '/mcp-conformance', extend: extendWithFixtures })],
    })
    key = (await server.parts.keys.create({ name: 'suite', scopes: ['create', 'exec', 'read'] })).secret
    door = doorTo(server.port)
    await new Promise<void>((resolve) => door.listen(0, '127.0.0.1', resolve))
  }, 300_000)
  afterAll(async () => {
    door.closeAllConnections()
    door.close()
    await server.close()
    rmSync(base, { recursive: true, force: true })
  })

  test('passes the conformance suite', async () => {
    const { port } = door.address() as AddressInfo
    const cli = join(fullFolder, 'node_modules/@modelcontextprotocol/conformance/dist/index.js')
    const { code, said } = await run([cli, 'server', '--url', `http://localhost:${port}/mcp`])
    const summary = said.slice(said.indexOf('=== SUMMARY ==='))
    console.log(summary)
    expect(summary).toMatch(/Total: \d+ passed, 0 failed/)
    expect(code).toBe(0)
  }, 300_000)

  test('lists and calls every tool with the inspector', async () => {
    const cli = join(
      fullFolder,
      'node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js',
    )
    const mcp = [
      process.execPath,
      join(packageRoot(), 'dist/cli/ringfence.cjs'),
      'mcp',
      '--workspace',
      workspace,
    ]
    const env = { RINGFENCE_HOME: join(base, 'stdio'), HOME: base }
    const inspect = (...args: readonly string[]): Promise<Ran> => run([cli, '--cli', ...mcp, ...args], env)
    const { output } = await inspect('--method', 'tools/list')
    const { tools } = JSON.parse(output.slice(output.indexOf('{'))) as { tools: { name: string }[] }
    expect(tools.map(({ name }) => name)).toEqual(OPERATIONS.map(({ name }) => name))
    const args: Readonly<Record<string, readonly string[]>> = {
      exec: ['command=echo hi'],
      process_start: ['command=sleep 1'],
      process_poll: ['process_id=1'],
      process_write: ['process_id=1', 'data=x'],
      process_kill: ['process_id=1'],
      run_code: ['code=1+1'],
      file_read: ['path=a.txt'],
      file_write: ['path=b.txt', 'content=x'],
      file_edit: ['path=a.txt', 'old_text=two', 'new_text=zwei'],
      apply_patch: ['patch=*** Begin Patch\n*** Add File: n.txt\n+x\n*** End Patch'],
      view_image: ['path=p.png'],
      file_glob: ['pattern=*.txt'],
      file_grep: ['pattern=one'],
      expose_port: ['port=8080'],
      request_host: ['host=example.com'],
      policy_check: ['command=ls'],
    }
    for (const { name } of tools) {
      const given = (args[name] ?? []).flatMap((pair) => ['--tool-arg', pair])
      const called = await inspect('--method', 'tools/call', '--tool-name', name, ...given)
      expect(called.output, `${name}: ${called.said}`).toContain('"content"')
      // Each call is a session of its own: no process is known, and nobody can be asked.
      const refused = ['process_poll', 'process_write', 'process_kill', 'request_host'].includes(name)
      expect(called.output.includes('"isError": true'), `${name}: ${called.said}`).toBe(refused)
    }
  }, 300_000)

  test('completes a whole loop with the newest major of the AI SDK', async () => {
    const place = join(base, 'newest')
    mkdirSync(place)
    const script = [
      [['exec', '{"command":"echo ai > made.txt; cat made.txt"}']],
      [['exec', '{"command":"rm -rf /"}']],
      'finished',
    ] as const
    const model = await modelServer((_, turn) => chatAnswer(script[turn] as string, turn))
    const library = join(packageRoot(), 'dist', 'agents.js')
    const env = { RINGFENCE_HOME: join(base, 'newest-state'), HOME: base }
    const { output, said } = await run([join(fullFolder, 'loop.mjs'), model.url, place, library], env)
    await model.close()
    expect(said).not.toContain('canary')
    expect(JSON.parse(output)).toEqual({ node: expect.stringMatching(/^v24/), text: 'finished', steps: 3 })
    expect(readFileSync(join(place, 'made.txt'), 'utf8')).toBe('ai\n')
    const sent = JSON.stringify(model.asked.at(-1)?.body)
    expect(sent).toContain('[exit code 0]')
    expect(sent).toContain('error: forbidden-command')
  }, 120_000)
})
