import { randomBytes } from 'node:crypto'
import { type ExecRequest, ExecSession } from '../../supervisor/exec/exec-session.ts'
import type { LiveSandbox } from '../../supervisor/live-sandbox.ts'
import { ConnectError } from './errors.ts'
import type { E2bSurface } from './sandbox-request.ts'

/** A program in the sandbox that runs code and keeps what it defined (guest/kernels). */

const LANGUAGES = {
  python: { file: 'python.py', program: ['python3', '-u'] },
  javascript: { file: 'javascript.cjs', program: ['node', '--no-warnings'] },
} as const
/** A language of the code interpreter. */
export type Language = keyof typeof LANGUAGES

/** What a kernel is started with. */
export type KernelParts = {
  readonly surface: E2bSurface
  readonly entry: LiveSandbox
  readonly language: Language
  readonly cwd: string
}

/** What a kernel says about one execution, one line of JSON each. */
type KernelMessage = { readonly type: string; readonly [field: string]: unknown }

/** While a promise that it returned is pending, the kernel is held back. */
export type MessageConsumer = (message: KernelMessage) => Promise<void> | undefined

const LINE_BYTES = 64 * 1024 * 1024
const PATIENCE_MS = 2000
const SHOWN = ['stdout', 'stderr', 'result', 'error', 'number_of_executions', 'end_of_execution']

/** A running kernel process and its messages. */
export class Kernel {
  readonly #session: ExecSession
  /** SECURITY: every line with it is the kernel's, the rest is what programs printed past it; it guards no secret. */
  readonly #mark: string
  #take: MessageConsumer | undefined
  #rest = ''
  readonly #decoder = new TextDecoder()
  #over = false

  private constructor(session: ExecSession, mark: string) {
    this.#session = session
    this.#mark = mark
    void this.#listen()
    // What it prints is for us alone, and gone when it is read.
    session.log.forget()
  }

  static async start({ surface, entry, language, cwd }: KernelParts): Promise<Kernel> {
    const { file, program } = LANGUAGES[language]
    const path = `/tmp/.ringfence-kernels/${file}`
    const sandbox = entry.ready()
    await sandbox.files.write(path, surface.e2b.kernel(file))
    const mark = `\u001e${randomBytes(12).toString('hex')} `
    const request: ExecRequest = {
      command: [...program, path],
      cwd,
      env: { RINGFENCE_KERNEL: mark.slice(1, -1) },
      stdin: 'open',
      background: true,
    }
    // The program is ours, so nobody is asked about it; what it is given to run is judged each time. A deny holds.
    const session = new ExecSession({
      sandbox,
      request,
      tenant: entry.row.tenant,
      budget: surface.parts.supervisor.output,
      approve: () => true,
    })
    await session.start()
    return new Kernel(session, mark)
  }

  get isOver(): boolean {
    return this.#over
  }

  /** Runs one piece of code; what it says goes to `take` until the end of it. */
  async run(
    request: { readonly code: string; readonly env?: Readonly<Record<string, string>> | undefined },
    take: MessageConsumer,
    signal: AbortSignal,
  ): Promise<void> {
    const ended = new Promise<void>((resolve) => {
      this.#take = (message) => {
        const held = take(message)
        if (message.type === 'end_of_execution') resolve()
        return held
      }
    })
    const interrupt = (): void => this.#interrupt(ended)
    signal.addEventListener('abort', interrupt, { once: true })
    try {
      if (!signal.aborted) await this.#session.write(Buffer.from(`${JSON.stringify(request)}\n`))
      else return
      await ended
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
      if (chunk.stream === 'stdout') await this.#hear(this.#decoder.decode(chunk.data, { stream: true }))
      else {
        const text = Buffer.from(chunk.data).toString('utf8')
        await this.#take?.({ type: 'stderr', text, timestamp: Date.now() * 1000 })
      }
    }
    this.#over = true
    await this.#take?.({
      type: 'error',
      name: 'KernelDied',
      value: 'the kernel ended; what it held is lost, and the next execution starts a new one',
      traceback: '',
    })
    await this.#take?.({ type: 'end_of_execution' })
  }

  async #hear(text: string): Promise<void> {
    const lines = (this.#rest + text).split('\n')
    this.#rest = lines.pop() ?? ''
    if (this.#rest.length > LINE_BYTES) this.stop()
    for (const line of lines) await this.#line(line)
  }

  /** A mark in the middle of a line: something printed past the kernel, without a line break. */
  async #line(line: string): Promise<void> {
    const at = line.indexOf(this.#mark)
    const raw = at === -1 ? `${line}\n` : line.slice(0, at)
    if (raw !== '') await this.#take?.({ type: 'stdout', text: raw, timestamp: Date.now() * 1000 })
    if (at === -1) return
    const message = parsed(line.slice(at + this.#mark.length))
    if (message) await this.#take?.(message)
  }
}

/** SECURITY: the kernel is the guest's; what it says is passed on only in the form that is known. */
function parsed(text: string): KernelMessage | undefined {
  try {
    const value = JSON.parse(text) as unknown
    if (typeof value !== 'object' || value === null) return undefined
    const { type } = value as { readonly type?: unknown }
    return typeof type === 'string' && SHOWN.includes(type) ? (value as KernelMessage) : undefined
  } catch {
    return undefined
  }
}

/** The language of a name or alias; throws if there is none. */
export const languageOf = (name: string | undefined): Language => {
  const known: Readonly<Record<string, Language>> = {
    python: 'python',
    python3: 'python',
    javascript: 'javascript',
    js: 'javascript',
  }
  const language = known[(name ?? 'python').toLowerCase()]
  if (language) return language
  // Of all refusals E2B's clients show the words of this one alone.
  throw new ConnectError(
    'not_found',
    `the language \`${(name ?? '').slice(0, 32)}\` is not supported; available: python, javascript`,
  )
}
