import type { Duplex } from 'node:stream'
import type { UnlistedTarget } from '../../egress/core.ts'
import { SandboxError } from '../../model/errors.ts'
import type { AskedHost, HostScope } from '../../model/host-question.ts'
import { hostEntry } from '../../policy/network/network.ts'
import type { ApprovalAnswer } from './approval-facts.ts'

/** A host that a sandbox asks for. */
export type HostQuestion = AskedHost & {
  readonly sandboxId: string
  readonly agentId: string | undefined
  /** Aborted when no client waits any more, or the time for the answer is over. */
  readonly signal: AbortSignal
}

/** The answer, and how far a yes reaches; without a scope it is `once`. */
export type HostAnswer = ApprovalAnswer & { readonly scope?: HostScope | undefined }

/** Asks a person. */
export type AskHost = (question: HostQuestion) => Promise<HostAnswer>

type HostQuestionsParts = {
  readonly ask: (question: AskedHost & { readonly signal: AbortSignal }) => Promise<HostAnswer>
  /** Adds a host to the list of the sandbox. */
  readonly allow: (entry: string) => void
  /** Records that a host is asked for, and the answer if the caller has not recorded it. */
  readonly asked: (host: AskedHost) => Promise<void>
  readonly answered: (host: AskedHost, answer: HostAnswer) => Promise<void>
}

/** Limits of one sandbox. A program could ask about any number of names, and a person answers few. */
const MAX_OPEN = 8
const MAX_HELD = 64
const MAX_QUESTIONS = 200
const HOLD_MS = 300_000
/** Programs try again at once; a question that nobody answered is not repeated within this time. */
const EXPIRED_MS = 60_000
/** How long a question that was withdrawn may take to end. */
const WITHDRAWN_MS = 500

type OpenQuestion = {
  readonly answer: Promise<HostAnswer>
  readonly abort: AbortController
  waiting: number
}

/** The questions of one sandbox about hosts that are not on its list. Connections to one host share a question. */
export class HostQuestions {
  readonly #parts: HostQuestionsParts
  readonly #open = new Map<string, OpenQuestion>()
  /** Refused hosts, and until when. */
  readonly #refused = new Map<string, { readonly until: number; readonly answer: HostAnswer }>()
  #held = 0
  #questions = 0

  constructor(parts: HostQuestionsParts) {
    this.#parts = parts
  }

  /** Resolves when the connection may be made; rejects when it is refused. */
  async admit({ host, port, protocol, client }: UnlistedTarget): Promise<void> {
    const entry = hostEntry({ host, port })
    const known = this.#refused.get(entry)
    if (known && known.until > Date.now()) throw refusedBy(host, known.answer)
    if (this.#held >= MAX_HELD) throw tooMany(host, 'too many connections wait for an answer')
    const question = this.#open.get(entry) ?? this.#begin(entry, { host, port, protocol })
    this.#held++
    question.waiting++
    try {
      const answer = await untilClosed(question.answer, client)
      if (answer.state !== 'approved') throw refusedBy(host, answer)
    } finally {
      this.#held--
      if (--question.waiting === 0) question.abort.abort()
    }
  }

  /** Forgets refusals, because the operator has replaced the list. */
  forget(): void {
    this.#refused.clear()
  }

  #begin(entry: string, host: AskedHost): OpenQuestion {
    if (this.#open.size >= MAX_OPEN) throw tooMany(host.host, 'too many hosts wait for an answer')
    if (++this.#questions > MAX_QUESTIONS)
      throw tooMany(host.host, 'this sandbox has asked for too many hosts')
    const abort = new AbortController()
    const timer = setTimeout(() => abort.abort(), HOLD_MS)
    const answer = this.#settle(entry, host, abort.signal).finally(() => {
      clearTimeout(timer)
      this.#open.delete(entry)
    })
    // Every client may have gone when it rejects.
    answer.catch(() => {})
    const question = { answer, abort, waiting: 0 }
    this.#open.set(entry, question)
    return question
  }

  async #settle(entry: string, host: AskedHost, signal: AbortSignal): Promise<HostAnswer> {
    // INVARIANT: one record when it is asked, one when it is settled, the second before the first byte moves.
    await this.#parts.asked(host)
    const answer = await this.#ask(host, signal)
    if (answer.approvalId === undefined) await this.#parts.answered(host, answer)
    if (answer.state !== 'approved') this.#refuse(entry, answer)
    else if (answer.scope === 'sandbox' || answer.scope === 'always') this.#parts.allow(entry)
    return answer
  }

  async #ask(host: AskedHost, signal: AbortSignal): Promise<HostAnswer> {
    const expired = { state: 'expired', reason: 'no answer in time' } as const
    // The client that asked is told as well: it may have an answer, or record one. After a while this is not waited for.
    const gone = new Promise<HostAnswer>((resolve) =>
      signal.addEventListener('abort', () => setTimeout(resolve, WITHDRAWN_MS, expired).unref(), {
        once: true,
      }),
    )
    return Promise.race([this.#parts.ask({ ...host, signal }), gone])
  }

  #refuse(entry: string, answer: HostAnswer): void {
    const until = answer.state === 'rejected' ? Number.POSITIVE_INFINITY : Date.now() + EXPIRED_MS
    this.#refused.set(entry, { until, answer })
  }
}

/** The answer, unless the client disconnects first. */
function untilClosed(answer: Promise<HostAnswer>, client: Duplex | undefined): Promise<HostAnswer> {
  if (!client) return answer
  const gone = (): SandboxError => new SandboxError('wrong-state', 'the client has disconnected')
  return new Promise((resolve, reject) => {
    const onClose = (): void => reject(gone())
    if (client.destroyed) onClose()
    client.once('close', onClose)
    answer.then(resolve, reject).finally(() => client.off('close', onClose))
  })
}

function refusedBy(host: string, { state, by, reason }: HostAnswer): SandboxError {
  const who = state === 'expired' ? 'not answered' : `rejected${by === undefined ? '' : ` by ${by}`}`
  const why = reason === undefined || reason === '' ? who : `${who}: ${reason}`
  return new SandboxError('ssrf-blocked', `\`${host}\` is not an allowed host (${why})`)
}

const tooMany = (host: string, why: string): SandboxError =>
  new SandboxError('ssrf-blocked', `\`${host}\` is not an allowed host, and nobody is asked: ${why}`)
