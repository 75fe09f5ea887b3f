import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { ApprovalFacts } from '../../policy/approval.ts'
import { approvalKey } from '../../policy/approval.ts'
import { judgeLine } from '../../policy/commands/judge.ts'
import { compilePolicy } from '../../policy/policy.ts'
import { type Answered, type ApprovalSubject, approvalFacts, askedUnchanged } from './approval-facts.ts'

const policy = compilePolicy({})
let dir = ''
let tool = ''
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'rf-approve-'))
  mkdirSync(join(dir, 'bin'))
  tool = join(dir, 'bin', 'deploy')
  writeFileSync(tool, '#!/bin/sh\necho one\n', { mode: 0o755 })
})
afterEach(() => rmSync(dir, { recursive: true, force: true }))

function subject(line = 'deploy --now && git push', change: Partial<ApprovalSubject> = {}): ApprovalSubject {
  const decision = judgeLine(policy, line, { workspace: dir, home: '/home/agent' })
  return { command: { line }, cwd: dir, env: { PATH: `${dir}/bin:/usr/bin:/bin` }, decision, ...change }
}

/** Whether an approval is still valid if something changes before it is given. */
async function holds(change: () => void): Promise<boolean> {
  const { answer, isSame } = await askedUnchanged(subject(), () => {
    change()
    return true
  })
  return answer.state === 'approved' && isSame
}

describe('an approval', () => {
  it('is valid for the same command while nothing changes', async () => {
    expect(await holds(() => {})).toBe(true)
  })

  it.each<[string, () => ApprovalSubject]>([
    ['another command', () => subject('deploy --now && git push --force')],
    ['another space', () => subject('deploy  --now && git push')],
    ['the same words without a shell', () => subject(undefined, { command: { argv: ['deploy', '--now'] } })],
    ['another directory', () => subject(undefined, { cwd: '/' })],
    ['another variable', () => subject(undefined, { env: { ...subject().env, A: '1' } })],
    ['another PATH', () => subject(undefined, { env: { PATH: '/usr/bin:/bin' } })],
    ['no variables', () => subject(undefined, { env: {} })],
  ])('is not valid for %s', (_, other) => {
    expect(approvalKey(approvalFacts(other()))).not.toBe(approvalKey(approvalFacts(subject())))
  })

  const changes: readonly [string, () => void][] = [
    ['is written to', () => writeFileSync(tool, '#!/bin/sh\necho two\n')],
    ['grows', () => writeFileSync(tool, '#!/bin/sh\necho one\n#\n')],
    [
      'is written to with its times set back',
      () => {
        writeFileSync(tool, '#!/bin/sh\necho two\n')
        utimesSync(tool, new Date(0), new Date(0))
      },
    ],
    [
      'is replaced by a file of the same size and time',
      () => {
        writeFileSync(`${tool}2`, '#!/bin/sh\necho one\n', { mode: 0o755 })
        renameSync(`${tool}2`, tool)
      },
    ],
    ['is deleted', () => unlinkSync(tool)],
    ['can no longer be run', () => chmodSync(tool, 0o644)],
    [
      'becomes a link to another',
      () => {
        unlinkSync(tool)
        symlinkSync('/bin/true', tool)
      },
    ],
  ]
  it.each(changes)('becomes invalid when its program %s', async (_, change) => {
    expect(await holds(change)).toBe(false)
  })

  it('becomes invalid when another program of the line appears earlier in PATH', async () => {
    const plant = (): void => writeFileSync(join(dir, 'bin', 'git'), '#!/bin/sh\n', { mode: 0o755 })
    expect(await holds(plant)).toBe(false)
  })
})

describe('the answer to an approval request', () => {
  it('has its state, author and reason', async () => {
    const told = async (answered: Answered) => (await askedUnchanged(subject(), () => answered)).answer
    expect(await told(true)).toEqual({ state: 'approved' })
    expect(await told(false)).toEqual({ state: 'rejected' })
    expect(await told({ approved: false, by: 'me', reason: 'no' })).toEqual({
      state: 'rejected',
      by: 'me',
      reason: 'no',
    })
    expect(await told({ state: 'expired', approvalId: 'ap_1' })).toEqual({
      state: 'expired',
      approvalId: 'ap_1',
    })
  })

  it('is discarded if the program changed before the answer', async () => {
    const swap = (): boolean => {
      writeFileSync(tool, '#!/bin/sh\necho evil\n')
      return true
    }
    expect((await askedUnchanged(subject(), swap)).isSame).toBe(false)
  })
})

describe('the approval key', () => {
  const facts = (): ApprovalFacts => approvalFacts(subject())

  it('includes every program of the line', () => {
    expect(Object.keys(facts().programs)).toEqual(expect.arrayContaining(['/bin/bash', 'deploy', 'git']))
    expect(facts().programs.deploy?.path).toBe(tool)
  })

  it('does not depend on the order of variables', () => {
    const { env } = facts()
    const one = approvalKey({ ...facts(), env: { ...env, A: '1', B: '2' } })
    expect(approvalKey({ ...facts(), env: { B: '2', A: '1', ...env } })).toBe(one)
  })

  it('differs if text moves from one part to another', () => {
    const base = { cwd: '/', env: {}, programs: {} }
    const keys = [
      approvalKey({ ...base, command: { argv: ['a', 'b'] } }),
      approvalKey({ ...base, command: { argv: ['a b'] } }),
      approvalKey({ ...base, command: { argv: ['a","b'] } }),
      approvalKey({ ...base, command: { line: 'a b' } }),
      approvalKey({ ...base, command: { line: 'a' }, env: { b: '' } }),
      approvalKey({ ...base, command: { line: 'a' }, programs: { b: null } }),
    ]
    expect(new Set(keys).size).toBe(keys.length)
  })

  it('is the same when computed from recorded facts', () => {
    expect(approvalKey(JSON.parse(JSON.stringify(facts())) as ApprovalFacts)).toBe(approvalKey(facts()))
  })
})
