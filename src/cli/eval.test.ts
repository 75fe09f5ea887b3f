import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { evaluate } from './eval.ts'

let out: string
let err: string
beforeEach(() => {
  out = err = ''
  vi.spyOn(process.stdout, 'write').mockImplementation((text) => {
    out += String(text)
    return true
  })
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
    err += String(text)
    return true
  })
})
afterEach(() => {
  vi.restoreAllMocks()
})

describe('ringfence eval', () => {
  it.each<[readonly string[], string]>([
    [['1 + 2'], '3'],
    [['({ a: [x] })', '--context', '{"x":"ü"}'], '{"a":["ü"]}'],
    [['await Promise.resolve(5)', '--async'], '5'],
    [['undefined'], 'null'],
    [['--timeout', '1000', '--memory', '16', '--json', '"text"'], '"text"'],
    [['--', '-1'], '-1'],
  ])('%j', async (args, text) => {
    expect(await evaluate(args)).toBe(0)
    expect([out, err]).toEqual([`${text}\n`, ''])
  })
  it.each<[readonly string[], number, RegExp]>([
    [['for (;;) {}', '--timeout', '50'], 124, /^ringfence: timeout: the code ran longer than 50 ms\n$/],
    [['await 1; for (;;) {}', '--async', '--timeout', '50'], 124, /^ringfence: timeout: /],
    [['new ArrayBuffer(5e6)', '--memory', '2'], 124, /^ringfence: resource-exhausted: .* 2 MB/],
    [['require("fs")'], 1, /^ringfence: threw: ReferenceError: require is not defined\n$/],
    [['throw new Error("a\\nb")'], 1, /^ringfence: threw: Error: a b\n$/],
    [['1 +'], 1, /^ringfence: threw: SyntaxError/],
    [['throw 5', '--json'], 1, /^\{"error":\{"code":"threw","message":"5"\}\}\n$/],
  ])('%j ends with %i', async (args, code, message) => {
    expect(await evaluate(args)).toBe(code)
    expect(out).toBe('')
    expect(err).toMatch(message)
  })
  it.each<[readonly string[], RegExp]>([
    [[], /eval takes one expression/],
    [['1', '2'], /eval takes one expression/],
    [['1', '--nope'], /unknown flag `--nope`/],
    [['1', '--context', '{'], /--context takes JSON, not `\{`/],
    [['1', '--context', '[1]'], /--context takes a JSON object/],
    [['1', '--timeout', 'soon'], /--timeout takes a number/],
    [['1', '--timeout', '0'], /timeoutMs takes a number from 1/],
    [['1', '--memory', '99999'], /memoryMb takes a number/],
  ])('%j is wrong usage', async (args, message) => {
    await expect(evaluate(args)).rejects.toMatchObject({
      code: 'invalid-input',
      exitCode: 2,
      message: expect.stringMatching(message),
    })
  })
})
