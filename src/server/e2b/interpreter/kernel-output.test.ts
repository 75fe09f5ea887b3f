import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { OutputBudget } from '../../../supervisor/exec/output-budget.ts'
import { OutputLog } from '../../../supervisor/exec/output-log.ts'
import { KernelOutput, MARK_START, MESSAGE_CHARACTERS } from './kernel-output.ts'

const mark = `${MARK_START}abc `

function output(budget = new OutputBudget(Number.POSITIVE_INFINITY)) {
  const reader = new KernelOutput({ mark, budget, tenant: 'red' })
  /** The parts of these texts; neighbouring parts of plain text are joined. */
  const read = (...texts: readonly string[]): unknown[] => {
    const found: { kind: string; text?: string }[] = []
    for (const part of texts.flatMap((text) => [...reader.push(text)])) {
      const last = found.at(-1)
      if (part.kind === 'text' && last?.kind === 'text') last.text += part.text
      else found.push({ ...part })
    }
    return found
  }
  return { reader, read }
}

const text = (said: string) => ({ kind: 'text', text: said })
const message = (said: string) => ({ kind: 'message', text: said })
const piecesOf = (all: string, size: number): string[] =>
  Array.from({ length: Math.ceil(all.length / size) }, (_, index) =>
    all.slice(index * size, (index + 1) * size),
  )

describe('the output of a kernel', () => {
  test.each([1, 2, 3, 5, 1000])('is split the same in pieces of %i characters', (size) => {
    const all = `a\nb${mark}{"x":1}\n${mark}\nno ${MARK_START}ab mark${MARK_START}\n${mark}one ${mark}two\nend`
    expect(output().read(...piecesOf(all, size))).toEqual([
      text('a\nb'),
      message('{"x":1}'),
      message(''),
      text(`no ${MARK_START}ab mark${MARK_START}\n`),
      message('two'),
      text('end'),
    ])
  })

  test('is read the same however it arrives', () => {
    const word = fc.constantFrom(mark, MARK_START, '\n', 'x', mark.slice(0, 3), '{}')
    fc.assert(
      fc.property(fc.array(word, { maxLength: 20 }), fc.integer({ min: 1, max: 9 }), (words, size) => {
        const all = words.join('')
        expect(output().read(...piecesOf(all, size))).toEqual(output().read(all))
      }),
    )
  })

  test('has a longest message; a longer one is reported at once, and the next one is read', () => {
    const budget = new OutputBudget(Number.POSITIVE_INFINITY)
    const { read, reader } = output(budget)
    const long = 'x'.repeat(MESSAGE_CHARACTERS / 4)
    expect(read(mark, long, long)).toEqual([])
    expect(budget.used).toBeGreaterThan(MESSAGE_CHARACTERS / 2)
    expect(read(long, long)).toEqual([{ kind: 'lost', isTooLong: true }])
    expect([budget.used, reader.weight]).toEqual([0, 0])
    expect(read(long, long, long, long, long, `${mark}{}\nrest`)).toEqual([message('{}'), text('rest')])
    expect(read(`${mark}${long}\n`)).toEqual([message(long)])
    expect(budget.used).toBe(0)
  })

  test('counts single characters with their overhead', () => {
    const { read } = output()
    const parts = read(mark, ...Array.from({ length: MESSAGE_CHARACTERS / 256 + 1 }, () => 'x'))
    expect(parts).toEqual([{ kind: 'lost', isTooLong: true }])
  })

  test('gives way when other tenants need the memory for output', () => {
    const budget = new OutputBudget(10_000)
    const { read } = output(budget)
    expect(read(mark, 'x'.repeat(9000))).toEqual([])
    void new OutputLog(20_000, budget, 'blue').push('stdout', Buffer.alloc(2000))
    expect(budget.used).toBeLessThan(3000)
    expect(read('y', `\n${mark}{}\n`)).toEqual([{ kind: 'lost', isTooLong: false }, message('{}')])
  })

  test('is dropped when its own tenant has used up the memory for output', () => {
    const budget = new OutputBudget(100_000)
    const [one, other, small] = [output(budget), output(budget), output(budget)]
    const long = 'x'.repeat(90_000)
    expect(one.read(mark, long)).toEqual([])
    expect(other.read(mark, long)).toEqual([{ kind: 'lost', isTooLong: false }])
    expect(small.read(mark, 'x'.repeat(20_000), '\n')).toEqual([message('x'.repeat(20_000))])
    expect(one.read('\n')).toEqual([message(long)])
    expect(budget.used).toBe(0)
  })

  test('that waits for its reader counts, and gives way to other tenants', () => {
    const budget = new OutputBudget(10_000)
    let dropped = 0
    const release = budget.hold('red', 9000, () => dropped++)
    budget.hold('red', 500, () => dropped++)
    expect(budget.used).toBe(9500)
    void new OutputLog(20_000, budget, 'blue').push('stdout', Buffer.alloc(2000))
    expect([dropped, budget.used < 3000]).toEqual([1, true])
    release()
    expect(budget.used).toBeGreaterThan(2500)
  })

  test('costs time in proportion to its length', () => {
    const before = process.cpuUsage()
    const { read } = output()
    const chunk = 'x'.repeat(4096)
    expect(read(mark, ...Array.from({ length: 3500 }, () => chunk), '\n')).toHaveLength(1)
    expect(process.cpuUsage(before).user / 1e6).toBeLessThan(3)
  })
})
