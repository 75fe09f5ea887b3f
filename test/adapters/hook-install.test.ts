import { spawnSync } from 'node:child_process'
import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { hookCommand, installedHook, withHook } from '../../src/adapters/hooks/settings.ts'
import { frontOf } from '../cli/program.ts'
import { packageRoot } from '../conformance/world.ts'
import { type Env, HookKit, program } from './hook-kit.ts'

/** What `hook install` writes starts on this machine or blocks, and `hook test` says which. */

const kit = new HookKit()
const { base, workspace } = kit
const hook = kit.hook.bind(kit)
const started = kit.started.bind(kit)
afterAll(() => kit.remove())

const FILES = {
  'claude-code': ['.claude/settings.json', 'PreToolUse'],
  codex: ['.codex/hooks.json', 'PreToolUse'],
  gemini: ['.gemini/settings.json', 'BeforeTool'],
} as const
const AGENTS = ['claude-code', 'codex', 'gemini'] as const
type Agent = (typeof AGENTS)[number]

describe('hook install', () => {
  const commandIn = (agent: Agent, file: string): string =>
    installedHook(agent, JSON.parse(readFileSync(file, 'utf8')))?.command ?? ''

  test.each(AGENTS)(
    '%s: shows the change, writes it after confirmation, and keeps other settings',
    (agent) => {
      const [file, event] = FILES[agent]
      const path = join(base, file)
      const shown = hook(['install', agent], '')
      expect([shown.status, existsSync(path)]).toEqual([126, false])
      expect(shown.stdout).toContain(`hook ${agent}`)
      // The directory is made.
      expect(hook(['install', agent, '--yes'], '').status).toBe(0)
      const other = { type: 'command', command: 'someone-else' }
      const old = { type: 'command', command: `ringfence hook ${agent}` }
      const before = { theme: 'dark', hooks: { [event]: [{ matcher: 'X', hooks: [other, old] }], Stop: [] } }
      writeFileSync(path, JSON.stringify(before))
      expect(hook(['install', agent, '--yes'], '').status).toBe(0)
      expect(hook(['install', agent, '--yes'], '').status).toBe(0)
      const settings = JSON.parse(readFileSync(path, 'utf8'))
      expect([settings.theme, settings.hooks.Stop]).toEqual(['dark', []])
      expect(settings.hooks[event]).toHaveLength(2)
      expect(settings.hooks[event][0]).toEqual({ matcher: 'X', hooks: [other] })
    },
  )

  test.each(AGENTS)('%s: the written command works without PATH, and blocks if it cannot start', (agent) => {
    expect(hook(['install', agent, '--yes'], '').status).toBe(0)
    const command = commandIn(agent, join(base, FILES[agent][0]))
    expect(started(command, { PATH: '/nowhere' })).toMatchObject({ status: 0 })
    const moved = command.replace(frontOf(), '/no/such/front')
    const withoutNode = command.replace(process.execPath, '/no/such/node')
    for (const broken of [moved, withoutNode]) {
      expect(broken).not.toBe(command)
      const { status, stdout, stderr } = started(broken)
      expect([status, stdout]).toEqual([2, ''])
      expect(stderr).toContain('this call is blocked')
    }
  })

  test.each(AGENTS)('%s: a project file finds ringfence in PATH, or blocks', (agent) => {
    // Written, but nobody finds it here: that is said and is no success.
    expect(hook(['install', agent, '--project', '--yes'], '').status).toBe(1)
    const command = commandIn(agent, join(workspace, FILES[agent][0]))
    expect(command).not.toContain(packageRoot())
    expect(started(command)).toMatchObject({ status: 2, stdout: '' })
    const bin = mkdtempSync(join(base, 'bin-'))
    symlinkSync(program, join(bin, 'ringfence'))
    expect(started(command, { PATH: `${bin}:/usr/bin:/bin` })).toMatchObject({ status: 0 })
    rmSync(join(workspace, FILES[agent][0], '..'), { recursive: true })
  })

  test.each([
    ['exits 0 and says nothing', 'exit 0'],
    ['exits 0 and says something else', 'echo hello'],
    ['exits 1', 'exit 1'],
    ['is killed', 'kill -9 $$'],
    ['stops half-way', 'printf "{"; exit 0'],
  ])('a program named ringfence that %s does not allow a call', (_, body) => {
    const dir = mkdtempSync(join(base, 'fake-'))
    writeFileSync(join(dir, 'ringfence'), `#!/bin/sh\n${body}\n`, { mode: 0o755 })
    const command = hookCommand('claude-code', [], { kind: 'name' })
    expect(started(command, { PATH: `${dir}:/usr/bin:/bin` })).toMatchObject({ status: 2, stdout: '' })
  })

  test.each(['codex'] as const)(
    '%s: a launcher whose child hangs, or that exits before its child, blocks',
    (agent) => {
      const child = join(base, 'child.cjs')
      const pids = join(base, `child-pids-${agent}`)
      writeFileSync(
        child,
        `require('fs').appendFileSync(${JSON.stringify(pids)}, process.pid + ' '); setTimeout(() => {}, 25_000)`,
      )
      const waits = join(base, 'waits.sh')
      writeFileSync(waits, `'${process.execPath}' '${child}'; exit 0`)
      const leaves = join(base, 'leaves.sh')
      writeFileSync(leaves, `'${process.execPath}' '${child}' & exit 0`)
      for (const script of [waits, leaves]) {
        const written = hookCommand(agent, [], { kind: 'absolute', node: '/bin/sh', script })
        // Like the agents, it waits until nobody has the output open any more.
        const done = spawnSync('/bin/sh', ['-c', written.replace('sleep 30', 'sleep 1')], {
          input: '{}',
          encoding: 'utf8',
          timeout: 20_000,
        })
        expect([done.status, done.stdout]).toEqual([2, ''])
        expect(done.stderr).toContain('this call is blocked')
      }
      for (const pid of readFileSync(pids, 'utf8').trim().split(' ')) process.kill(Number(pid), 'SIGKILL')
    },
  )

  test.each(AGENTS)(
    '%s: a hanging program is killed and blocks; a finished one leaves no process',
    async (agent) => {
      const script = join(base, 'hanging.cjs')
      writeFileSync(script, 'process.on("SIGTERM", () => {}); setInterval(() => {}, 1000)')
      const command = (file: string, seconds: string): string => {
        const written = hookCommand(agent, [], { kind: 'absolute', node: process.execPath, script: file })
        expect(written).toContain('sleep 30')
        return written.replace('sleep 30', `sleep ${seconds}`)
      }
      expect(started(command(script, '1'))).toMatchObject({ status: 2 })
      writeFileSync(script, 'console.log("{}")')
      expect(started(command(script, '31.75'))).toMatchObject({ status: 0, stdout: '{}\n' })
      const sleepers = (): readonly string[] =>
        readdirSync('/proc').filter((pid) => {
          try {
            return readFileSync(`/proc/${pid}/cmdline`, 'utf8') === 'sleep\u000031.75\u0000'
          } catch {
            return false
          }
        })
      await expect.poll(sleepers).toEqual([])
    },
  )

  test.each(AGENTS)('%s: endless input is blocked', (agent) => {
    const command = hookCommand(agent, [], { kind: 'absolute', node: process.execPath, script: program })
    const endless = `yes '{"tool_name":"Bash","tool_input":{"command":"' | ${command}`
    expect(started(endless)).toMatchObject({ status: 2 })
  })

  test('paths with quotes and blanks work', () => {
    const dir = mkdtempSync(join(base, "it's a $(touch x) "))
    const script = join(dir, 'a b.cjs')
    writeFileSync(script, 'console.log(JSON.stringify({ seen: process.argv.slice(2) }))')
    const command = hookCommand('codex', ['--sandboxed'], {
      kind: 'absolute',
      node: process.execPath,
      script,
    })
    expect(JSON.parse(started(command).stdout)).toEqual({ seen: ['hook', 'codex', '--sandboxed'] })
    expect(existsSync(join(workspace, 'x'))).toBe(false)
  })

  test('CLAUDE_CONFIG_DIR, CODEX_HOME, GEMINI_CLI_HOME and a symlinked settings file are respected', () => {
    const elsewhere = join(base, 'else', 'where')
    hook(['install', 'claude-code', '--yes'], '', { CLAUDE_CONFIG_DIR: elsewhere })
    hook(['install', 'codex', '--yes'], '', { CODEX_HOME: elsewhere })
    hook(['install', 'gemini', '--yes'], '', { GEMINI_CLI_HOME: elsewhere })
    for (const file of ['settings.json', 'hooks.json', '.gemini/settings.json'])
      expect([file, existsSync(join(elsewhere, file))]).toEqual([file, true])
    const linked = mkdtempSync(join(base, 'linked-'))
    symlinkSync(join(elsewhere, 'settings.json'), join(linked, 'settings.json'))
    hook(['install', 'claude-code', '--yes'], '', { CLAUDE_CONFIG_DIR: linked })
    expect(lstatSync(join(linked, 'settings.json')).isSymbolicLink()).toBe(true)
  })

  test('the matcher covers every tool that the hook checks', () => {
    for (const agent of AGENTS)
      expect(installedHook(agent, withHook(agent, {}, `ringfence hook ${agent}`))?.missed).toEqual([])
    expect(JSON.stringify(withHook('codex', {}, 'x'))).toContain('apply_patch')
  })

  test('an invalid settings file is not changed', () => {
    const path = join(base, '.claude/settings.json')
    writeFileSync(path, '{ not json')
    expect(hook(['install', 'claude-code', '--yes'], '').status).toBe(2)
    expect(readFileSync(path, 'utf8')).toBe('{ not json')
    expect(() => withHook('codex', [], 'x')).toThrow()
  })
})

describe('hook test', () => {
  type Report = {
    readonly status: string
    readonly left: readonly string[]
    readonly checks: readonly { readonly ok: boolean; readonly detail: string }[]
  }
  const dir = join(base, 'tested')
  const tested = (agent: string, env: Env = {}): { status: number | null; report: Report } => {
    const own = { CLAUDE_CONFIG_DIR: dir, CODEX_HOME: dir, PATH: '/usr/bin:/bin', ...env }
    const { status, stdout } = hook(['test', agent, '--json'], '', own)
    return { status, report: JSON.parse(stdout) }
  }
  const put = (agent: 'claude-code' | 'codex', command: string, more = {}): void => {
    mkdirSync(dir, { recursive: true })
    const file = join(dir, agent === 'codex' ? 'hooks.json' : 'settings.json')
    writeFileSync(file, JSON.stringify({ ...withHook(agent, undefined, command), ...more }))
  }
  const ours = (agent: 'claude-code' | 'codex'): string =>
    hookCommand(agent, [], { kind: 'absolute', node: process.execPath, script: program })

  test('reports not installed, working and disabled hooks', () => {
    expect(tested('claude-code')).toMatchObject({ status: 1, report: { status: 'not-installed' } })
    put('claude-code', ours('claude-code'))
    expect(tested('claude-code')).toMatchObject({ status: 0, report: { status: 'works', left: [] } })
    put('claude-code', ours('claude-code'), { disableAllHooks: true })
    const { report } = tested('claude-code')
    expect(report).toMatchObject({ status: 'incomplete', left: [expect.stringContaining('disableAllHooks')] })
  })

  test.each([
    ['is not found', 'no-such-ringfence hook claude-code'],
    ['is not found and blocks', 'no-such-ringfence hook claude-code || exit 2'],
    ['lets everything pass', 'echo "{}" # ringfence hook claude-code'],
    ['ends with 1', 'exit 1 # ringfence hook claude-code'],
  ])('reports a hook that %s as broken', (_, command) => {
    put('claude-code', command)
    expect(tested('claude-code')).toMatchObject({ status: 1, report: { status: 'broken' } })
  })

  test('Codex: reports a matcher without patches, and a hook that is not trusted yet', () => {
    put('codex', ours('codex'))
    const { report: unknown } = tested('codex')
    expect(unknown).toMatchObject({ status: 'incomplete', left: [expect.stringContaining('/hooks')] })
    const text = readFileSync(join(dir, 'hooks.json'), 'utf8')
    writeFileSync(join(dir, 'hooks.json'), text.replace('Bash|apply_patch|view_image', 'Bash'))
    const { report } = tested('codex')
    expect(report.status).toBe('broken')
    expect(report.checks[0]?.detail).toContain('apply_patch')
  })

  /** Speaks as much of Codex's protocol as we ask; the real one is asked in the full run. */
  const codexSaying = (trustStatus: string, enabled = true): string => {
    const bin = mkdtempSync(join(base, 'codex-'))
    const result = { data: [{ hooks: [{ command: ours('codex'), enabled, trustStatus }] }] }
    const source = `#!${process.execPath}
require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, method } = JSON.parse(line)
  if (method === 'initialize') console.log(JSON.stringify({ id, result: {} }))
  if (method === 'hooks/list') console.log(JSON.stringify({ id, result: ${JSON.stringify(result)} }))
}).on('close', () => process.exit(0))
`
    writeFileSync(join(bin, 'codex'), source, { mode: 0o755 })
    return `${bin}:/usr/bin:/bin`
  }

  test('Codex: asks Codex whether it trusts the hook, and writes nothing', () => {
    put('codex', ours('codex'))
    const before = readFileSync(join(dir, 'hooks.json'), 'utf8')
    const asked = (...said: Parameters<typeof codexSaying>): Report =>
      tested('codex', { PATH: codexSaying(...said) }).report
    expect(asked('untrusted')).toMatchObject({
      status: 'incomplete',
      left: [expect.stringContaining('trust')],
    })
    expect(asked('modified').status).toBe('incomplete')
    const off = asked('trusted', false)
    expect(off).toMatchObject({ status: 'incomplete', left: [expect.stringContaining('enable')] })
    expect(asked('trusted')).toMatchObject({ status: 'works', left: [] })
    expect(readFileSync(join(dir, 'hooks.json'), 'utf8')).toBe(before)
    expect(existsSync(join(dir, 'config.toml'))).toBe(false)
  })
})
