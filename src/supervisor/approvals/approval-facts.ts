import { createHash } from 'node:crypto'
import { observeProgram } from '../../host/process/program.ts'
import type { Decision } from '../../model/decision.ts'
import { type ApprovalFacts, approvalKey, type ProgramIdentity } from '../../policy/approval.ts'

/** A command that needs approval, and where it would run. */
export type ApprovalSubject = {
  readonly command: ApprovalFacts['command']
  readonly cwd: string
  readonly env: Readonly<Record<string, string>>
  /** Lists every program that would run. */
  readonly decision: Pick<Decision, 'commands'>
}

/** Finds the file of a program by its name; `null` if there is none. */
export type ObserveProgram = (name: string, cwd: string, path?: string) => ProgramIdentity | null

/** The shell that runs command lines. */
const SHELL = '/bin/bash'

/** Reads the current identity of every program in a command. */
export function approvalFacts(
  { command, cwd, env, decision }: ApprovalSubject,
  observe: ObserveProgram = observeProgram,
): ApprovalFacts {
  const first = 'line' in command ? [SHELL] : command.argv.slice(0, 1)
  const names = new Set([...first, ...decision.commands.flatMap(({ argv }) => argv.slice(0, 1))])
  const programs = Object.fromEntries([...names].map((name) => [name, observe(name, cwd, env.PATH)]))
  return { command, cwd, env, programs }
}

/** A digest, because the key itself contains the values of environment variables. */
const digestOf = (facts: ApprovalFacts): string =>
  createHash('sha256').update(approvalKey(facts)).digest('hex')

/** The outcome of an approval. */
export type ApprovalAnswer = {
  readonly state: 'approved' | 'rejected' | 'expired'
  /** Who answered: the id of a key, or how it was answered on a terminal. */
  readonly by?: string | undefined
  /** The reason given with the answer, or why there was no answer. */
  readonly reason?: string | undefined
  /** The id of the approval, if it has one; then its answer is already recorded. */
  readonly approvalId?: string | undefined
}

/** A caller's answer: approved or not, optionally with who answered and why. */
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
 * Asks a human and accepts the answer only if the command is unchanged: the facts are read before the question and again
 * after the answer, and `isSame` says whether they are equal.
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
