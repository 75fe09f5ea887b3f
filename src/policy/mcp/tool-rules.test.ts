import { describe, expect, test } from 'vitest'
import { mcpServersShape } from '../../model/mcp-config.ts'
import { parseJsonPath, valuesAt } from './json-path.ts'
import { describeTool, splitName } from './tool-description.ts'
import { compileToolRules, decideToolCall } from './tool-rules.ts'

const server = (...rule: object[]) =>
  mcpServersShape.parse([{ name: 'notes', command: ['server'], rule }], 'mcp')[0] as never
const decide = (rules: object[], tool: string, args: unknown = {}) =>
  decideToolCall(compileToolRules(server(...rules)), tool, args).action

describe('rules on calls', () => {
  test('a call without a rule is asked about; `default_action` changes that', () => {
    expect(decide([], 'read')).toBe('ask')
    const open = mcpServersShape.parse(
      [{ name: 'n', command: ['s'], default_action: 'deny' }],
      'mcp',
    )[0] as never
    expect(decideToolCall(compileToolRules(open), 'read', {}).action).toBe('deny')
  })

  test('the strictest matching rule counts, in any order', () => {
    const rules = [
      { tool: 'read.*', action: 'allow' },
      { arguments: [{ path: '$..*', regex: '.*secret.*' }], action: 'deny' },
      { tool: 'read_all', action: 'ask' },
    ]
    for (const order of [rules, rules.toReversed()]) {
      expect(decide(order, 'read_one', { path: '/a' })).toBe('allow')
      expect(decide(order, 'read_all', { path: '/a' })).toBe('ask')
      expect(decide(order, 'read_one', { deep: [{ path: '/secret' }] })).toBe('deny')
    }
  })

  test('a name must match as a whole', () => {
    expect(decide([{ tool: 'read', action: 'allow' }], 'read_everything')).toBe('ask')
    expect(decide([{ tool: 'read', action: 'allow' }], 'x\nread')).toBe('ask')
  })

  test('a rule that allows must hold for every value; one that restricts, for any', () => {
    const allow = [{ arguments: [{ path: '$.paths[*]', regex: '/srv/.*' }], action: 'allow' }]
    expect(decide(allow, 't', { paths: ['/srv/a', '/srv/b'] })).toBe('allow')
    expect(decide(allow, 't', { paths: ['/srv/a', '/etc/passwd'] })).toBe('ask')
    expect(decide(allow, 't', { paths: [] })).toBe('ask')
    expect(decide(allow, 't', {})).toBe('ask')
    expect(decide(allow, 't', { paths: '/srv/a' })).toBe('ask')
    const deny = [{ arguments: [{ path: '$.paths[*]', regex: '/etc/.*' }], action: 'deny' }]
    expect(decide(deny, 't', { paths: ['/srv/a', '/etc/passwd'] })).toBe('deny')
  })

  test('a member whose name differs in case or form counts too: a server may read it instead', () => {
    const allow = [{ arguments: [{ path: '$.path', regex: '/srv/.*' }], action: 'allow' }]
    const deny = [{ arguments: [{ path: '$.list[*].key', regex: 'secret' }], action: 'deny' }]
    expect(decide(allow, 't', { path: '/srv/a', Path: '/srv/b' })).toBe('allow')
    expect(decide(allow, 't', { path: '/srv/a', Path: '/etc/shadow' })).toBe('ask')
    expect(decide(allow, 't', { PATH: '/etc/shadow', path: '/srv/a' })).toBe('ask')
    expect(decide(allow, 't', { path: '/srv/a', ｐath: '/etc/shadow' })).toBe('ask')
    expect(decide(allow, 't', { Path: '/srv/a' })).toBe('ask')
    for (const key of ['Key', 'KEY', '\u212aey']) {
      expect(decide(deny, 't', { list: [{ [key]: 'secret' }] })).toBe('deny')
      expect(decide(deny, 't', { List: [{ [key]: 'secret' }] })).toBe('deny')
    }
  })

  test('values that are not text are compared as JSON', () => {
    const rules = [{ arguments: [{ path: '$.count', regex: '[0-9]' }], action: 'allow' }]
    expect(decide(rules, 't', { count: 7 })).toBe('allow')
    expect(decide(rules, 't', { count: 70 })).toBe('ask')
    expect(decide(rules, 't', { count: { a: 1 } })).toBe('ask')
  })

  test('the internal mark for unknown text, sent as an argument, allows nothing and avoids no denial', () => {
    const mark = '\uFDD0'
    expect(
      decide([{ arguments: [{ path: '$.a', regex: 'x.*' }], action: 'allow' }], 't', { a: `${mark}` }),
    ).toBe('ask')
    expect(decide([{ arguments: [{ path: '$.a', regex: 'rm' }], action: 'deny' }], 't', { a: mark })).toBe(
      'deny',
    )
  })

  test('examples, patterns and paths are checked when the rules are loaded', () => {
    const bad = (rule: object) => () => compileToolRules(server({ tool: 'read', action: 'allow', ...rule }))
    expect(bad({ match: ['write {}'] })).toThrow(/example `write \{\}` in `match` does not match/)
    expect(bad({ not_match: ['read'] })).toThrow(/in `not_match` matches/)
    expect(bad({ match: ['read {'] })).toThrow(/not a tool and a JSON object/)
    expect(bad({ tool: '(a' })).toThrow(/rule `mcp\.notes\.rule\[0\]`/)
    expect(bad({ arguments: [{ path: 'path', regex: 'x' }] })).toThrow(/not a JSON path/)
    expect(() => compileToolRules(server({ action: 'allow' }))).toThrow(/needs `tool` or `arguments`/)
  })
})

describe('JSON paths', () => {
  const value = { a: { b: [{ c: 1 }, { c: 2 }] }, 'x y': 3, list: [4, [5]] }
  test.each([
    ['$', [value]],
    ['$.a.b[0].c', [1]],
    ['$.a.b[*].c', [1, 2]],
    ["$['x y']", [3]],
    ['$["list"][1][0]', [5]],
    ['$..c', [1, 2]],
    ['$.constructor', []],
    ['$.list.length', []],
    ['$.a.b[7]', []],
  ])('%s', (path, found) => expect(valuesAt(value, parseJsonPath(path))).toEqual(found))

  test.each(['', 'a', '$a', '$.', '$.a[', '$[?(@.a)]', '$.a b', '$...a', '$[-1]', '$.*x', '$*'])(
    '`%s` is not a path',
    (path) => expect(() => parseJsonPath(path)).toThrow(/JSON path/),
  )

  test('deeply nested values do not overflow the stack', () => {
    let deep: unknown = 'x'
    for (let n = 0; n < 100_000; n++) deep = [deep]
    expect(valuesAt(deep, parseJsonPath('$..*'))).toContain('x')
  })
})

describe('tool descriptions', () => {
  const raw = { name: 'add', description: 'Adds.', inputSchema: { type: 'object' } }
  test('keep only what a model needs', () => {
    expect(
      describeTool('n', {
        ...raw,
        annotations: { readOnlyHint: true, title: 'x', other: 1 },
        outputSchema: {},
        _meta: {},
      }),
    ).toEqual({ ...raw, annotations: { readOnlyHint: true } })
  })

  test('escape invisible characters', () => {
    expect(describeTool('n', { ...raw, description: 'a\u{e0041}\u001b[8m\u202eb\nc' })).toMatchObject({
      description: 'a\\udb40\\udc41\\u001b[8m\\u202eb\nc',
    })
    expect(
      describeTool('n', { ...raw, inputSchema: { properties: { a: { description: '\u200bx' } } } }),
    ).toMatchObject({ inputSchema: { type: 'object', properties: { a: { description: '\\u200bx' } } } })
  })

  test.each([
    { name: 'a b' },
    { name: '' },
    { name: 'x'.repeat(62) },
    { name: 7 },
    { description: 'x'.repeat(10_000) },
    { inputSchema: null },
    { inputSchema: [] },
    { inputSchema: { 'a\u200b': 1 } },
    { inputSchema: JSON.parse('{"__proto__": {}}') },
    { inputSchema: { a: 'x'.repeat(70_000) } },
  ])('refuse %j', (wrong) => expect(describeTool('n', { ...raw, ...wrong })).toHaveProperty('refused'))

  test('names have exactly one reading as server and tool', () => {
    expect(splitName('a-b__c__d')).toEqual({ server: 'a-b', tool: 'c__d' })
    for (const name of ['exec', 'a_b__c', '__c', 'a__', 'A__c']) expect(splitName(name)).toBeUndefined()
  })
})

describe('[[mcp]]', () => {
  const parse = (value: object) => () => mcpServersShape.parse([{ name: 'n', ...value }], 'mcp')
  test.each([
    [{}, /exactly one of `command` and `url`/],
    [{ command: ['a'], url: 'https://a.example' }, /exactly one/],
    [{ command: [] }, /name a program/],
    [{ url: 'http://a.example/mcp' }, /not `https/],
    [{ url: 'https://user:pw@a.example/mcp' }, /not `https/],
    [{ url: 'file:///etc/passwd' }, /not `https/],
    [{ url: 'https://a.example', read: ['/'] }, /only for a `command`/],
    [{ command: ['a'], headers: { A: 'b' } }, /only for a `url`/],
    [{ command: ['a'], name: 'a_b' }, /not a short name/],
    [{ command: ['a'], surprise: 1 }, /surprise/],
  ])('%j is refused', (value, why) => expect(parse(value)).toThrow(why))

  test('two servers with one name are refused', () =>
    expect(() =>
      mcpServersShape.parse(
        [
          { name: 'n', command: ['a'] },
          { name: 'n', command: ['b'] },
        ],
        'mcp',
      ),
    ).toThrow(/two servers/))
})
