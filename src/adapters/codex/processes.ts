import type { Outcome } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { failure } from '../operations/operation.ts'
import type { CommandEnd, RunningToolCommand } from '../tool-sandbox.ts'

/** Output of one process that a client may read again; older output is dropped. */
const KEPT_BYTES = 4 * 1024 * 1024

/** Sends a notification to the client that is attached now. */
export type Notify = (method: string, params: object) => void

type Chunk = { readonly seq: number; readonly stream: 'stdout' | 'stderr' | 'pty'; readonly chunk: Buffer }

/** One process of an exec-server session, with its output in numbered chunks so that a client can continue after a lost connection. */
export class ExecServerProcess {
  readonly id: string
  readonly #notify: Notify
  readonly #tty: boolean
  #chunks: Chunk[] = []
  #bytes = 0
  #seq = 0
  #exitCode: number | undefined
  #closed = false
  #waiting: (() => void)[] = []
  running: RunningToolCommand | undefined

  constructor(id: string, tty: boolean, notify: Notify) {
    this.id = id
    this.#tty = tty
    this.#notify = notify
  }

  get isOver(): boolean {
    return this.#exitCode !== undefined
  }

  /** Takes output as it comes. */
  output(stream: 'stdout' | 'stderr', bytes: Uint8Array): void {
    const chunk: Chunk = { seq: ++this.#seq, stream: this.#tty ? 'pty' : stream, chunk: Buffer.from(bytes) }
    this.#chunks.push(chunk)
    this.#bytes += chunk.chunk.length
    while (this.#bytes > KEPT_BYTES && this.#chunks.length > 1)
      this.#bytes -= this.#chunks.shift()?.chunk.length ?? 0
    this.#notify('process/output', { processId: this.id, ...wire(chunk) })
    this.#wake()
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
    if (said !== undefined) this.output('stderr', Buffer.from(said))
    this.#exitCode = code
    const exited = { processId: this.id, seq: ++this.#seq, exitCode: code, sandboxDenied: false }
    this.#notify('process/exited', exited)
    this.#closed = true
    this.#notify('process/closed', { processId: this.id, seq: ++this.#seq })
    this.#wake()
  }

  /** What is new since `after`; waits for something new for at most `waitMs`. */
  async read(after: number, maxBytes: number, waitMs: number): Promise<object> {
    const until = Date.now() + waitMs
    while (!this.isOver && this.#seq <= after && Date.now() < until) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, until - Date.now())
        this.#waiting.push(() => {
          clearTimeout(timer)
          resolve()
        })
      })
    }
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
    for (const resume of this.#waiting.splice(0)) resume()
  }
}

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
