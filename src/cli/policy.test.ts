import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it, vi } from 'vitest'
import { loadConfig } from '../host/config-file.ts'
import { checkPath } from './check/path.ts'
import { checkUrl } from './check/url.ts'
import { describePolicy, policyText } from './policy/explain.ts'
import { policy } from './policy.ts'

const dir = realpathSync(mkdtempSync(join(tmpdir(), 'rf-policy-')))
afterAll(() => rmSync(dir, { recursive: true, force: true }))

let files = 0
function file(text: string): string {
  const path = join(dir, `${files++}.toml`)
  writeFileSync(path, text)
  return path
}

async function run(...args: readonly string[]): Promise<{ code: number; out: string }> {
  let out = ''
  const write = vi.spyOn(process.stdout, 'write').mockImplementation((text) => {
    out += String(text)
    return true
  })
  try {
    return { code: await policy(args), out }
  } finally {
    write.mockRestore()
  }
}

const TRUE_RULE = `[[policy.rule]]
id = "push"
prefix = ["git", "push"]
action = "deny"
match = ["git push origin main", "env git push"]
not_match = ["git pull"]
`
const LYING_RULE = `${TRUE_RULE}[[policy.rule]]
glob = "npm *"
action = "ask"
match = ["yarn install"]
not_match = ["npm test"]
[[policy.rule]]
prefix = ["make"]
action = "ask"
`

describe('policy test', () => {
  it('prints a line per example and exits 0 if all pass', async () => {
    const { code, out } = await run('test', file(TRUE_RULE))
    expect(code).toBe(0)
    expect(out).toMatch(/^ok {4}push: matches `git push origin main`\nok {4}push: matches `env git push`\n/)
    expect(out).toMatch(/ok {4}push: does not match `git pull`\n.*: 3 examples, all pass\n$/)
  })

  it('names each failing example and exits 1', async () => {
    const { code, out } = await run('test', file(LYING_RULE))
    expect(code).toBe(1)
    expect(out).toContain('FAIL  policy.rule[1]: does not match `yarn install`\n')
    expect(out).toContain('FAIL  policy.rule[1]: matches `npm test`\n')
    expect(out).toContain('policy.rule[2]: has no examples\n')
    expect(out).toMatch(/5 examples, 2 failed\n$/)
  })

  it('is data with --json', async () => {
    const { code, out } = await run('test', file(LYING_RULE), '--json')
    expect(code).toBe(1)
    expect(JSON.parse(out)).toMatchObject({ ok: false, rules: 3, untested: ['policy.rule[2]'] })
    expect(JSON.parse(out).examples[3]).toEqual({
      rule: 'policy.rule[1]',
      list: 'match',
      line: 'yarn install',
      holds: false,
    })
  })

  it.each([
    ['an unknown key', 'polcy = 1'],
    ['a bare interpreter', '[[policy.rule]]\nprefix = ["bash"]\naction = "allow"'],
    ['an invalid pattern', '[[policy.rule]]\nregex = "("\naction = "ask"'],
  ])('refuses a file with %s', async (_, text) => {
    await expect(run('test', file(text))).rejects.toMatchObject({ code: 'invalid-config' })
  })

  it('needs a file', async () => {
    await expect(run('test')).rejects.toMatchObject({ code: 'invalid-input' })
  })
})

describe('policy explain', () => {
  const full = `[policy]
allowed_host_prefixes = ["~/projects"]
blocked_host_patterns = ["vault"]
max_cpus = 2
max_memory_mb = 512
allowed_network_modes = ["offline"]
default_action = "ask"
${TRUE_RULE}[commands]
allowed = ["git", "ls"]
[router]
always_sandbox = ["npm"]
[network]
allow_hosts = ["@github"]
allow_private = ["10.1.2.3"]
`

  it('describes the whole policy in words', async () => {
    const { code, out } = await run('explain', file(full))
    expect(code).toBe(0)
    for (const words of [
      'ask: needs approval',
      'only git ls',
      '/projects and its subdirectories',
      'vault',
      'at most 2 processors',
      'at most 512 MB of memory',
      'offline; not allowed: loopback, fetch, full',
      'only these hosts: @github',
      'private addresses allowed: 10.1.2.3',
      'always in a sandbox: npm',
      'deny    git push …: the policy says so for `git push` [push, 3 examples]',
    ])
      expect(out).toContain(words)
    expect(out).toMatch(/privilege +\d+ deny; cannot be relaxed by a rule/)
  })

  it('is data with --json', async () => {
    const { out } = await run('explain', file(full), '--json')
    expect(JSON.parse(out)).toMatchObject({
      default_action: 'ask',
      limits: { max_cpus: 2, max_memory_mb: 512, max_disk_mb: null, max_pids: null },
      network: { modes: ['offline'], allow_hosts: ['@github'], allow_private: ['10.1.2.3'] },
      programs: ['git', 'ls'],
      rules: [{ id: 'push', action: 'deny', examples: 3 }],
    })
    const themes = JSON.parse(out).built_in as { theme: string; rules: number; actions: object }[]
    expect(themes.map(({ theme }) => theme)).toEqual(expect.arrayContaining(['reading', 'git', 'privilege']))
    for (const { rules, actions } of themes)
      expect(Object.values(actions).reduce((sum: number, count: number) => sum + count, 0)).toBe(rules)
  })

  it('shows the defaults', () => {
    const text = policyText(describePolicy({}, '/home/me'))
    expect(text).toContain('sandbox: runs in a sandbox')
    expect(text).toMatch(/limits +none/)
    expect(text).toMatch(/your rules +none/)
  })

  it('rejects a policy that would not load', async () => {
    await expect(run('explain', file(LYING_RULE))).rejects.toMatchObject({ code: 'invalid-config' })
  })
})

describe('check with a policy', () => {
  const io = { home: dir, json: false, out: () => undefined, err: () => undefined }
  mkdirSync(join(dir, 'open', 'vault'), { recursive: true })
  mkdirSync(join(dir, 'shut'))
  for (const place of ['open', 'shut']) writeFileSync(join(dir, place, 'a'), 'x')
  const paths = file(
    `[policy]\nallowed_host_prefixes = ["${join(dir, 'open')}"]\nblocked_host_patterns = ["vault"]\n`,
  )
  const load = (name?: string) => loadConfig(name as string)

  it.each([
    ['open/a', 'read', [], 0],
    ['open', 'mount-rw', [], 0],
    ['open/vault', 'mount-ro', [], 4],
    ['shut/a', 'read', [], 4],
    ['shut', 'mount-ro', [], 4],
    ['shut/a', 'read', ['--workspace', join(dir, 'shut')], 4],
    ['open/a', 'read', ['--workspace', join(dir, 'open')], 0],
    ['open/a', 'read', ['--workspace', join(dir, 'shut')], 4],
  ] as const)('path %s %s %j exits %i', async (path, op, more, code) => {
    expect(await checkPath([join(dir, path), '--op', op, ...more, '--policy', paths], io, load)).toBe(code)
  })

  const urls = file(
    '[network]\nallow_hosts = ["*.example.com", "8.8.8.8", "10.1.2.3"]\nallow_private = ["10.1.2.3", "169.254.169.254"]\n',
  )
  it.each([
    ['http://8.8.8.8/', 0],
    ['http://1.1.1.1/', 4],
    ['http://10.1.2.3/', 0],
    ['http://10.1.2.4/', 4],
    ['http://169.254.169.254/', 4],
  ])('url %s exits %i', async (url, code) => {
    expect(await checkUrl([url, '--config', urls], io, load)).toBe(code)
  })

  it('rejects unknown flags', async () => {
    await expect(checkPath(['/a', '--wrong'], io)).rejects.toMatchObject({ code: 'invalid-input' })
    await expect(checkUrl(['http://a/', '--wrong'], io)).rejects.toMatchObject({ code: 'invalid-input' })
  })
})
