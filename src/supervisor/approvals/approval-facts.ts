import { createHash } from 'node:crypto'
import { observeProgram } from '../../host/process/program.ts'
import type { Decision } from '../../model/decision.ts'
import { type ApprovalFacts, approvalKey, type ProgramIdentity } from '../../policy/approval.ts'

/** A command that a human is asked about, and where it would run. */
export type ApprovalSubject = {
  readonly command: ApprovalFacts['command']
  readonly cwd: string
  readonly env: Readonly<Record<string, string>>
  /** Names every program that would run. */
  readonly decision: Pick<Decision, 'commands'>
}

/** Finds the file behind a program's name; `null` where there is none. */
export type ObserveProgram = (name: string, cwd: string, path?: string) => ProgramIdentity | null

/** The shell that runs a line. */
const SHELL = '/bin/bash'

/** Observes the programs of a command as they are now. */
export function approvalFacts(
  { command, cwd, env, decision }: ApprovalSubject,
  observe: ObserveProgram = observeProgram,
): ApprovalFacts {
  const first = 'line' in command ? [SHELL] : command.argv.slice(0, 1)
  const names = new Set([...first, ...decision.commands.flatMap(({ argv }) => argv.slice(0, 1))])
  const programs = Object.fromEntries([...names].map((name) => [name, observe(name, cwd, env.PATH)]))
  return { command, cwd, env, programs }
}

/** A digest, because the key itself holds the environment's values. */
const digestOf = (facts: ApprovalFacts): string =>
  createHash('sha256').update(approvalKey(facts)).digest('hex')

/** What became of a question. */
export type ApprovalAnswer = {
  readonly state: 'approved' | 'rejected' | 'expired'
  /** Who answered: a key's id, or how it was answered on a terminal. */
  readonly by?: string | undefined
  /** What they said to it, or why nobody could. */
  readonly reason?: string | undefined
  /** The question's own id, where it has one; then whoever asked has recorded the answer. */
  readonly approvalId?: string | undefined
}

/** A caller's answer: yes, no, or with who and why. */
export type Answered =
  | boolean
  | { readonly approved: boolean; readonly by?: string; readonly reason?: string }
  | ApprovalAnswer

function answerOf(answered: Answered): ApprovalAnswer {
  if (typeof answered === 'boolean') return { state: answered ? 'approved' : 'rejected' }
  if ('state' in answered) return answered
  const { approved, ...said } = answered
  return { ...said, state: approved ? 'approved' : 'rejected' }
}

/**
 * Asks a human and takes the answer only for what was asked about: the facts are observed before the question and
 * again after the answer, and `isSame` tells whether anything changed in between.
 */
export async function askedUnchanged(
  subject: ApprovalSubject,
  ask: () => Answered | Promise<Answered>,
  observe: ObserveProgram = observeProgram,
): Promise<{ readonly answer: ApprovalAnswer; readonly isSame: boolean }> {
  const asked = digestOf(approvalFacts(subject, observe))
  const answer = answerOf(await ask())
  const isSame = answer.state !== 'approved' || digestOf(approvalFacts(subject, observe)) === asked
  return { answer, isSame }
}
