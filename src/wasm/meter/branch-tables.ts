import { ByteReader } from './bytes.ts'
import { skipInstruction } from './immediates.ts'
import { OP } from './opcodes.ts'

const OPENS: ReadonlySet<number> = new Set([OP.block, OP.loop, OP.if, OP.try, OP.tryTable])

/**
 * The blocks of a function that branch tables target, numbered in the order in which they open; the function's body is
 * number 0. All targets of a table must be reached with the same fuel owed.
 */
export function tableTargets(bytes: Uint8Array, bodyAt: number, end: number): ReadonlySet<number> {
  const targets = new Set<number>()
  const reader = new ByteReader(bytes, bodyAt)
  const open = [0]
  let opened = 0
  while (reader.at < end) {
    const { at } = reader
    const op = skipInstruction(reader)
    if (OPENS.has(op)) open.push(++opened)
    else if (op === OP.end || op === OP.delegate) open.pop()
    else if (op === OP.brTable) noteTargets(new ByteReader(bytes, at + 1), open, targets)
  }
  return targets
}

function noteTargets(reader: ByteReader, open: readonly number[], targets: Set<number>): void {
  for (let left = reader.u32() + 1; left > 0; left--)
    targets.add(open[open.length - 1 - reader.u32()] as number)
}
