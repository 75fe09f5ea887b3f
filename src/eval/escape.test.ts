import { afterAll, describe, expect, it } from 'vitest'
import { type EvalOptions, EvalThrew, safeEval, safeEvalAsync, safeInterpolate } from './safe-eval.ts'

const before = fingerprint()
afterAll(() => expect(fingerprint()).toBe(before))

/** The host's prototypes and their functions: no evaluation may change them. */
function fingerprint(): string {
  const owners = [Object, Array, Function, String, Promise, Error, RegExp, Map].map(
    (one) => one.prototype as object,
  )
  const names = [...owners, JSON, Math, Reflect, globalThis].map((one) =>
    Reflect.ownKeys(one).map(String).sort(),
  )
  return JSON.stringify([names, String(JSON.parse), String(Object.prototype.toString), typeof process.exit])
}

const CONTEXT = {
  list: [1],
  deep: { a: { b: 1 } },
  text: 'x',
  f: () => 1,
  when: new Date(0),
  error: new Error('host'),
}
const outcome = (code: string, limits: EvalOptions = { timeoutMs: 500 }): unknown => {
  try {
    return safeEval(code, { context: CONTEXT, ...limits })
  } catch (error) {
    return error
  }
}

/** Ways to reach the outermost `Function`, from known escapes of expression evaluators and of vm2; all must fail. */
const WAYS = [
  'Object.constructor',
  'this.constructor.constructor',
  'globalThis.constructor.constructor',
  'list.constructor.constructor',
  'deep.a.constructor.constructor',
  'text.constructor.constructor',
  'when.constructor.constructor',
  '(() => {}).constructor',
  '(class {}).constructor',
  'Reflect.get(list, "constructor").constructor',
  'Object.getPrototypeOf(Object.getPrototypeOf(list)).constructor.constructor',
  'error.constructor.constructor',
  'new Proxy(list, {}).constructor.constructor',
  'Symbol.iterator.constructor.constructor',
  'Promise.resolve().then.constructor',
  'JSON.parse.constructor',
  'Math.random.constructor',
  'Reflect.construct(Object, [], Function).constructor.constructor',
  'Array.from.call(function () { return this }, [1]).constructor.constructor',
]

describe('the outermost Function has no access to the host', () => {
  const wanted = [
    'process',
    'require',
    'module',
    'global',
    'Buffer',
    'fetch',
    'setTimeout',
    'WebAssembly',
    'import_',
  ]
  it.each(WAYS)('%s', (way) => {
    const found = outcome(`const F = ${way}; F("return this").call(undefined); ${JSON.stringify(wanted)}
      .filter((name) => F("return typeof " + name)() !== "undefined")`)
    expect(found).toEqual([])
  })
  it('nor do async and generator functions', async () => {
    const code = `[await (async () => {}).constructor("return typeof process")(),
      (function* () {}).constructor("yield typeof process")().next().value,
      (await (async function* () {}).constructor("yield typeof require")().next()).value]`
    expect(await safeEvalAsync(code)).toEqual(['undefined', 'undefined', 'undefined'])
  })
  it.each(WAYS)('%s gives no process', (way) => {
    const found = outcome(
      `${way}("return process.getBuiltinModule('fs').readFileSync('/etc/passwd', 'utf8')")()`,
    )
    expect(JSON.stringify(found ?? null)).not.toContain('root:')
  })
})

describe('no host object is reachable', () => {
  it('from the global object', () => {
    const names = safeEval('Object.getOwnPropertyNames(globalThis)') as string[]
    const hostile =
      /^(process|require|module|exports|global|Buffer|fetch|console|set\w+|clear\w+|std|os|bjs|print|scriptArgs|Worker|WebAssembly|Atomics|gc|load\w*|navigator)$/
    expect(names.filter((name) => hostile.test(name))).toEqual([])
    expect(names).toContain('JSON')
  })
  it.each([
    'require("fs")',
    'process.exit(1)',
    'process.mainModule.require("child_process").execSync("id")',
    'module.exports',
    'import.meta',
    'fetch("http://127.0.0.1/")',
    'setTimeout(() => {}, 0)',
    'new Worker("x")',
    'WebAssembly.Module',
    'console.log(1)',
    'f()',
    'arguments.callee.caller',
    'Function.prototype.caller',
    'Error.prepareStackTrace = (_, frames) => frames[0].getThis(); new Error().stack.getThis()',
    'Object.defineProperty(Error, "prepareStackTrace", { value: (_, f) => f }); new Error().stack[0].getFunction()',
  ])('%s throws', (code) => {
    expect(outcome(code)).toBeInstanceOf(EvalThrew)
  })
  it('from a stack overflow error', () => {
    const code = `const r = () => { try { return r() } catch (e) { return e } }
      const F = r().constructor.constructor; F("return typeof process")()`
    expect(outcome(code)).toBe('undefined')
  })
  it.each([
    'import("fs")',
    'import("node:child_process")',
    'import("file:///etc/passwd")',
    'import("data:text/javascript,1")',
  ])('%s is refused', async (code) => {
    await expect(safeEvalAsync(`await ${code}`)).rejects.toBeInstanceOf(EvalThrew)
  })
  it('after an await, in a rejection or in a thenable', async () => {
    const code = `const seen = []
      const then = (resolve) => { seen.push(resolve.constructor("return typeof process")()); resolve(1) }
      await { then }
      try { await import("x") } catch (e) { seen.push(e.constructor.constructor("return typeof process")()) }
      class P extends Promise {}
      await P.resolve(1).finally(() => seen.push(P.constructor("return typeof process")()))
      seen`
    expect(await safeEvalAsync(code)).toEqual(['undefined', 'undefined', 'undefined'])
  })
  it('from a template', () => {
    const template = '{{Object.constructor("return process")().pid}}'
    expect(safeInterpolate(template, CONTEXT)).toBe(template)
  })
  it('and no stack trace contains a host file', () => {
    const stack = String(
      safeEval('new Error("x").stack + list.map(() => new Error("y").stack)', { context: CONTEXT }),
    )
    expect(stack).not.toMatch(/\/|node:|worker|\.ts/)
  })
})

describe('prototypes of the host are not changed', () => {
  it.each([
    'Object.prototype.polluted = 1',
    'Array.prototype.map = () => "owned"; list.map()',
    'JSON.parse = () => "owned"; JSON.stringify = () => "owned"',
    'list.__proto__.polluted = deep.__proto__.polluted = 1',
    'list.constructor.prototype.polluted = 1',
    'Object.setPrototypeOf(Object.prototype, null); 1',
    'Object.defineProperty(Object.prototype, "then", { get() { return 1 } }); 1',
    'Promise.prototype.then = () => "owned"; 1',
    'Function.prototype.call = () => "owned"; String = Boolean = Reflect = null; 1',
    'for (const k of Object.getOwnPropertyNames(globalThis)) try { delete globalThis[k] } catch {}; 1',
    'Object.freeze(Object.prototype); Object.freeze(globalThis); 1',
  ])('%s', (code) => {
    outcome(code)
    expect(fingerprint()).toBe(before)
    expect(({} as { polluted?: unknown }).polluted).toBeUndefined()
  })
  it('and the next evaluation starts with a clean state', () => {
    safeEval('globalThis.left = 1; Object.prototype.left = 1; JSON.parse = null; Math.random = () => 4')
    expect(safeEval('[typeof left, "left" in {}, typeof JSON.parse, Math.random() < 1]')).toEqual([
      'undefined',
      false,
      'function',
      true,
    ])
  })
})

describe('the deadline ends', () => {
  it.each<[string, string]>([
    ['a loop', 'while (true) {}'],
    ['a loop that catches', 'for (;;) try { for (;;) {} } catch {} finally { for (;;) {} }'],
    ['a regular expression', '/^(a+)+$/.test("a".repeat(40) + "b")'],
    ['one call that the engine cannot interrupt', 'new Array(4e9).join("")'],
    ['another', 'Array.prototype.reverse.call({ length: 2 ** 52 })'],
    ['large numbers', 'let n = 3n; for (;;) n = (n * n + 7n) % (1n << 200000n)'],
    ['a sort', '[3, 1, 2].sort(() => { for (;;) {} })'],
    ['an iterator', '[...{ *[Symbol.iterator]() { for (;;) yield }}]'],
    [
      'a generator that will not end',
      'function* g() { try { yield } finally { for (;;) {} } } for (const x of g()) break',
    ],
  ])('%s', (_, code) => {
    const started = performance.now()
    expect(outcome(code)).toMatchObject({ code: 'timeout' })
    if (process.env.RINGFENCE_FULL) expect(performance.now() - started).toBeLessThan(2500)
    expect(outcome('1')).toBe(1)
  })
})

describe('memory is bounded', () => {
  const rss = (): number => process.memoryUsage().rss / 2 ** 20
  it.each<[string, string]>([
    ['strings', 'const a = []; for (let i = 0; ; i++) a.push("x".repeat(1e5) + i)'],
    ['one string', 'let s = "x"; for (;;) s += s'],
    ['a flat string', 'let s = "xy"; for (;;) s = (s + s).split("").join("")'],
    ['arrays', 'const a = []; for (;;) a.push(new Array(1e4).fill(1))'],
    ['one array', 'new Array(1e9).fill(7)'],
    ['buffers', 'const a = []; for (;;) a.push(new ArrayBuffer(1e6))'],
    ['one buffer', 'new ArrayBuffer(2 ** 31 - 1); new Uint8Array(1e9)'],
    [
      'a growing buffer',
      'const b = new ArrayBuffer(8, { maxByteLength: 2 ** 30 }); for (let n = 8; ; n *= 2) b.resize(n)',
    ],
    ['maps', 'const m = new Map(); for (let i = 0; ; i++) m.set(i, [i])'],
    [
      'closures',
      'let f = () => 1; for (;;) { const g = f; const big = new Array(1e3).fill(g); f = () => [g, big] }',
    ],
    [
      'the error itself',
      'const a = []; for (;;) try { for (;;) a.push("x".repeat(1e6) + a.length) } catch (e) { throw e }',
    ],
  ])('%s', (_, code) => {
    const start = rss()
    expect(outcome(code, { timeoutMs: 15_000, memoryMb: 32 })).toMatchObject({ code: 'resource-exhausted' })
    // The thread that used it is still ending, so this is close to the peak.
    expect(rss() - start).toBeLessThan(200)
  })
  it.each([
    '(function f() { return f() + 1 })()',
    'const f = () => [1].map(f); f()',
    'eval("(".repeat(1e5))',
    'JSON.parse("[".repeat(1e6))',
    'const o = { toString() { return "" + o } }; "" + o',
    'let p = {}; for (let i = 0; i < 1e5; i++) p = new Proxy(p, {}); p.x',
  ])('the stack, too: %s', (code) => {
    expect(outcome(code, { timeoutMs: 15_000 })).toMatchObject({ code: 'resource-exhausted' })
    expect(outcome('1')).toBe(1)
  })
  it('errors caught by the code do not matter', () => {
    expect(outcome('let n = 0; try { (function f() { n++; f() })() } catch (e) { n = e.name } n')).toBe(
      'RangeError',
    )
  })
  it('a hundred evaluations leak nothing', { timeout: 30_000 }, async () => {
    for (let i = 0; i < 20; i++) safeEval('new Array(1e4).fill(i).length', { context: { i } })
    const start = rss()
    for (let i = 0; i < 100; i++) {
      safeEval('const a = new Array(5e4).fill({ i }); a.length', { context: { i } })
      await safeEvalAsync('await 1; "x".repeat(1e5).length')
    }
    expect(rss() - start).toBeLessThan(80)
  })
})
