import { expect, test } from 'vitest'
import { timeText } from './time-text.ts'

test('times that no date can hold become the nearest one that can be written', () => {
  expect(timeText(Date.UTC(2026, 0, 2))).toBe('2026-01-02T00:00:00.000Z')
  expect(timeText(8.7e15)).toBe('9999-12-31T23:59:59.999Z')
  expect(timeText(Number.NEGATIVE_INFINITY)).toBe('0001-01-01T00:00:00.000Z')
  expect(timeText(Number.NaN)).toBe('1970-01-01T00:00:00.000Z')
})
