import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { judgeLine } from '../../src/policy/commands/judge.ts'
import { compilePolicy } from '../../src/policy/policy.ts'

/** The corpus of commands with the pass criteria of `corpus.py`. */

type Row = {
  readonly id: string
  readonly cmd: string
  readonly shell?: string
  readonly expect: string
  readonly accept?: readonly string[]
  readonly must_not?: readonly string[]
  readonly kind: 'attack' | 'benign'
  readonly technique: string
}

const rowsOf = (name: string): readonly Row[] =>
  readFileSync(new URL(`../corpus/${name}`, import.meta.url), 'utf8')
    .split('\n')
    .filter((line) => line.trim() !== '')
    .map((line) => JSON.parse(line) as Row)

const policy = compilePolicy({})

function judge(row: Row): { row: Row; action: string; us: number } {
  const started = performance.now()
  const { action } = judgeLine(policy, row.cmd, {
    workspace: '/workspace',
    home: '/home/agent',
    shell: row.shell ?? 'bash',
  })
  return { row, action, us: (performance.now() - started) * 1000 }
}

describe.each([
  ['commands.jsonl', 500],
  ['fresh/commands.jsonl', 400],
  ['fresh/option-arity.jsonl', 1400],
] as const)('corpus of commands: %s', (name, least) => {
  const rows = rowsOf(name)
  for (const row of rows) judge(row)
  // The best of three runs: other processes share this machine.
  const judged = rows.map((row) => {
    const tries = [judge(row), judge(row), judge(row)]
    return { ...(tries[0] as (typeof tries)[0]), us: Math.min(...tries.map(({ us }) => us)) }
  })
  const hard = judged.filter(({ row, action }) => {
    const accept = row.accept ?? [row.expect]
    const never =
      row.must_not ?? (row.expect === 'allow' ? ['deny'] : ['allow']).filter((each) => !accept.includes(each))
    return never.includes(action)
  })
  const soft = judged.filter(({ row, action }) => !(row.accept ?? [row.expect]).includes(action))
  const share = (kind: string): number =>
    soft.filter(({ row }) => row.kind === kind).length /
    Math.max(1, rows.filter((row) => row.kind === kind).length)
  const listed = (list: typeof judged): string[] =>
    list.map(({ row, action }) => `${row.id} ${row.technique}: ${action}: ${row.cmd.slice(0, 80)}`)

  it('has enough rows', () => expect(rows.length).toBeGreaterThan(least))
  it('has no decision that is forbidden for its row', () => expect(listed(hard)).toEqual([]))
  it('asks needlessly on at most 5 % of benign lines', () =>
    expect(share('benign'), listed(soft).join('\n')).toBeLessThanOrEqual(0.05))
  it('is too lenient on at most 5 % of attacks', () =>
    expect(share('attack'), listed(soft).join('\n')).toBeLessThanOrEqual(0.05))
  // The documented times are 50 ms and 50 µs; the tests share their machine with other load.
  it('is judged within the time limits', () => {
    const times = judged.map(({ us }) => us).sort((a, b) => a - b)
    if (process.env.RINGFENCE_FULL) expect(times.at(-1)).toBeLessThan(50_000)
    if (process.env.RINGFENCE_FULL) expect(times[times.length >> 1]).toBeLessThan(1000)
  })
})
