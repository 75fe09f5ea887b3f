import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { configShape } from './config.ts'
import { SandboxError } from './errors.ts'
import {
  boolean,
  either,
  type JsonSchema,
  list,
  number,
  object,
  oneOf,
  optional,
  record,
  type Shape,
  text,
} from './shape.ts'
import { limitsShape, parseSpec, specShape } from './spec.ts'

/** The error of a shape, or the parsed value. */
function answer(shape: Shape<unknown>, value: unknown): unknown {
  try {
    return shape.parse(value, 'x')
  } catch (error) {
    if (!(error instanceof SandboxError)) throw error
    expect(error.code).toBe('invalid-input')
    return `refused: ${error.message}`
  }
}

const refusal = (problem: string): string => `refused: x: ${problem}`
const holes = new Array<string>(2)
class Own {
  readonly workspace = '/w'
}

describe('numbers', () => {
  const whole = number({ integer: true, min: 1, max: 10 })
  test.each<[string, Shape<unknown>, unknown, unknown]>([
    ['the least', whole, 1, 1],
    ['the most', whole, 10, 10],
    ['zero', whole, 0, refusal('must be at least 1, got `0`')],
    ['negative', whole, -1, refusal('must be at least 1, got `-1`')],
    ['above', whole, 11, refusal('must be at most 10, got `11`')],
    ['a fraction', whole, 1.5, refusal('expected a whole number, got `1.5`')],
    ['NaN', whole, Number.NaN, refusal('expected a number, got `NaN`')],
    ['infinite', whole, Number.POSITIVE_INFINITY, refusal('expected a number, got `Infinity`')],
    ['minus infinite', number(), Number.NEGATIVE_INFINITY, refusal('expected a number, got `-Infinity`')],
    ['above the safe integers', number({ integer: true }), 2 ** 53, /^refused: x: expected a whole number/],
    ['overflow of a literal', number({ integer: true }), 1e300, /^refused: x: expected a whole number/],
    ['text that looks like a number', whole, '5', refusal('expected a number, got `5`')],
    ['a big integer', whole, 5n, refusal('expected a number, got `5`')],
    ['a boxed number', whole, Object(5), refusal('expected a number, got an object')],
    ['null', whole, null, refusal('expected a number, got null')],
    ['exactly the open end', number({ above: 0 }), 0, refusal('must be above 0, got `0`')],
    ['minus zero at the open end', number({ above: 0 }), -0, /must be above 0/],
    ['the smallest number above the open end', number({ above: 0 }), Number.MIN_VALUE, Number.MIN_VALUE],
  ])('%s', (_, shape, value, expected) => {
    if (expected instanceof RegExp) expect(answer(shape, value)).toMatch(expected)
    else expect(answer(shape, value)).toBe(expected)
  })
})

describe('text, choices and flags', () => {
  test.each<[string, Shape<unknown>, unknown, unknown]>([
    ['text', text(), 'a', 'a'],
    ['empty', text(), '', refusal('must not be empty')],
    ['empty text where allowed', text({ empty: true }), '', ''],
    ['NUL inside', text(), 'a\0b', refusal('must not contain a NUL character')],
    ['the longest', text({ max: 3 }), 'abc', 'abc'],
    ['too long', text({ max: 3 }), 'abcd', refusal('longer than 3 characters')],
    ['longer than any argument', text(), 'a'.repeat(131_073), refusal('longer than 131072 characters')],
    ['a number', text(), 5, refusal('expected text, got `5`')],
    ['a list', text(), ['a'], refusal('expected text, got a list')],
    ['a boxed text', text(), Object('a'), refusal('expected text, got an object')],
    ['a symbol', text(), Symbol('s'), refusal('expected text, got `Symbol(s)`')],
    ['nothing', text(), undefined, refusal('expected text, got `undefined`')],
    ['a choice', oneOf('a', 'b'), 'b', 'b'],
    ['a value that is no choice', oneOf('a', 'b'), 'c', refusal('unknown value `c`')],
    ['a property of Object', oneOf('a', 'b'), 'constructor', refusal('unknown value `constructor`')],
    ['a list that prints like a choice', oneOf('a', 'b'), ['a'], refusal('unknown value a list')],
    ['true', boolean(), true, true],
    ['1 for true', boolean(), 1, refusal('expected true or false, got `1`')],
    ['text for true', boolean(), 'true', refusal('expected true or false, got `true`')],
    ['the second of two', either(number(), text()), 'a', 'a'],
    ['neither of two', either(number(), text()), null, refusal('expected text, got null')],
  ])('%s', (_, shape, value, expected) => {
    expect(answer(shape, value)).toBe(expected)
  })

  test('a long value is shown shortened', () => {
    expect(answer(number(), 'a'.repeat(500))).toBe(refusal(`expected a number, got \`${'a'.repeat(57)}…\``))
  })
})

describe('lists, records and objects', () => {
  const pair = object({ a: number(), b: optional(text()) })
  test.each<[string, Shape<unknown>, unknown, unknown]>([
    ['a list', list(number()), [1, 2], [1, 2]],
    [
      'a bad entry is named',
      list(number()),
      [1, 'x'],
      refusal('expected a number, got `x`').replace('x:', 'x[1]:'),
    ],
    ['a hole is not skipped', list(text()), holes, 'refused: x[0]: expected text, got `undefined`'],
    ['the maximum number of entries', list(number(), 2), [1, 2], [1, 2]],
    ['one entry too many', list(number(), 2), [1, 2, 3], refusal('more than 2 entries')],
    [
      '4097 entries without a declared maximum',
      list(number()),
      Array(4097).fill(1),
      refusal('more than 4096 entries'),
    ],
    ['an array-like object', list(number()), { 0: 1, length: 1 }, refusal('expected a list, got an object')],
    ['text instead of a list', list(text()), 'ab', refusal('expected a list, got `ab`')],
    ['a record', record(number()), { a: 1 }, { a: 1 }],
    ['a name with `=`', record(number()), { 'a=b': 1 }, refusal('invalid name `a=b`')],
    ['an empty name', record(number()), { '': 1 }, refusal('invalid name ``')],
    ['a name with NUL', record(number()), { 'a\0': 1 }, /invalid name/],
    ['a record with wrong values', record(number()), { a: 'b' }, /^refused: x\.a: expected a number/],
    ['an object', pair, { a: 1, b: 'c' }, { a: 1, b: 'c' }],
    ['a missing optional field', pair, { a: 1 }, { a: 1 }],
    ['an optional field set to undefined', pair, { a: 1, b: undefined }, { a: 1 }],
    ['null in an optional field', pair, { a: 1, b: null }, 'refused: x.b: expected text, got null'],
    ['a field missing', pair, {}, 'refused: x.a: expected a number, got `undefined`'],
    ['a field too many', pair, { a: 1, c: 2 }, refusal('unknown field `c`')],
    ['another spelling', pair, { A: 1 }, refusal('unknown field `A`')],
    ['an unknown field set to undefined', pair, { a: 1, c: undefined }, refusal('unknown field `c`')],
    ['null', pair, null, refusal('expected an object, got null')],
    ['a list for an object', pair, [1], refusal('expected an object, got a list')],
    ['text for an object', pair, 'a', refusal('expected an object, got `a`')],
    ['a required field from the prototype', pair, Object.create({ a: 1 }), /^refused/],
    ['a map', object({}), new Map([['a', 1]]), refusal('expected a plain object')],
    ['a date', object({}), new Date(0), refusal('expected a plain object')],
    ['an instance of a class', specShape, new Own(), refusal('expected a plain object')],
  ])('%s', (_, shape, value, expected) => {
    if (expected instanceof RegExp) expect(answer(shape, value)).toMatch(expected)
    else if (typeof expected === 'string') expect(answer(shape, value)).toBe(expected)
    else expect({ ...(answer(shape, value) as object) }).toEqual({ ...(expected as object) })
  })

  test.each([
    '{"__proto__":{"workspace":"/"}}',
    '{"constructor":1}',
    '{"hasOwnProperty":1}',
    '{"limits":{"__proto__":{"pids":1}}}',
    '{"network":{"toString":1}}',
  ])('a name inherited from Object is an unknown field: %s', (json) => {
    expect(() => parseSpec(JSON.parse(json))).toThrow(/unknown field/)
    expect(({} as Record<string, unknown>).workspace).toBeUndefined()
  })

  test('a record keeps such a name as an ordinary entry', () => {
    const parsed = record(number()).parse(JSON.parse('{"__proto__":1,"constructor":2}'), '')
    expect(Object.entries(parsed)).toEqual([
      ['__proto__', 1],
      ['constructor', 2],
    ])
    expect(Object.getPrototypeOf(parsed)).toBeNull()
  })

  test('the output is frozen and is a copy', () => {
    const value = { read: ['/a'], env: { A: 'b' }, limits: { pids: 3 } }
    const spec = parseSpec(value)
    value.read.push('/b')
    expect(spec.read).toEqual(['/a'])
    for (const part of [spec, spec.read, spec.env, spec.limits]) expect(Object.isFrozen(part)).toBe(true)
  })
})

describe('the spec', () => {
  const LIMITS = ['memoryMb', 'diskMb', 'pids', 'wallMs', 'idleMs', 'outputBytes', 'fuel'] as const
  const bad = [0, -1, 0.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 60, '1', null, true, [1]]

  test.each(LIMITS.flatMap((name) => bad.map((value) => [name, value] as const)))(
    'limit %s refuses %s',
    (name, value) => {
      expect(() => parseSpec({ limits: { [name]: value } })).toThrow(SandboxError)
    },
  )

  test.each([0, -0, -0.5, Number.NaN, Number.POSITIVE_INFINITY, 4097, '2'])('cpus refuses %s', (value) => {
    expect(() => parseSpec({ limits: { cpus: value } })).toThrow(SandboxError)
  })

  test('cpus may be a fraction', () => {
    expect(limitsShape.parse({ cpus: 0.25 }, '')).toEqual({ cpus: 0.25 })
  })

  test.each([
    [{ wrokspace: '/w' }, 'unknown field `wrokspace`'],
    [{ limits: { memory: 5 } }, 'limits: unknown field `memory`'],
    [{ mounts: [{ source: '/a', target: '/b', options: 'rw' }] }, 'mounts[0]: unknown field `options`'],
    [{ mounts: [{ source: '/a', target: '/b', mode: 'rwx' }] }, 'mounts[0].mode: unknown value `rwx`'],
    [{ network: { mode: 'open' } }, 'network.mode: unknown value `open`'],
    [{ waive: ['fs.everything'] }, 'waive[0]: unknown value `fs.everything`'],
    [{ env: { 'A-B': '1' } }, 'env: invalid name `A-B`'],
    [{ env: { 'BASH_FUNC_x%%': '1' } }, 'env: invalid name `BASH_FUNC_x%%`'],
    [{ env: { A: 'b\0c' } }, 'env.A: must not contain a NUL character'],
    [{ workspace: '' }, 'workspace: must not be empty'],
    [{ agentId: 'a'.repeat(257) }, 'agentId: longer than 256 characters'],
  ])('%o is refused with the path of the wrong field', (value, message) => {
    expect(() => parseSpec(value)).toThrow(message)
  })

  test('only a SandboxError is thrown, for any input', () => {
    fc.assert(
      fc.property(
        fc.anything({ withNullPrototype: true, withMap: true, withDate: true, withSparseArray: true }),
        (value) => {
          for (const shape of [specShape, configShape]) answer(shape as Shape<unknown>, value)
        },
      ),
      { numRuns: 500 },
    )
  })
})

describe('the JSON schema', () => {
  test('describes each shape as its parser does', () => {
    const shape = object({
      name: text(),
      size: optional(number({ integer: true, min: 1, max: 9 })),
      part: optional(number({ above: 0 })),
      kind: oneOf('a', 'b'),
      tags: optional(list(text({ empty: true }), 7)),
      env: optional(record(boolean())),
      any: optional(either(text(), number())),
    })
    expect(shape.schema).toEqual({
      type: 'object',
      additionalProperties: false,
      required: ['name', 'kind'],
      properties: {
        name: { type: 'string', minLength: 1 },
        size: { type: 'integer', minimum: 1, maximum: 9 },
        part: { type: 'number', exclusiveMinimum: 0 },
        kind: { enum: ['a', 'b'] },
        tags: { type: 'array', maxItems: 7, items: { type: 'string' } },
        env: { type: 'object', additionalProperties: { type: 'boolean' } },
        any: { anyOf: [{ type: 'string', minLength: 1 }, { type: 'number' }] },
      },
    })
  })

  test('of the configuration is closed at every level and plain JSON', () => {
    const open: string[] = []
    // Variables and headers have names of the operator's choice; their values are texts.
    const isRecord = (at: string): boolean =>
      [
        'config.mcp[].headers',
        'config.mcp[].env',
        'config.cluster.labels',
        'config.kubernetes.node_selector',
      ].includes(at)
    const visit = (schema: JsonSchema, at: string): void => {
      if (schema.type === 'object' && schema.additionalProperties !== false && !isRecord(at)) open.push(at)
      for (const [name, inner] of Object.entries((schema.properties ?? {}) as Record<string, JsonSchema>))
        visit(inner, `${at}.${name}`)
      if (schema.items) visit(schema.items as JsonSchema, `${at}[]`)
    }
    visit(configShape.schema, 'config')
    expect(open).toEqual([])
    expect(JSON.parse(JSON.stringify(configShape.schema))).toEqual(configShape.schema)
  })
})
