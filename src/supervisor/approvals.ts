import { createHash } from 'node:crypto'
import { observeProgram } from '../host/program.ts'
import type { Decision } from '../model/decision.ts'
import { type ApprovalFacts, approvalKey, type ProgramIdentity } from '../policy/approval.ts'

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

/**
 * Asks a human and takes the answer only for what was asked about: the facts are observed before the question and
 * again after the answer, and a change in between makes it a no.
 */
export async function approvedUnchanged(
  subject: ApprovalSubject,
  ask: () => boolean | Promise<boolean>,
  observe: ObserveProgram = observeProgram,
): Promise<boolean> {
  const asked = digestOf(approvalFacts(subject, observe))
  return (await ask()) && digestOf(approvalFacts(subject, observe)) === asked
}

export type ApprovalParts = {
  readonly observe?: ObserveProgram
  /** Milliseconds since the epoch. */
  readonly now: () => number
  /** How long an answer lasts; an hour unless told. */
  readonly lastsMs?: number
}

const HOUR_MS = 3_600_000

/** A question that waits for its answer, or the answer. */
export type PendingApproval = { readonly digest: string; readonly expiresAt: number }

/** Approvals that are remembered: each for one exact command, until it expires or anything about it changes. */
export class Approvals {
  readonly #observe: ObserveProgram
  readonly #now: () => number
  readonly #lastsMs: number
  /** INVARIANT: digests of approved facts only, with the time that each ends. */
  readonly #approved = new Map<string, number>()

  constructor({ observe = observeProgram, now, lastsMs = HOUR_MS }: ApprovalParts) {
    this.#observe = observe
    this.#now = now
    this.#lastsMs = lastsMs
  }

  /** What a human is shown, fixed before they look. */
  ask(subject: ApprovalSubject): PendingApproval {
    return { digest: this.#digest(subject), expiresAt: this.#now() + this.#lastsMs }
  }

  /** The human's yes. Too late is no. */
  approve({ digest, expiresAt }: PendingApproval): void {
    if (expiresAt > this.#now()) this.#approved.set(digest, expiresAt)
  }

  /** Whether this very command, as everything stands now, has been approved. */
  covers(subject: ApprovalSubject): boolean {
    const digest = this.#digest(subject)
    const expiresAt = this.#approved.get(digest)
    if (expiresAt === undefined) return false
    if (expiresAt > this.#now()) return true
    this.#approved.delete(digest)
    return false
  }

  /** Takes an answer back. */
  revoke({ digest }: PendingApproval): void {
    this.#approved.delete(digest)
  }

  #digest(subject: ApprovalSubject): string {
    return digestOf(approvalFacts(subject, this.#observe))
  }
}
