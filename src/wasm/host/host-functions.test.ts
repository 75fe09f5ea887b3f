import {
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Json } from '../../model/event.ts'
import { parseCapabilities } from '../../policy/grants/capability.ts'
import { createHostFunctions } from './host-functions.ts'
import type { FetchRequest, HostParts, HostReply, Params, SkillViolation } from './host-parts.ts'

let root: string
let violations: SkillViolation[]
const at = (name: string): string => join(root, name)

beforeEach(() => {
  root = realpathSync(mkdtempSync(join(tmpdir(), 'rf-wasm-')))
  mkdirSync(at('ws/notes'), { recursive: true })
  mkdirSync(at('out'))
  writeFileSync(at('ws/notes/a.md'), 'inside')
  writeFileSync(at('ws/b.txt'), 'text')
  writeFileSync(at('ws/.env'), 'KEY=1')
  writeFileSync(at('out/secret'), 's3cr3t')
  violations = []
})
afterEach(() => rmSync(root, { recursive: true, force: true }))

function ask(
  method: string,
  params: Params,
  grants: readonly string[],
  more: Partial<HostParts> = {},
): Promise<HostReply> {
  const parts = {
    grants: parseCapabilities(grants),
    workspace: at('ws'),
    onViolation: (one: SkillViolation) => violations.push(one),
    ...more,
  }
  return createHostFunctions(parts).call(method, params, new AbortController().signal)
}
const read = (path: string, ...grants: readonly string[]): Promise<HostReply> =>
  ask('file_read', { path }, grants)

describe('file_read', () => {
  const TOOL = 'ToolInvoke(file_read)'
  it('reads granted files', async () => {
    expect(await read('notes/a.md', TOOL)).toEqual({ ok: 'inside' })
    expect(await read(at('ws/notes/a.md'), TOOL)).toEqual({ ok: 'inside' })
    expect(await read('notes/a.md', 'FileRead(notes/*)')).toEqual({ ok: 'inside' })
    expect(await read(at('out/secret'), `FileRead(${at('out')}/**)`)).toEqual({ ok: 's3cr3t' })
    expect(violations).toEqual([])
  })

  it('gives the same answer for files that are not granted and files that do not exist', async () => {
    const same = (path: string): HostReply => ({
      error: `\`${path}\` is missing or not granted`,
      code: 'capability-denied',
    })
    expect(await read('b.txt')).toEqual(same('b.txt'))
    expect(await read('gone.txt')).toEqual(same('gone.txt'))
    expect(await read('gone.txt', TOOL)).toEqual(same('gone.txt'))
    expect(await read('b.txt', 'FileRead(notes/*)')).toEqual(same('b.txt'))
    expect(await read('.env', TOOL)).toEqual(same('.env'))
    expect(await read('b.txt', 'ToolInvoke(file_write)', 'FileWrite(*)')).toEqual(same('b.txt'))
    expect(await read('/etc/passwd')).toEqual(same('/etc/passwd'))
    expect(await read('/etc/no-such-file')).toEqual(same('/etc/no-such-file'))
  })

  it.each<[string, readonly string[], readonly [string, string][]]>([
    ['../out/secret', [TOOL], []],
    ['../../../etc/passwd', [TOOL], []],
    ['..%2F..%2Fetc%2Fpasswd', [TOOL], []],
    ['notes/../b.txt', [TOOL], []],
    ['/etc/passwd', [TOOL], []],
    ['l', [TOOL], [['out/secret', 'ws/l']]],
    ['d/secret', [TOOL], [['out', 'ws/d']]],
    ['d/gone', [TOOL], [['out', 'ws/d']]],
    ['d/secret/x', [TOOL], [['out', 'ws/d']]],
    ['/etc/passwd/x', [TOOL], []],
    ['dangling', [TOOL], [['out/gone', 'ws/dangling']]],
    ['notes/l', ['FileRead(notes/*)'], [['ws/b.txt', 'ws/notes/l']]],
  ])('%s with %j is a traversal', async (path, grants, links) => {
    for (const [target, link] of links) symlinkSync(at(target), at(link))
    expect(await read(path, ...grants)).toMatchObject({ code: 'path-traversal' })
    expect(violations).toEqual([{ violationType: 'PathTraversal', details: path }])
  })

  it('accepts the workspace by its path and by its real path', async () => {
    symlinkSync(at('ws'), at('alias'))
    const aliased = (path: string, grant: string): Promise<HostReply> =>
      ask('file_read', { path }, [grant], { workspace: at('alias') })
    expect(await aliased('notes/a.md', 'FileRead(notes/*)')).toEqual({ ok: 'inside' })
    expect(await aliased(at('alias/notes/a.md'), TOOL)).toEqual({ ok: 'inside' })
    expect(await aliased(at('ws/notes/a.md'), TOOL)).toEqual({ ok: 'inside' })
  })

  it('one grant does not widen another', async () => {
    const grants = [TOOL, `FileWrite(${at('out')}/**)`]
    expect(await read(at('out/secret'), ...grants)).toMatchObject({ code: 'path-traversal' })
  })

  it('does not read another file through a hard link', async () => {
    linkSync(at('out/secret'), at('ws/hard'))
    expect(await read('hard', TOOL)).toMatchObject({ code: 'capability-denied' })
  })

  it('requires a path to a file within the size limit', async () => {
    expect(await ask('file_read', {}, [TOOL])).toMatchObject({ error: 'missing parameter `path`' })
    expect(await read('notes', TOOL)).toMatchObject({ error: expect.any(String) })
    writeFileSync(at('ws/big'), Buffer.alloc(1024 * 1024 + 1, 97))
    expect(await read('big', TOOL)).toMatchObject({ code: 'resource-exhausted' })
    expect(await ask('file_read', { path: 'b.txt' }, [TOOL], { workspace: undefined })).toMatchObject({
      code: 'capability-denied',
    })
  })
})

describe('file_write and file_list', () => {
  const write = (path: string, ...grants: readonly string[]): Promise<HostReply> =>
    ask('fs_write', { path, content: 'new' }, grants)
  it('writes granted files, including new files in new directories', async () => {
    expect(await write('deep/er/x.txt', 'ToolInvoke(file_write)')).toEqual({ ok: 3 })
    expect(readFileSync(at('ws/deep/er/x.txt'), 'utf8')).toBe('new')
    expect(await write('b.txt', 'FileWrite(*.txt)')).toEqual({ ok: 3 })
    expect(readFileSync(at('ws/b.txt'), 'utf8')).toBe('new')
  })
  it('a read grant does not restrict a write grant', async () => {
    expect(await write('b.txt', 'ToolInvoke(file_write)', `FileRead(${at('ws')}/**)`)).toEqual({ ok: 3 })
  })
  it('cannot write anything else', async () => {
    symlinkSync(at('out/made'), at('ws/dangling'))
    for (const path of ['../out/made', 'dangling', at('out/made')]) {
      expect(await write(path, 'ToolInvoke(file_write)')).toMatchObject({ code: 'path-traversal' })
    }
    expect(await write('.git/hooks/pre-commit', 'ToolInvoke(file_write)')).toMatchObject({
      code: 'capability-denied',
    })
    expect(await write('b.txt', 'FileRead(*)', 'ToolInvoke(file_read)')).toMatchObject({
      code: 'capability-denied',
    })
    expect(existsSync(at('out/made'))).toBe(false)
    expect(readFileSync(at('ws/b.txt'), 'utf8')).toBe('text')
    expect(await write(at('out/x'), `FileRead(${at('out')}/**)`)).toMatchObject({ code: 'capability-denied' })
  })
  it('lists names and kinds', async () => {
    const listed = await ask('file_list', { path: '.' }, ['ToolInvoke(file_list)'])
    expect(listed).toEqual({
      ok: [
        { name: '.env', kind: 'file' },
        { name: 'b.txt', kind: 'file' },
        { name: 'notes', kind: 'dir' },
      ],
    })
    expect(await ask('file_list', { path: '.' }, [])).toMatchObject({ code: 'capability-denied' })
  })
})

describe('net_fetch', () => {
  const fetch = (url: string, grants: readonly string[], more: Partial<HostParts> = {}): Promise<HostReply> =>
    ask('net_fetch', { url }, grants, more)
  it('checks the capability first, then the address, and never fetches without a fetcher', async () => {
    expect(await fetch('http://169.254.169.254/', [])).toMatchObject({ code: 'capability-denied' })
    for (const url of [
      'http://169.254.169.254/x',
      'http://127.0.0.1/',
      'http://[::1]/',
      'http://metadata.google.internal/',
    ]) {
      expect(await fetch(url, ['NetConnect(*)'])).toMatchObject({ code: 'ssrf-blocked' })
    }
    expect(
      await fetch('https://api.openai.com:443@evil.com/', ['NetConnect(api.openai.com:443)']),
    ).toMatchObject({ code: 'ssrf-blocked' })
    expect(await fetch('https://evilopenai.com/', ['NetConnect(*.openai.com:443)'])).toMatchObject({
      code: 'capability-denied',
    })
    expect(await fetch('https://api.openai.com/', ['NetConnect(*.openai.com:443)'])).toMatchObject({
      code: 'unsupported',
    })
    expect(violations.map(({ violationType }) => violationType)).toContain('SsrfBlocked')
  })
  it('passes the request to the fetcher', async () => {
    const seen: FetchRequest[] = []
    const fetcher = async (
      request: FetchRequest,
    ): Promise<{ status: number; headers: Record<string, string>; body: string }> => {
      seen.push(request)
      return { status: 200, headers: {}, body: 'hi' }
    }
    expect(
      await fetch('https://api.example.com/x', ['NetConnect(api.example.com:443)'], { fetcher }),
    ).toEqual({
      ok: { status: 200, headers: {}, body: 'hi' },
    })
    expect(seen).toEqual([{ url: 'https://api.example.com/x', method: 'GET', headers: {}, body: undefined }])
  })
})

describe('memory, variables and the rest', () => {
  const kept = new Map<string, Json>()
  const memory = {
    recall: async (key: string): Promise<Json | undefined> => kept.get(key),
    store: async (key: string, value: Json): Promise<void> => void kept.set(key, value),
  }
  it('stores and recalls by key', async () => {
    const grants = ['MemoryWrite(notes/*)', 'MemoryRead(notes/*)']
    expect(await ask('kv_set', { key: 'notes/a', value: { n: 1 } }, grants, { memory })).toEqual({ ok: true })
    expect(await ask('memory_recall', { key: 'notes/a' }, grants, { memory })).toEqual({ ok: { n: 1 } })
    expect(await ask('memory_recall', { key: 'notes/b' }, grants, { memory })).toEqual({ ok: null })
    expect(await ask('memory_recall', { key: 'other' }, grants, { memory })).toMatchObject({
      code: 'capability-denied',
    })
    expect(
      await ask('memory_store', { key: 'notes/a', value: 'x'.repeat(70_000) }, grants, { memory }),
    ).toMatchObject({ code: 'resource-exhausted' })
    expect(await ask('memory_recall', { key: 'notes/a' }, grants)).toMatchObject({ code: 'unsupported' })
  })
  it('reads declared variables only', async () => {
    const env = { MODE: 'fast' }
    expect(await ask('env_read', { name: 'MODE' }, ['EnvRead(MODE)'], { env })).toEqual({ ok: 'fast' })
    const denied = await ask('env_read', { name: 'PATH' }, ['EnvRead(MODE)'], { env })
    expect(await ask('env_read', { name: 'PATH' }, ['EnvRead(*)'], { env })).toEqual(denied)
    expect(await ask('env_read', { name: 'toString' }, ['EnvRead(*)'], { env })).toMatchObject({
      code: 'capability-denied',
    })
  })
  it.each<[string, Params]>([
    ['shell_exec', { command: 'ls' }],
    ['agent_send', { target: 'a' }],
    ['agent_spawn', {}],
  ])('%s is denied', async (method, params) => {
    expect(await ask(method, params, [])).toMatchObject({ code: 'capability-denied' })
    expect(await ask(method, params, ['ShellExec(*)', 'AgentMessage(*)', 'ToolAll'])).toMatchObject({
      code: 'unsupported',
    })
  })
  it('an exception in a tool discloses nothing to the guest', async () => {
    const tool = async (): Promise<Json> => {
      throw new Error('password is hunter2')
    }
    expect(await ask('x', {}, ['ToolAll'], { tool })).toEqual({
      error: 'the host could not do it',
      code: 'internal',
    })
  })
})
