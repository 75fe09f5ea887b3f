import type { Outcome } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { failure } from '../operations/operation.ts'
import type { CommandEnd, RunningToolCommand } from '../tool-sandbox.ts'

/** Output of one process that a client may read again; older output is dropped. */
const KEPT_BYTES = 4 * 1024 * 1024
/** The overhead of a chunk in addition to its bytes; a program may print single bytes. */
const PIECE_COST = 256

/** Sends a notification to the client that is attached now. While a promise that it returns is pending, the sender waits. */
export type Notify = (method: string, params: object) => unknown

/** Counts the output that is kept for a client, as `OutputBudget` does for a tenant. */
export type OutputAccount = {
  readonly add: (process: ExecServerProcess) => void
  readonly remove: (process: ExecServerProcess) => void
  readonly count: (bytes: number) => void
  readonly reclaim: () => void
}

type Chunk = { readonly seq: number; readonly stream: 'stdout' | 'stderr' | 'pty'; readonly chunk: Buffer }

/** One process of an exec-server session, with its output in numbered chunks so that a client can continue after a lost connection. */
export class ExecServerProcess {
  readonly id: string
  readonly #notify: Notify
  readonly #tty: boolean
  readonly #account: OutputAccount | undefined
  #chunks: Chunk[] = []
  #isForgotten = false
  weight = 0
  readonly isRead = false
  #seq = 0
  #exitCode: number | undefined
  #closed = false
  readonly #waiting = new Set<() => void>()
  running: RunningToolCommand | undefined

  constructor(id: string, tty: boolean, notify: Notify, account?: OutputAccount) {
    this.id = id
    this.#tty = tty
    this.#notify = notify
    this.#account = account
  }

  get isEnded(): boolean {
    return this.#closed
  }

  get hasSpare(): boolean {
    return this.#chunks.length > 0
  }

  get isOver(): boolean {
    return this.#exitCode !== undefined
  }

  /** Takes output as it comes. SECURITY: a client that does not read holds the command, and not our memory. */
  output(stream: 'stdout' | 'stderr', bytes: Uint8Array): unknown {
    const chunk: Chunk = { seq: ++this.#seq, stream: this.#tty ? 'pty' : stream, chunk: Buffer.from(bytes) }
    this.#keep(chunk)
    const sent = this.#notify('process/output', { processId: this.id, ...wire(chunk) })
    this.#wake()
    return sent
  }

  #keep(chunk: Chunk): void {
    if (this.#isForgotten) return
    if (this.#chunks.length === 0) this.#account?.add(this)
    this.#chunks.push(chunk)
    this.#count(weightOf(chunk))
    while (this.weight > KEPT_BYTES && this.#chunks.length > 1) this.dropOldest()
    this.#account?.reclaim()
  }

  dropOldest(): void {
    const oldest = this.#chunks.shift()
    if (!oldest) return
    this.#count(-weightOf(oldest))
    if (this.#chunks.length === 0) this.#account?.remove(this)
  }

  /** Drops the output: no client can ask for it any more. */
  forget(): void {
    this.#isForgotten = true
    while (this.#chunks.length > 0) this.dropOldest()
  }

  #count(bytes: number): void {
    this.weight += bytes
    this.#account?.count(bytes)
  }

  /** Follows a started command to its end. */
  follow(running: RunningToolCommand): void {
    this.running = running
    running.ended.then(
      (ended) => this.#end(exitCodeOf(ended.outcome), hintOf(ended)),
      (error: unknown) => this.refuse(error),
    )
  }

  /** Ends a process that may not run: the reason is its output, so that the model reads it. */
  refuse(error: unknown): void {
    this.#end(126, `${failure(error).text}\n`)
  }

  #end(code: number, said: string | undefined): void {
    if (said !== undefined) void this.output('stderr', Buffer.from(said))
    this.#exitCode = code
    const exited = { processId: this.id, seq: ++this.#seq, exitCode: code, sandboxDenied: false }
    void this.#notify('process/exited', exited)
    this.#closed = true
    // Ended processes are ordered by the time of their end.
    if (this.#chunks.length > 0) this.#account?.add(this)
    void this.#notify('process/closed', { processId: this.id, seq: ++this.#seq })
    this.#wake()
  }

  /** Waits for something new since `after`, for at most `waitMs`. */
  async news(after: number, waitMs: number): Promise<void> {
    const until = Date.now() + waitMs
    while (!this.isOver && this.#seq <= after && Date.now() < until) {
      await new Promise<void>((resolve) => {
        const wake = (): void => {
          clearTimeout(timer)
          this.#waiting.delete(wake)
          resolve()
        }
        const timer = setTimeout(wake, until - Date.now())
        this.#waiting.add(wake)
      })
    }
  }

  /** What is new since `after`. */
  read(after: number, maxBytes: number): object {
    const chunks: Chunk[] = []
    let bytes = 0
    for (const one of this.#chunks) {
      if (one.seq <= after) continue
      if (chunks.length > 0 && bytes + one.chunk.length > maxBytes) break
      chunks.push(one)
      bytes += one.chunk.length
    }
    const last = chunks.at(-1)?.seq ?? after
    const isAll = last >= (this.#chunks.at(-1)?.seq ?? 0)
    return {
      chunks: chunks.map(wire),
      nextSeq: isAll ? this.#seq + 1 : last + 1,
      exited: isAll && this.isOver,
      exitCode: isAll ? (this.#exitCode ?? null) : null,
      closed: isAll && this.#closed,
      failure: null,
      sandboxDenied: false,
    }
  }

  #wake(): void {
    for (const wake of [...this.#waiting]) wake()
  }
}

const weightOf = ({ chunk }: Chunk): number => chunk.length + PIECE_COST

const wire = ({ seq, stream, chunk }: Chunk) => ({ seq, stream, chunk: chunk.toString('base64') })

/** As a shell reports them: 128 and the signal's number, 124 for a limit. */
function exitCodeOf(outcome: Outcome): number {
  if (outcome.kind === 'exited') return outcome.code
  return outcome.kind === 'signaled' ? 128 + (SIGNALS[outcome.signal] ?? 9) : 124
}
const SIGNALS: Readonly<Record<string, number>> = {
  SIGHUP: 1,
  SIGINT: 2,
  SIGQUIT: 3,
  SIGKILL: 9,
  SIGTERM: 15,
}

function hintOf({ outcome, hint, violations }: CommandEnd): string | undefined {
  const failed = outcome.kind !== 'exited' || outcome.code !== 0
  const blocked = failed
    ? violations.map(({ guarantee, details }) => `blocked by the sandbox: ${guarantee}: ${details}`)
    : []
  const limit = outcome.kind === 'stopped' ? [`stopped at the ${outcome.limit} limit`] : []
  const lines = [...blocked, ...limit, ...(hint === undefined ? [] : [hint])]
  return lines.length === 0 ? undefined : lines.map((line) => `ringfence: ${line}\n`).join('')
}

/** The path of a `file:` URI; the protocol accepts no other form. */
export function pathOf(uri: string): string {
  if (!/^file:\/\/\//.test(uri) || !URL.canParse(uri))
    throw new SandboxError(
      'invalid-input',
      `\`${uri.slice(0, 200)}\` is not a file: URI with an absolute path`,
    )
  const path = decodeURIComponent(new URL(uri).pathname)
  if (path.includes('\0')) throw new SandboxError('invalid-input', 'the path contains a NUL byte')
  return path
}

/** The `file:` URI of a path. */
export const uriOf = (path: string): string => `file://${path.split('/').map(encodeURIComponent).join('/')}`
