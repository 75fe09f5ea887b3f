import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  covers,
  escalations,
  type FileKind,
  grantsAmount,
  grantsFile,
  grantsHost,
  grantsName,
  parseCapabilities,
  parseCapability,
} from './capability.ts'

describe('parseCapability', () => {
  it.each([
    'ToolInvoke',
    'ToolInvoke()',
    'Nothing(x)',
    'FileRead(../etc)',
    'FileRead(/a/../b)',
    'FileRead(a\\b)',
    'NetConnect(*openai.com:443)',
    'NetConnect(api*.com)',
    'NetConnect(example.*)',
    'NetConnect(api.openai.com:443@evil.com)',
    'NetConnect(a.com:0)',
    'NetConnect(a.com:70000)',
    'NetConnect(0x7f.1:80)',
    'LlmMaxTokens(many)',
    'AgentKill(agent-*)',
    'AgentSpawn(x)',
    'MemoryRead(a\nb)',
    '',
  ])('refuses %j', (text) => expect(() => parseCapability(text)).toThrow(/is not a capability/))

  it('accepts quotes and returns frozen values', () => {
    const grant = parseCapability('ToolInvoke("file_read")')
    expect(grantsName([grant], 'ToolInvoke', 'file_read')).toBe(true)
    expect(Object.isFrozen(grant)).toBe(true)
    expect(() => Object.assign(grant, { kind: 'ToolAll' })).toThrow()
    expect(Object.isFrozen('pattern' in grant && grant.pattern)).toBe(true)
  })
})

describe('names', () => {
  it.each<[string, string, boolean]>([
    ['ToolInvoke(file_read)', 'file_read', true],
    ['ToolInvoke(file_read)', 'file_write', false],
    ['ToolInvoke(file_*)', 'file_write', true],
    ['ToolAll', 'anything', true],
    ['ToolInvoke(a*b*c)', 'axxbyyc', true],
    ['ToolInvoke(a*b*c)', 'axxbyy', false],
    ['ToolInvoke(file_read)', '*', false],
    ['ToolInvoke(file_read)', 'file_read2', false],
  ])('%s ∋ %s: %s', (grant, name, wanted) =>
    expect(grantsName([parseCapability(grant)], 'ToolInvoke', name)).toBe(wanted),
  )

  it('kinds do not match each other', () => {
    const grants = parseCapabilities(['EnvRead(PATH)', 'MemoryRead(notes/*)', 'AgentKill(a-1)'])
    expect(grantsName(grants, 'EnvRead', 'PATH')).toBe(true)
    expect(grantsName(grants, 'EnvRead', 'HOME')).toBe(false)
    expect(grantsName(grants, 'MemoryRead', 'notes/a')).toBe(true)
    expect(grantsName(grants, 'MemoryWrite', 'notes/a')).toBe(false)
    expect(grantsName(grants, 'AgentKill', 'a-1')).toBe(true)
    expect(grantsName(grants, 'AgentKill', 'a-12')).toBe(false)
    expect(grantsName(grants, 'ShellExec', 'ls')).toBe(false)
  })

  it('compares amounts', () => {
    expect(grantsAmount(parseCapabilities(['LlmMaxTokens(10000)']), 'LlmMaxTokens', 5000)).toBe(true)
    expect(grantsAmount(parseCapabilities(['LlmMaxTokens(1000)']), 'LlmMaxTokens', 5000)).toBe(false)
  })
})

describe('hosts', () => {
  it.each<[string, string, number, boolean]>([
    ['api.openai.com:443', 'api.openai.com', 443, true],
    ['api.openai.com:443', 'api.openai.com', 80, false],
    ['api.openai.com', 'api.openai.com', 8443, true],
    ['API.OpenAI.com:443', 'api.openai.com', 443, true],
    ['*.openai.com:443', 'api.openai.com', 443, true],
    ['*.openai.com:443', 'a.b.openai.com', 443, true],
    ['*.openai.com:443', 'openai.com', 443, false],
    ['*.openai.com:443', 'evilopenai.com', 443, false],
    ['*.openai.com:443', 'api.openai.com.evil.com', 443, false],
    ['api.*.com:*', 'api.openai.com', 443, true],
    ['api.*.com', 'api.openai.org', 443, false],
    ['api.*.com', 'api.a.b.com', 443, false],
    ['*', 'anything.example', 1, true],
    ['[2001:db8::1]:443', '2001:0db8::0:1', 443, true],
    ['10.0.0.1:80', '10.0.0.1', 80, true],
  ])('%s ∋ %s:%i: %s', (grant, host, port, wanted) =>
    expect(grantsHost([parseCapability(`NetConnect(${grant})`)], host, port)).toBe(wanted),
  )
})

describe('files', () => {
  const granted = (
    grant: string,
    absolute: string,
    inWorkspace?: string,
    kind: FileKind = 'FileRead',
  ): boolean => grantsFile([parseCapability(grant)], kind, { absolute, inWorkspace })

  it.each<[string, string, string | undefined, boolean]>([
    ['FileRead(/data/*)', '/data/a', undefined, true],
    ['FileRead(/data/*)', '/data/a/b', undefined, false],
    ['FileRead(/data/**)', '/data/a/b', undefined, true],
    ['FileRead(/data/**)', '/data', undefined, true],
    ['FileRead(/data/**)', '/database/a', undefined, false],
    ['FileRead(/data/**/x.txt)', '/data/a/b/x.txt', undefined, true],
    ['FileRead(/data/*.t?t)', '/data/a.txt', undefined, true],
    ['FileRead(/data/*.t?t)', '/data/a.tt', undefined, false],
    ['FileRead(*)', '/anywhere/at/all', undefined, true],
    ['FileRead(notes/*.md)', '/ws/notes/a.md', 'notes/a.md', true],
    ['FileRead(notes/*.md)', '/other/notes/a.md', undefined, false],
    ['FileRead(/data/a)', '/data/*', undefined, false],
    ['FileWrite(/data/**)', '/data/a', undefined, false],
  ])('%s ∋ %s: %s', (grant, path, inside, wanted) => expect(granted(grant, path, inside)).toBe(wanted))
})

describe('child ⊆ parent', () => {
  it.each<[readonly string[], readonly string[], readonly string[]]>([
    [['FileRead(*)'], ['FileRead(/data/*)', 'FileRead(notes/**)'], []],
    [['FileRead(/data/*)'], ['FileRead(*)'], ['FileRead(*)']],
    [['FileRead(/data/*)'], ['FileRead(/data/**)'], ['FileRead(/data/**)']],
    [['FileRead(/data/**)'], ['FileRead(/data/*/x*)', 'FileRead(/data/**)'], []],
    [['FileRead(/data/*.txt)'], ['FileRead(/data/a*.txt)', 'FileRead(/data/*)'], ['FileRead(/data/*)']],
    [['FileRead(/data/*)'], ['ShellExec(ls)'], ['ShellExec(ls)']],
    [['FileRead(/data/**)'], ['FileWrite(/data/a)'], ['FileWrite(/data/a)']],
    [['ToolAll'], ['ToolInvoke(file_*)', 'ToolAll'], []],
    [['ToolInvoke(file_*)'], ['ToolAll'], ['ToolAll']],
    [['NetConnect(*.a.com:443)'], ['NetConnect(x.a.com:443)', 'NetConnect(*.a.com:443)'], []],
    [
      ['NetConnect(*.a.com:443)'],
      ['NetConnect(x.a.com)', 'NetConnect(a.com:443)'],
      ['NetConnect(x.a.com)', 'NetConnect(a.com:443)'],
    ],
    [['NetConnect(x.*.com)'], ['NetConnect(*.b.com)'], ['NetConnect(*.b.com)']],
    [['LlmMaxTokens(1000)'], ['LlmMaxTokens(1000)', 'LlmMaxTokens(1001)'], ['LlmMaxTokens(1001)']],
    [['AgentSpawn'], ['AgentSpawn'], []],
    [[], ['AgentSpawn'], ['AgentSpawn']],
  ])('%j holds %j except %j', (parent, child, wanted) => {
    const found = escalations(parseCapabilities(parent), parseCapabilities(child))
    expect(found.map(({ text }) => text)).toEqual(wanted)
  })

  it('a child never admits more than its parent', () => {
    const segment = fc.constantFrom('a', 'b', 'ab', '*', '**', 'a*', '?b')
    const glob = fc
      .array(segment, { minLength: 1, maxLength: 4 })
      .map((parts) => `FileRead(/${parts.join('/')})`)
    const path = fc.array(fc.constantFrom('a', 'b', 'ab', 'abb'), { minLength: 1, maxLength: 4 })
    fc.assert(
      fc.property(glob, glob, path, (parentText, childText, parts) => {
        const [parent, child] = [parseCapability(parentText), parseCapability(childText)]
        const place = { absolute: `/${parts.join('/')}`, inWorkspace: undefined }
        if (!covers(parent, child) || !grantsFile([child], 'FileRead', place)) return true
        return grantsFile([parent], 'FileRead', place)
      }),
      { numRuns: 3000 },
    )
  })

  it('handles hostile patterns quickly', () => {
    const started = performance.now()
    const grant = parseCapability(`ToolInvoke(${'a*'.repeat(400)}b)`)
    expect(grantsName([grant], 'ToolInvoke', 'a'.repeat(2000))).toBe(false)
    if (process.env.RINGFENCE_FULL) expect(performance.now() - started).toBeLessThan(500)
  })
})
