import { expect, test } from 'vitest'
import { visible, visibleJson, visibleJsonPieces, visibleLines } from './visible.ts'

const HOSTILE = [
  ...['\u0000', '\u0007', '\b', '\r', '\u001b[2J', '\u007f', '\u009b2J', '\u009d0;x\u009c'],
  ...['\u202e', '\u2066', '\u2069', '\u200e', '\u061c', '\u200b', '\u200d', '\u2060', '\ufeff', '\u00ad'],
  ...['\u2028', '\u2029', '\ud800', '\u{e0041}', '\u3164', '\u{e0100}', '\ue000'],
]

test.each(HOSTILE)('%j is shown as an escape, and as the same value in JSON', (text) => {
  for (const shown of [visible(`a${text}b`), visibleLines(`a${text}b`), visibleJson({ [`a${text}`]: text })])
    expect(shown).not.toMatch(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{DI}]/u)
  expect(visible(`a${text}b`)).toMatch(/^a\\u[0-9a-f]{4}.*b$/)
  expect(JSON.parse(visibleJson([text]))).toEqual([text])
})

test('line breaks are kept only where they are allowed; plain text is unchanged', () => {
  expect(visible('a\nb\tc')).toBe('a\\u000ab\\u0009c')
  expect(visibleLines('a\nb\tc\r')).toBe('a\nb\tc\\u000d')
  expect(visible('Grüße, 世界 — ✓ “x” 🎉')).toBe('Grüße, 世界 — ✓ “x” 🎉')
  expect(visibleJson(undefined)).toBe('null')
})

test('pieces form the same JSON, and every piece is small', () => {
  const long = '\u{202e}a\u{1f389}"\\'.repeat(50_000)
  for (const shift of ['', 'b']) {
    const value = { stdout: shift + long, code: 0, none: undefined, list: ['x'], stderr: '', 'a\u0007': long }
    const pieces = [...visibleJsonPieces(value)]
    expect(pieces.join('')).toBe(visibleJson(value))
    expect(pieces.length).toBeGreaterThan(2)
    expect(Math.max(...pieces.map((piece) => piece.length))).toBeLessThan(64 * 1024 * 13)
  }
  expect([...visibleJsonPieces({})].join('')).toBe('{}')
})
