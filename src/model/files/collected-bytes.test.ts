import fc from 'fast-check'
import { expect, test } from 'vitest'
import { CollectedBytes } from './collected-bytes.ts'

test('the bytes are complete for every split, and the chunks may be reused', () => {
  const sizes = fc.array(fc.integer({ min: 0, max: 90_000 }), { maxLength: 12 })
  fc.assert(
    fc.property(sizes, fc.option(fc.integer({ min: 0, max: 400_000 })), (lengths, most) => {
      const collected = most === null ? new CollectedBytes() : new CollectedBytes(most)
      const pieces = lengths.map((length, index) => Buffer.alloc(length, index + 1))
      const wanted = Buffer.concat(pieces)
      for (const piece of pieces) {
        collected.add(piece)
        piece.fill(0)
      }
      expect(collected.size).toBe(wanted.length)
      expect(wanted.equals(collected.all())).toBe(true)
    }),
  )
})
