import { expect, it } from 'vitest'
import { causeOf } from './script.ts'

const NODE = 'Node.js v20.20.2'
const TRACE = ['    at readFileSync (node:fs:448:20)', '    at file:///skill/main.mjs:5:24']

it.each<[string, readonly string[], string | undefined]>([
  ['nothing', [], undefined],
  ['Python', ['Traceback (most recent call last):', '    at = 1', 'KeyError: 3'], 'KeyError: 3'],
  [
    'Node',
    ['node:fs:448', '     ^', 'Error: ENOENT: x', ...TRACE, "  code: 'ENOENT'", '}', NODE],
    'Error: ENOENT: x',
  ],
  ['two lines', ['main.mjs:1', 'RangeError: first', 'second', ...TRACE, NODE], 'RangeError: first'],
  ['an own class', ['main.mjs:1', 'Refused: no', ...TRACE, NODE], 'Refused: no'],
  [
    'a cause',
    ['x:1', 'Error: outer', ...TRACE, '  [cause]: TypeError: inner', `  ${TRACE[0]}`, NODE],
    'Error: outer',
  ],
  ['no error', ['x:1', 'plain', '(Use `node --trace-uncaught ...` to show where)', NODE], 'plain'],
])('finds the cause of a failure in the output of %s', (_, lines, cause) =>
  expect(causeOf(lines)).toBe(cause),
)
