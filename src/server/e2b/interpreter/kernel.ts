import { randomBytes } from 'node:crypto'
import { exceededBy } from '../../../model/json.ts'
import { type ExecRequest, ExecSession } from '../../../supervisor/exec/exec-session.ts'
import type { OpenSandbox } from '../../../supervisor/open-sandbox.ts'
import type { SandboxSurface } from '../sandbox-request.ts'
import { KernelOutput, MARK_START, MESSAGE_CHARACTERS, type OutputPart } from './kernel-output.ts'
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

const DROPPED = 'the server dropped output of the kernel, because its memory for output is used up'
const TOO_LONG_WHY = `a result or an error is longer than ${MESSAGE_CHARACTERS} characters; write it to a file instead`
const TOO_LONG = { type: 'error', name: 'ResultTooLong', value: TOO_LONG_WHY, traceback: TOO_LONG_WHY }
/** SECURITY: what a message may contain once it is parsed; the kernel is the guest's. */
const LIMITS = { depth: 512, values: 500_000 }
const TOO_COMPLEX_WHY = `a result has more than ${LIMITS.values} values or is nested deeper than ${LIMITS.depth}; write it to a file instead`
const TOO_COMPLEX = {
  ...TOO_LONG,
  name: 'ResultTooComplex',
  value: TOO_COMPLEX_WHY,
  traceback: TOO_COMPLEX_WHY,
}
const UNREADABLE = 'the server could not pass on the output of the kernel'
const PATIENCE_MS = 2000
const COMPLAINT = 1000
/** How long a kernel may take until it is ready. */
const START_MS = 60_000
const SHOWN = ['stdout', 'stderr', 'result', 'error', 'number_of_executions', 'end_of_execution', 'ready']

/** A running kernel process and its messages. */
export class Kernel {
  readonly #session: ExecSession
  readonly #language: Language
  #take: MessageConsumer | undefined
  /** SECURITY: what programs print past the kernel is told apart by a mark, which guards no secret. */
  readonly #output: { readonly stdout: KernelOutput; readonly stderr: KernelOutput }
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
  /** Why the server ended the kernel, if it did. */
  #stopped: string | undefined

  private constructor(session: ExecSession, { surface, tenant, language }: KernelParts, mark: string) {
    this.#session = session
    this.#language = language
    const options = { mark, budget: surface.parts.supervisor.output, tenant }
    this.#output = { stdout: new KernelOutput(options), stderr: new KernelOutput(options) }
    void this.#listen()
    const late = setTimeout(() => this.stop(), START_MS).unref()
    void this.#ready.then(() => clearTimeout(late))
    // What it prints is for us alone, and gone when it is read.
    session.log.forget()
  }

  static async start(parts: KernelParts): Promise<Kernel> {
    const { surface, sandbox, tenant, language, cwd } = parts
    const { files, program, args } = rowOf(language)
    await assertInstalled(sandbox, language)
    const texts = Object.entries(files(surface.e2b.kernel))
    await Promise.all(texts.map(([name, text]) => sandbox.files.write(`${KERNELS}/${name}`, text)))
    const mark = `${MARK_START}${randomBytes(12).toString('hex')} `
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
    return new Kernel(session, parts, mark)
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
    if (this.#stopped !== undefined) return `${this.#stopped}; what the kernel held is lost`
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
    try {
      await this.#read()
    } catch {
      this.#stopAs(UNREADABLE)
    }
    for (const output of Object.values(this.#output)) output.clear()
    this.#over = true
    this.#isReady()
    await this.#take?.({ type: 'gone' })
  }

  async #read(): Promise<void> {
    for await (const chunk of this.#session.log.follow(0)) {
      if ('gap' in chunk) {
        this.#stopAs(DROPPED)
        continue
      }
      const text = this.#decoders[chunk.stream].decode(chunk.data, { stream: true })
      for (const part of this.#output[chunk.stream].push(text)) await this.#hear(chunk.stream, part)
    }
  }

  /** Programs write to standard error by themselves; the kernel marks there only where an answer ends. */
  async #hear(stream: 'stdout' | 'stderr', part: OutputPart): Promise<void> {
    if (part.kind === 'text') await this.#say(stream, part.text)
    else if (part.kind === 'lost' && !part.isTooLong) this.#stopAs(DROPPED)
    else if (stream === 'stderr') {
      if (part.kind === 'message' && part.text === '') await this.#end('stderr')
    } else if (part.kind === 'message') await this.#message(part.text)
    else await this.#take?.(TOO_LONG)
  }

  /** Without all of its output nobody knows what the kernel said, not even that an execution has ended. */
  #stopAs(why: string): void {
    this.#stopped ??= why
    this.stop()
  }

  async #message(text: string): Promise<void> {
    if (exceededBy(text, LIMITS)) return this.#take?.(TOO_COMPLEX)
    const message = parsed(text)
    if (message?.type === 'ready' || message?.type === 'end_of_execution') await this.#end('stdout', message)
    else if (message) await this.#take?.(message)
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
