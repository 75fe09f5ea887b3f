import { appendFileSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { segmentPath } from '../audit/files.ts'
import { openTrail } from '../audit/trail.ts'
import { HELP, runAudit } from './audit.ts'

let dir = ''
let home = ''
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ringfence-cli-audit-'))
  home = join(dir, 'home')
  const trail = await openTrail({ home })
  await trail.append({
    event: 'Exec',
    agent_id: 'one',
    sandbox_id: 'sb_1',
    argv: ['ls', '\u001b[2J\u009b2J\u202e'],
  })
  await trail.append({ event: 'SandboxViolation', agent_id: 'one', violation_type: 'Timeout', details: 'x' })
  await trail.append({
    event: 'SandboxViolation',
    agent_id: 'two',
    violation_type: 'SsrfBlocked',
    details: 'y',
  })
  await trail.close()
})
afterAll(() => rmSync(dir, { recursive: true, force: true }))

async function call(
  args: readonly string[],
  options: { readonly home?: string; readonly signal?: AbortSignal } = {},
) {
  let out = ''
  const io = {
    home,
    json: false,
    err: () => undefined,
    ...options,
    out(text: string) {
      out += text
    },
  }
  const code = await runAudit(args, io)
  const records = () =>
    out
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
  return { code, out, records }
}

describe('ringfence audit', () => {
  it('shows help with examples', async () => {
    expect(await call(['--help'])).toMatchObject({ code: 0, out: HELP })
    expect(HELP).toContain('Examples:')
  })

  it('shows the tail', async () => {
    const { records } = await call(['tail', '-n', '2', '--json'])
    expect(records().map(({ event }) => event)).toEqual(['SandboxViolation', 'Checkpoint'])
    expect((await call(['tail', '-n', '0'])).out).toBe('')
  })

  it('shows control characters of a record as escapes', async () => {
    const { out } = await call(['tail'])
    expect(out.split('\n')).toHaveLength(5)
    expect(out).not.toMatch(/[\u001b\u009b\u202e]/)
    expect(out).toContain('\\u009b2J\\u202e')
  })

  it('follows', async () => {
    const fresh = join(dir, 'follow')
    const stop = new AbortController()
    const following = call(['tail', '--follow', '--json'], { home: fresh, signal: stop.signal })
    const trail = await openTrail({ home: fresh })
    await trail.append({ event: 'Exec', exec_id: 'ex_1' })
    await new Promise((resolve) => setTimeout(resolve, 300))
    await trail.append({ event: 'Exec', exec_id: 'ex_2' })
    await new Promise((resolve) => setTimeout(resolve, 300))
    stop.abort()
    expect((await following).records().map(({ exec_id }) => exec_id)).toEqual(['ex_1', 'ex_2'])
  })

  it('queries', async () => {
    const sandbox = await call(['query', '--event-type', 'sandbox', '--agent-id', 'two', '--json'])
    expect(sandbox.records()).toMatchObject([{ seq: 2, violation_type: 'SsrfBlocked', details: 'y' }])
    expect(
      (await call(['query', '--event', 'Exec', '--event', 'Checkpoint', '--json'])).records(),
    ).toHaveLength(2)
    expect((await call(['query', '--limit', '1', '--since', '1h', '--json'])).records()).toHaveLength(1)
    expect((await call(['query', '--since', '2100-01-01'])).out).toBe('')
    expect((await call(['query', '--sandbox-id', 'sb_1', '--json'])).records()).toHaveLength(1)
  })

  it('verifies, and exits 1 with the first bad record', async () => {
    expect(await call(['verify'])).toMatchObject({ code: 0, out: 'ok: 4 records, 1 checkpoints\n' })
    const path = segmentPath(home, 1)
    const good = readFileSync(path)
    try {
      writeFileSync(path, good.toString().replace('Timeout', 'timeout'))
      const bad = await call(['verify'])
      expect(bad).toMatchObject({ code: 1, out: 'bad: record 1: its content does not match its hash\n' })
      expect((await call(['verify', '--json'])).records()).toMatchObject([{ ok: false, seq: 1 }])
    } finally {
      writeFileSync(path, good)
    }
  })

  it('verifies against a head kept elsewhere', async () => {
    const kept = join(dir, 'kept.jsonl')
    writeFileSync(kept, readFileSync(join(home, 'anchor', 'head.jsonl')))
    expect((await call(['verify', '--against', kept])).code).toBe(0)
    expect((await call(['verify', '--against', kept], { home: join(dir, 'gone') })).code).toBe(1)
  })

  it('exports the canonical lines', async () => {
    const file = join(dir, 'export.jsonl')
    appendFileSync(file, 'old')
    await call(['export', '-o', file])
    expect(readFileSync(file)).toEqual(readFileSync(segmentPath(home, 1)))
    expect(statSync(file).isFile()).toBe(true)
    expect((await call(['export'])).out).toBe(readFileSync(file, 'utf8'))
  })

  it('proves a record and checks a proof', async () => {
    const file = join(dir, 'proof.json')
    const { out } = await call(['proof', '1'])
    writeFileSync(file, out)
    expect((await call(['proof', '--check', file])).code).toBe(0)
    const { public_key } = JSON.parse(out)
    const elsewhere = { home: join(dir, 'nowhere') }
    expect((await call(['proof', '--check', file, '--key', public_key], elsewhere)).code).toBe(0)
    await expect(call(['proof', '--check', file], elsewhere)).rejects.toThrow(/public key to trust/)
    writeFileSync(file, out.replace('Timeout', 'timeout'))
    expect(await call(['proof', '--check', file])).toMatchObject({ code: 1, out: /does not match/ })
  })

  it.each([
    [[]],
    [['nonsense']],
    [['tail', '--nonsense']],
    [['tail', '-n', 'many']],
    [['verify', '--limit', '1']],
    [['verify', 'extra']],
    [['query', '--event-type', 'other']],
    [['query', '--since', 'yesterday-ish']],
    [['proof']],
    [['proof', '1', '2']],
    [['proof', '99']],
    [['proof', '--check', '/nonexistent']],
    [['proof', '--check', '/dev/null', '--key', 'short']],
  ])('refuses %j as wrong usage', async (args) => {
    await expect(call(args)).rejects.toMatchObject({ code: 'invalid-input' })
  })
})
