import { randomBytes } from 'node:crypto'
import { type ExecRequest, ExecSession } from '../../../supervisor/exec/exec-session.ts'
import type { OpenSandbox } from '../../../supervisor/open-sandbox.ts'
import type { SandboxSurface } from '../sandbox-request.ts'
import { assertInstalled, type CodeRequest, KERNELS, type Language, rowOf } from './languages.ts'

/** A program in the sandbox that runs code and keeps what it defined (guest/kernels). */

/** What a kernel is started with. */
export type KernelParts = {
  readonly surface: SandboxSurface
  readonly sandbox: OpenSandbox
  /** Whose output it is. */
  readonly tenant: string
  readonly language: Language
  readonly cwd: string
}

/** What a kernel says about one execution, one line of JSON each. */
type KernelMessage = { readonly type: string; readonly [field: string]: unknown }

/** While a promise that it returned is pending, the kernel is held back. */
export type MessageConsumer = (message: KernelMessage) => Promise<void> | undefined

const LINE_BYTES = 64 * 1024 * 1024
const PATIENCE_MS = 2000
const COMPLAINT = 1000
/** Every mark begins with this character, and few programs print it. */
const MARKS = '\u001e'
/** How long a kernel may take until it is ready. */
const START_MS = 60_000
const SHOWN = ['stdout', 'stderr', 'result', 'error', 'number_of_executions', 'end_of_execution', 'ready']

/** A running kernel process and its messages. */
export class Kernel {
  readonly #session: ExecSession
  readonly #language: Language
  /** SECURITY: every line with it is the kernel's, the rest is what programs printed past it; it guards no secret. */
  readonly #mark: string
  #take: MessageConsumer | undefined
  #rest = ''
  /** Standard error after the last whole piece: perhaps the begin of a mark. */
  #errors = ''
  readonly #decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() }
  /** An end that was said on standard output, and how many there were on each stream. */
  #pending: KernelMessage | undefined
  readonly #ends = { stdout: 0, stderr: 0 }
  #isReady: () => void = () => {}
  readonly #ready = new Promise<void>((resolve) => {
    this.#isReady = resolve
  })
  #over = false
  #hasStarted = false
  /** What a kernel that could not start said about it. */
  #complaint = ''

  private constructor(session: ExecSession, language: Language, mark: string) {
    this.#session = session
    this.#language = language
    this.#mark = mark
    void this.#listen()
    const late = setTimeout(() => this.stop(), START_MS).unref()
    void this.#ready.then(() => clearTimeout(late))
    // What it prints is for us alone, and gone when it is read.
    session.log.forget()
  }

  static async start({ surface, sandbox, tenant, language, cwd }: KernelParts): Promise<Kernel> {
    const { files, program, args } = rowOf(language)
    await assertInstalled(sandbox, language)
    const texts = Object.entries(files(surface.e2b.kernel))
    await Promise.all(texts.map(([name, text]) => sandbox.files.write(`${KERNELS}/${name}`, text)))
    const mark = `${MARKS}${randomBytes(12).toString('hex')} `
    const request: ExecRequest = {
      command: [program, ...args(KERNELS)],
      cwd,
      env: { RINGFENCE_KERNEL: mark.slice(1, -1) },
      stdin: 'open',
      background: true,
    }
    // The program is ours, so nobody is asked about it; what it is given to run is judged each time. A deny holds.
    const session = new ExecSession({
      sandbox,
      request,
      tenant,
      budget: surface.parts.supervisor.output,
      approve: () => true,
    })
    await session.start()
    return new Kernel(session, language, mark)
  }

  get isOver(): boolean {
    return this.#over
  }

  /** Resolves when the kernel takes code, or is over. */
  get ready(): Promise<void> {
    return this.#ready
  }

  /** Why the kernel is over. */
  get end(): string {
    if (this.#hasStarted)
      return 'the kernel ended; what it held is lost, and the next execution starts a new one'
    return `the kernel of the language \`${this.#language}\` could not start: ${this.#complaint.trim()}`
  }

  /** Runs one piece of code; what it says goes to `take`. Returns whether the kernel lived to the end of it. */
  async run(request: CodeRequest, take: MessageConsumer, signal: AbortSignal): Promise<boolean> {
    await Promise.race([this.#ready, aborted(signal)])
    let isDone = false
    const ended = new Promise<void>((resolve) => {
      this.#take = (message) => {
        isDone ||= message.type === 'end_of_execution'
        if (message.type === 'end_of_execution' || message.type === 'gone') resolve()
        return message.type === 'gone' ? undefined : take(message)
      }
    })
    const interrupt = (): void => this.#interrupt(ended)
    signal.addEventListener('abort', interrupt, { once: true })
    try {
      if (signal.aborted) return true
      if (this.#over) return false
      await this.#session.write(Buffer.from(rowOf(this.#language).encode(request)))
      await ended
      return isDone
    } finally {
      signal.removeEventListener('abort', interrupt)
      this.#take = undefined
    }
  }

  /** First as a person would, then for good: a kernel that does not listen is replaced by the next execution. */
  #interrupt(ended: Promise<void>): void {
    if (this.#over) return
    this.#session.signal('SIGINT')
    const timer = setTimeout(() => this.stop(), PATIENCE_MS)
    void ended.then(() => clearTimeout(timer))
  }

  stop(): void {
    this.#session.cancel()
  }

  async #listen(): Promise<void> {
    for await (const chunk of this.#session.log.follow(0)) {
      if ('gap' in chunk) continue
      const text = this.#decoders[chunk.stream].decode(chunk.data, { stream: true })
      if (chunk.stream === 'stdout') await this.#hear(text)
      else await this.#hearErrors(text)
    }
    this.#over = true
    this.#isReady()
    await this.#take?.({ type: 'gone' })
  }

  /** Lines with a mark are messages, also when something was printed before it without a line break. */
  async #hear(text: string): Promise<void> {
    const lines = (this.#rest + text).split('\n')
    this.#rest = lines.pop() as string
    let raw = ''
    for (const line of lines) {
      const at = line.indexOf(this.#mark)
      raw += at === -1 ? `${line}\n` : line.slice(0, at)
      if (at === -1) continue
      await this.#say('stdout', raw)
      raw = ''
      await this.#message(line.slice(at + this.#mark.length))
    }
    const at = this.#markIn(this.#rest)
    await this.#say('stdout', raw + this.#rest.slice(0, at))
    this.#rest = this.#rest.slice(at)
    if (this.#rest.length > LINE_BYTES) this.stop()
  }

  /** Where a mark begins in an unfinished line, perhaps with its first characters only. */
  #markIn(text: string): number {
    let at = text.indexOf(MARKS)
    while (at !== -1 && !this.#mark.startsWith(text.slice(at, at + this.#mark.length)))
      at = text.indexOf(MARKS, at + 1)
    return at === -1 ? text.length : at
  }

  async #message(text: string): Promise<void> {
    const message = parsed(text)
    if (message?.type === 'ready' || message?.type === 'end_of_execution') await this.#end('stdout', message)
    else if (message) await this.#take?.(message)
  }

  /** Programs write to standard error by themselves; the kernel marks there where an answer ends. */
  async #hearErrors(text: string): Promise<void> {
    const pieces = (this.#errors + text).split(`${this.#mark}\n`)
    const last = pieces.pop() as string
    for (const piece of pieces) {
      await this.#say('stderr', piece)
      await this.#end('stderr')
    }
    const at = this.#markIn(last)
    this.#errors = last.slice(at)
    await this.#say('stderr', last.slice(0, at))
  }

  /** The two streams arrive apart; an end counts when both have brought it. */
  async #end(stream: 'stdout' | 'stderr', message = this.#pending): Promise<void> {
    this.#ends[stream]++
    this.#pending = message
    if (!message || this.#ends.stderr < this.#ends.stdout) return
    this.#pending = undefined
    if (message.type === 'ready') {
      this.#hasStarted = true
      this.#isReady()
    } else await this.#take?.(message)
  }

  async #say(type: 'stdout' | 'stderr', said: string): Promise<void> {
    const { noise } = rowOf(this.#language)
    const text = noise && type === 'stderr' ? said.replace(noise, '') : said
    if (text === '') return
    if (!this.#hasStarted) this.#complaint = `${this.#complaint}${text}`.slice(-COMPLAINT)
    await this.#take?.({ type, text, timestamp: Date.now() * 1000 })
  }
}

/** Resolves when the signal is aborted. */
const aborted = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })

/** SECURITY: the kernel is the guest's; what it says is passed on only in the form that is known. */
function parsed(text: string): KernelMessage | undefined {
  try {
    const value = JSON.parse(text) as unknown
    if (typeof value !== 'object' || value === null) return undefined
    const { type } = value as { readonly type?: unknown }
    if (typeof type !== 'string' || !SHOWN.includes(type)) return undefined
    return type === 'result' ? unquoted(value as KernelMessage) : (value as KernelMessage)
  } catch {
    return undefined
  }
}

/** As with E2B: the text of a value loses one outer pair of quotes. */
function unquoted(message: KernelMessage): KernelMessage {
  const { text } = message
  if (typeof text !== 'string' || text.length < 2 || !/^(['"])[\s\S]*\1$/.test(text)) return message
  return { ...message, text: text.slice(1, -1) }
}
