import { describe, expect, it } from 'vitest'
import {
  EvalThrew,
  loadEngine,
  safeEval,
  safeEvalAsync,
  safeEvalCondition,
  safeInterpolate,
} from './safe-eval.ts'

const failure = (act: () => unknown): unknown => {
  try {
    return { returned: act() }
  } catch (error) {
    return error
  }
}
const failureOf = (code: string, timeoutMs = 5000): unknown => failure(() => safeEval(code, { timeoutMs }))

describe('safeEval', () => {
  it.each<[string, Readonly<Record<string, unknown>>, unknown]>([
    ['1+2', {}, 3],
    ['x+y', { x: 1, y: 2 }, 3],
    ['list.filter((n) => n > 1)', { list: [1, 2, 3] }, [2, 3]],
    ['typeof process', {}, 'undefined'],
    ['const a = 2; let b = a * 3; b', {}, 6],
    ['undefined', {}, undefined],
    ['() => 1', {}, undefined],
    ['({ a: [1, null, undefined], f() {}, u: undefined })', {}, { a: [1, null, null] }],
    ['[NaN, Infinity, -0]', {}, [null, null, 0]],
    ['new Date(0)', {}, '1970-01-01T00:00:00.000Z'],
    ['when', { when: new Date(0) }, '1970-01-01T00:00:00.000Z'],
    ['new Date(2020, 0, 1).getTimezoneOffset()', {}, 0],
    ['let Object = 5; Object + undefined_', { undefined_: 1 }, 6],
  ])('%s', (code, context, value) => {
    expect(safeEval(code, { context })).toEqual(value)
  })
  it.each(['grüße 🦊 漢字', '\u0000nul\u0000', '\ud800 alone', '</script>\u2028\u2029', 'e\u0301'])(
    'carries %j there and back',
    (text) => {
      expect(safeEval('[text, text.length]', { context: { text } })).toEqual([text, text.length])
    },
  )
  it('accepts unicode in the code', () => {
    expect(safeEval('const größe = "🦊"; größe + "\\u{1F98A}"')).toBe('🦊🦊')
  })
  it('returns different random numbers each time', () => {
    const drawn = Array.from({ length: 20 }, () => safeEval('Math.random()') as number)
    expect(new Set(drawn).size).toBe(20)
    expect(drawn.every((number) => number >= 0 && number < 1)).toBe(true)
  })
  it.each([
    ['require("fs")', 'ReferenceError: require is not defined'],
    ['throw new TypeError("no")', 'TypeError: no'],
    ['throw "text"', 'text'],
    ['throw null', 'null'],
    ['throw { toString() { throw 1 } }', 'an error without a text'],
    ['throw new Error("a\\nb\\u001b[2J\\u2028c")', 'Error: a b [2J c'],
    ['1n', 'TypeError: BigInt are forbidden in JSON.stringify'],
    ['const a = {}; a.a = a; a', 'TypeError: circular reference'],
  ])('%s throws what the guest said', (code, message) => {
    expect(failureOf(code)).toEqual(new EvalThrew(message))
  })
  it('throws for invalid code, with a bounded message', () => {
    expect(failureOf('1 +')).toBeInstanceOf(EvalThrew)
    expect((failureOf('throw new Error("x".repeat(5000))') as Error).message).toHaveLength(500)
  })
  it.each([
    { timeoutMs: 0 },
    { timeoutMs: Number.NaN },
    { memoryMb: -1 },
    { memoryMb: 1e9 },
    { outputBytes: 0 },
  ])('refuses %j', (options) => {
    expect(failure(() => safeEval('1', options))).toMatchObject({ code: 'invalid-input' })
  })
})

describe('the context is a copy', () => {
  it('of own data properties', () => {
    let ran = 0
    const inherited = Object.create({ far: 1 }, { near: { value: 2, enumerable: true } })
    const getter = {
      get x() {
        return ran++
      },
      toJSON: () => ran++,
      f: () => ran++,
      y: 1,
    }
    const context = { inherited, getter, list: [() => 1, undefined] }
    expect(safeEval('[inherited, getter, list]', { context })).toEqual([{ near: 2 }, { y: 1 }, [null, null]])
    expect(ran).toBe(0)
  })
  it('without names that reach a prototype', () => {
    const context = JSON.parse(
      '{"a":{"__proto__":{"p":1},"constructor":2,"prototype":3,"b":4},"constructor":5}',
    )
    expect(safeEval('[Object.keys(a), a.p, typeof constructor]', { context })).toEqual([
      ['b'],
      null,
      'function',
    ])
  })
  it('that the code cannot use to reach the host', () => {
    const context = { list: [1], deep: { a: 1 } }
    safeEval('list.push(2); deep.a = 9; list.__proto__.x = 1', { context })
    expect(context).toEqual({ list: [1], deep: { a: 1 } })
  })
  it('and rejects values without a JSON form', () => {
    const loop: Record<string, unknown> = {}
    loop.loop = loop
    for (const context of [loop, { big: 1n }, [1] as unknown as Record<string, unknown>])
      expect(failure(() => safeEval('1', { context }))).toMatchObject({ code: 'invalid-input' })
  })
})

describe('the result is a copy', () => {
  it.each<[string, unknown]>([
    ['({ get a() { return 1 } })', { a: 1 }],
    ['({ toJSON() { return { b: 2 } } })', { b: 2 }],
    ['new Proxy({ a: 1 }, { get: (t, k) => k === "toJSON" ? undefined : 7 })', { a: 7 }],
    ['Object.assign([1], { extra: 2 })', [1]],
    ['JSON.parse(\'{"__proto__":{"polluted":1},"constructor":{"prototype":{"x":1}},"a":1}\')', { a: 1 }],
    ['JSON.stringify = () => "no"; JSON.parse = null; ({ a: 1 })', { a: 1 }],
    ['Object.prototype.toJSON = () => 5; ({})', 5],
  ])('%s', (code, value) => {
    expect(safeEval(code)).toEqual(value)
  })
  it.each<[string, string]>([
    ['({ get a() { while (true) {} } })', 'timeout'],
    ['({ toJSON() { for (;;) {} } })', 'timeout'],
    ['new Proxy({}, { ownKeys() { for (;;) {} } })', 'timeout'],
    ['throw { toString() { for (;;) {} } }', 'timeout'],
    ['"x".repeat(2 ** 20)', 'resource-exhausted'],
    ['new Array(1e6).fill(1)', 'resource-exhausted'],
    ['let r = 1; for (let i = 0; i < 800; i++) r = [r]; r', 'resource-exhausted'],
  ])('%s is %s', (code, expected) => {
    expect(failureOf(code, expected === 'timeout' ? 200 : 5000)).toMatchObject({ code: expected })
  })
  it('limited to the requested size', () => {
    expect(safeEval('"x".repeat(2 ** 20)', { outputBytes: 2 ** 21 })).toHaveLength(2 ** 20)
    expect(failure(() => safeEval('"abc"', { outputBytes: 4 }))).toMatchObject({ code: 'resource-exhausted' })
  })
})

describe('safeEvalAsync', () => {
  it.each<[string, unknown]>([
    ['await Promise.resolve(5)', 5],
    ['return await Promise.resolve(6)', 6],
    ['const a = await 1; const b = await a; a + b', 2],
    ['1 + 1', 2],
    ['Promise.resolve({ a: 1 })', { a: 1 }],
    ['let n = 0; for await (const x of [1, 2, 3]) n += x; n', 6],
    ['({ then(resolve) { resolve(7) } })', 7],
    ['await import("fs").catch(() => "refused")', 'refused'],
  ])('%s', async (code, value) => {
    expect(await safeEvalAsync(code)).toEqual(value)
  })
  it.each<[string, string]>([
    ['await 1; while (true) {}', 'timeout'],
    ['(function f() { Promise.resolve().then(f) })(); 1', 'timeout'],
    ['async function f() { for (;;) await 1 } await f()', 'timeout'],
    ['try { await 1; for (;;) {} } finally { for (;;) {} }', 'timeout'],
    ['await 1; const a = []; for (;;) a.push(new ArrayBuffer(1e6))', 'resource-exhausted'],
  ])('%s is %s', async (code, expected) => {
    const started = performance.now()
    // Memory must run out before the deadline, even on a busy machine.
    const timeoutMs = expected === 'timeout' ? 400 : 20_000
    await expect(safeEvalAsync(code, { timeoutMs })).rejects.toMatchObject({ code: expected })
    if (process.env.RINGFENCE_FULL) expect(performance.now() - started).toBeLessThan(2500)
  })
  it.each<[string, RegExp]>([
    ['await Promise.reject(new Error("no"))', /^Error: no$/],
    ['Promise.reject("no")', /^no$/],
    ['return Promise.reject("no")', /^no$/],
    ['await new Promise(() => {})', /^the code waits for something that never comes$/],
    ['return }', /^SyntaxError: /],
    ['await', /^SyntaxError: /],
  ])('%s throws', async (code, message) => {
    const error: unknown = await safeEvalAsync(code).catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(EvalThrew)
    expect((error as Error).message).toMatch(message)
  })
  it('does not block the event loop, and keeps concurrent evaluations separate', async () => {
    let ticks = 0
    const timer = setInterval(() => ticks++, 10)
    const spins = Array.from({ length: 3 }, () =>
      safeEvalAsync('for (;;) {}', { timeoutMs: 300 }).catch(() => 'late'),
    )
    const sums = Array.from({ length: 20 }, (_, n) => safeEvalAsync('await n', { context: { n } }))
    expect(await Promise.all(spins)).toEqual(['late', 'late', 'late'])
    expect(await Promise.all(sums)).toEqual(Array.from({ length: 20 }, (_, n) => n))
    clearInterval(timer)
    expect(ticks).toBeGreaterThan(5)
  })
  it('receives an answer that arrived while the event loop was blocked', async () => {
    const answer = safeEvalAsync('1', { timeoutMs: 50 })
    await new Promise((resolve) => setTimeout(resolve, 0))
    expect(failureOf('for (;;) {}', 300)).toMatchObject({ code: 'timeout' })
    expect(await answer).toBe(1)
  })
})

describe('safeEvalCondition', () => {
  it.each<[string, boolean]>([
    ['x > 3', true],
    ['x < 3', false],
    ['Infinity', true],
    ['1n', true],
    ['() => 0', true],
    ['NaN', false],
    ['""', false],
    ['unknown.prop', false],
    ['1 +', false],
    ['throw 1', false],
    ['(function f() { f() })()', false],
  ])('%s is %s', (code, value) => {
    expect(safeEvalCondition(code, { context: { x: 5 } })).toBe(value)
  })
  it('is false at the deadline and for a context that cannot be copied', () => {
    expect(safeEvalCondition('for (;;) {}', { timeoutMs: 50 })).toBe(false)
    expect(safeEvalCondition('true', { context: { big: 1n } })).toBe(false)
  })
})

describe('safeInterpolate', () => {
  it('scans a template once, even with many unclosed expressions', () => {
    // A regular expression searched for the end from each of them: seconds for the first, minutes for the second.
    const started = performance.now()
    for (const template of ['{{'.repeat(50_000), '{{'.repeat(1_000_000), `${'{{'.repeat(500_000)}}`])
      expect(safeInterpolate(template, {})).toBe(template)
    if (process.env.RINGFENCE_FULL) expect(performance.now() - started).toBeLessThan(1500)
    expect(safeInterpolate('{{a}}{{b}} {{ {{a}} }}', { a: 1, b: 2 })).toMatch(/^12 /)
  })

  it.each<[string, string]>([
    ['{{a}} + {{b}} = {{a + b}}', '3 + 4 = 7'],
    ['{{unknown.prop}} {{a}}', '{{unknown.prop}} 3'],
    ['{{obj.nested.value}}', 'deep 🦊'],
    ['{{ obj.nested }}', '{"value":"deep 🦊"}'],
    ['{{ ({ a }) }}', '{"a":3}'],
    ['{{ a // note }}', '3'],
    ['{{ a; b }}', '{{ a; b }}'],
    ['{{ a) + (b }}', '7'],
    ['{{null}} {{NaN}} {{1n}} {{"$&"}}', 'null NaN 1 $&'],
    ['{{ "{{b}}" }}', '{{ "{{b}}" }}'],
    ['no braces { here }', 'no braces { here }'],
    ['{{}}', '{{}}'],
    [
      '{{ this.constructor.constructor("return process")() }}',
      '{{ this.constructor.constructor("return process")() }}',
    ],
  ])('%s', (template, text) => {
    expect(safeInterpolate(template, { a: 3, b: 4, obj: { nested: { value: 'deep 🦊' } } })).toBe(text)
  })
  it('takes one second in total', () => {
    const started = performance.now()
    expect(
      safeInterpolate('{{a}} {{for_()}} {{for_()}} {{a}}'.replaceAll('for_()', '(() => { for (;;); })()'), {
        a: 1,
      }),
    ).toMatch(/^1 \{\{.*\{\{a\}\}$/)
    if (process.env.RINGFENCE_FULL) expect(performance.now() - started).toBeLessThan(2000)
  })
})

it('can be started early', async () => {
  await loadEngine()
  const started = performance.now()
  safeEval('1')
  if (process.env.RINGFENCE_FULL) expect(performance.now() - started).toBeLessThan(500)
})
