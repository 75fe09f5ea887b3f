import { describe, expect, it } from 'vitest'
import type { Json } from '../model/event.ts'
import { canonical } from './canonical.ts'

describe('canonical JSON (RFC 8785)', () => {
  // Appendix B of the RFC, by their IEEE 754 bits.
  const numbers: readonly (readonly [bits: string, text: string])[] = [
    ['0000000000000000', '0'],
    ['8000000000000000', '0'],
    ['0000000000000001', '5e-324'],
    ['8000000000000001', '-5e-324'],
    ['7fefffffffffffff', '1.7976931348623157e+308'],
    ['4340000000000000', '9007199254740992'],
    ['c340000000000000', '-9007199254740992'],
    ['4430000000000000', '295147905179352830000'],
    ['44b52d02c7e14af5', '9.999999999999997e+22'],
    ['44b52d02c7e14af6', '1e+23'],
    ['44b52d02c7e14af7', '1.0000000000000001e+23'],
    ['444b1ae4d6e2ef4e', '999999999999999700000'],
    ['444b1ae4d6e2ef50', '1e+21'],
    ['3eb0c6f7a0b5ed8c', '9.999999999999997e-7'],
    ['3eb0c6f7a0b5ed8d', '0.000001'],
    ['41b3de4355555553', '333333333.3333332'],
    ['becbf647612f3696', '-0.0000033333333333333333'],
    ['43143ff3c1cb0959', '1424953923781206.2'],
  ]
  it.each(numbers)('prints the number %s as %s', (bits, text) => {
    expect(canonical(Buffer.from(bits, 'hex').readDoubleBE())).toBe(text)
  })

  it('orders keys by UTF-16 code unit, at every depth', () => {
    const value = {
      '\u20ac': 1,
      '\r': 2,
      '\ufb33': 3,
      '1': 4,
      '\u{1f600}': 5,
      '\u0080': 6,
      '\u00f6': 7,
      a: { b: 1, B: 2 },
    }
    expect(canonical(value)).toBe(
      '{"\\r":2,"1":4,"a":{"B":2,"b":1},"\u0080":6,"\u00f6":7,"\u20ac":1,"\u{1f600}":5,"\ufb33":3}',
    )
  })

  it('escapes exactly the characters that the RFC requires', () => {
    expect(canonical('\u20ac$\u000f\nA\'B"\\"/\b\t\f\r\u007f\u2028')).toBe(
      '"\u20ac$\\u000f\\nA\'B\\"\\\\\\"/\\b\\t\\f\\r\u007f\u2028"',
    )
  })

  it('is its own fixed point', () => {
    const text = canonical({
      numbers: [333333333.3333333, 1e30, 4.5, 2e-3],
      literals: [null, true, false],
      s: '',
    })
    expect(text).toBe('{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002],"s":""}')
    expect(canonical(JSON.parse(text))).toBe(text)
  })

  const hole: unknown[] = []
  hole.length = 1
  const deep = (depth: number): unknown => (depth === 0 ? 1 : [deep(depth - 1)])
  it.each<[string, unknown]>([
    ['a lone high surrogate', '\ud800'],
    ['a lone low surrogate in a key', { '\udc00x': 1 }],
    ['NaN', Number.NaN],
    ['infinity', [Number.NEGATIVE_INFINITY]],
    ['undefined', { a: undefined }],
    ['a hole', hole],
    ['a bigint', 1n],
    ['a function', () => 1],
    ['a date', new Date(0)],
    ['a map', new Map()],
    ['great depth', deep(5000)],
  ])('refuses %s', (_name, value) => {
    expect(() => canonical(value as Json)).toThrow(/canonical JSON/)
  })

  it('never quotes rejected input', () => {
    expect(() => canonical({ 'sk-secret': 'sk-secret\ud800' })).toThrow(/^(?!.*sk-secret)/)
  })
})
