import { describe, expect, test } from 'vitest'
import { coerced, parseLenientObject } from './lenient-json.ts'

describe('arguments of a tool call', () => {
  test.each<[string, unknown, object]>([
    ['an object', { a: 1 }, { a: 1 }],
    ['nothing', undefined, {}],
    ['an empty text', '', {}],
    ['JSON', '{"a": 1}', { a: 1 }],
    ['JSON in a text of JSON', JSON.stringify('{"a": 1}'), { a: 1 }],
    ['a fenced block', 'Here you are:\n```json\n{"a": 1}\n```\nDone.', { a: 1 }],
    ['text around it', 'I call it with {"a": 1} now', { a: 1 }],
    ['real newlines and tabs in a text', '{"a": "x\n\ty"}', { a: 'x\n\ty' }],
    ['trailing commas', '{"a": [1, 2,], "b": {"c": 3,},}', { a: [1, 2], b: { c: 3 } }],
    ['missing closing brackets', '{"a": [1, {"b": 2', { a: [1, { b: 2 }] }],
    ['escaped quotes and braces in a text', '{"a": "\\"}{"}', { a: '"}{' }],
  ])('%s', (_, given, expected) => {
    expect(parseLenientObject(given)).toEqual(expected)
  })

  test.each<[string, unknown]>([
    ['a list', '[1, 2]'],
    ['a number', 5],
    ['no JSON', 'rm -rf /'],
    ['a truncated command', '{"command": "rm -rf /tmp/a'],
    ['a list as a value', [1]],
  ])('%s is refused', (_, given) => {
    expect(() => parseLenientObject(given)).toThrow(/not a JSON object/)
  })

  test('too many characters are refused before parsing', () => {
    expect(() => parseLenientObject('x'.repeat(9 * 1024 * 1024 + 1))).toThrow(/characters/)
  })
})

test('text is converted to the number, boolean or list that the schema requires, and nothing else changes', () => {
  const schema = {
    type: 'object',
    properties: {
      n: { type: 'integer' },
      yes: { type: 'boolean' },
      list: { type: 'array' },
      text: { type: 'string' },
      gone: { type: 'string' },
    },
  }
  const given = { n: ' 12 ', yes: 'True', list: '["a"]', text: '12', gone: null, other: null, toString: '1' }
  expect(coerced(given, schema)).toEqual({
    n: 12,
    yes: true,
    list: ['a'],
    text: '12',
    other: null,
    toString: '1',
  })
  expect(coerced({ n: '12 apples', list: 'a' }, schema)).toEqual({ n: '12 apples', list: 'a' })
})
