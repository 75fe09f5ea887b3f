import { SandboxError } from '../model/errors.ts'
import { clip } from './capture.ts'
import { type Call, done, type Result } from './operations/operation.ts'
import { isRunning, type Process, waitFor } from './processes.ts'
import { outcomeText, READ_CHARS } from './results.ts'
import type { AgentSession } from './session.ts'

/** Languages of a code context. */
export const LANGUAGES = ['python', 'javascript', 'bash'] as const
/** One of the languages. */
export type Language = (typeof LANGUAGES)[number]

const DIR = '/tmp/.rf-agent/code'
const READY_MS = 15_000
/** End marker that no program prints by chance. */
const END = '\u001e\u001dringfence-end '

/** Reads one path per line, runs the file in a persistent namespace, prints the last expression, then the end marker. */
type Driver = {
  readonly argv: readonly string[]
  /** The first line sent to the interpreter. */
  readonly first: string
  readonly file: string
  /** The command that the policy checks in sandbox of a piece of code. */
  readonly judged: readonly string[]
  readonly text: string
}
const DRIVERS: Readonly<Record<'python' | 'javascript', Driver>> = {
  python: {
    // Started without code and given our driver on stdin: the policy would ask about code in the arguments.
    argv: ['python3', '-u', '-q', '-i'],
    first: `exec(open('${DIR}/driver.py').read())\n`,
    file: `${DIR}/driver.py`,
    judged: ['python3', '-c'],
    text: `import ast, sys, traceback
space = {'__name__': '__main__'}
sys.stdout.write('${END}ready\\n'); sys.stdout.flush()
for line in sys.stdin:
    path, ok = line.rstrip('\\n'), 'ok'
    try:
        tree = ast.parse(open(path).read(), path)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path, 'exec'), space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), path, 'eval'), space)
            if value is not None: print(repr(value))
    except SystemExit: raise
    except BaseException:
        ok = 'error'
        traceback.print_exc(file=sys.stdout)
    sys.stdout.write('${END}' + ok + '\\n'); sys.stdout.flush()
`,
  },
  javascript: {
    argv: ['node', '-e', `require('${DIR}/driver.cjs')`],
    first: '',
    file: `${DIR}/driver.cjs`,
    judged: ['node', '-e'],
    text: `const vm = require('node:vm'), fs = require('node:fs'), util = require('node:util')
const context = vm.createContext(Object.assign(Object.create(null), globalThis, {
  console, require, process, Buffer, URL, TextEncoder, TextDecoder, setTimeout, clearTimeout, setInterval, clearInterval,
  setImmediate, queueMicrotask, structuredClone, fetch: globalThis.fetch }))
const show = (value) => util.inspect(value, { depth: 4 })
async function run(path) {
  let ok = 'ok'
  try {
    const value = await vm.runInContext(fs.readFileSync(path, 'utf8'), context, { filename: path })
    if (value !== undefined) console.log(show(value))
  } catch (error) { ok = 'error'; console.log(error && error.stack ? error.stack : show(error)) }
  fs.writeSync(1, '${END}' + ok + '\\n')
}
let queue = Promise.resolve()
fs.writeSync(1, '${END}ready\\n')
require('node:readline').createInterface({ input: process.stdin }).on('line', (path) => { queue = queue.then(() => run(path)) })
`,
  },
}

/** A persistent interpreter: variables of one run are available in the next. */
export class CodeContext {
  readonly #session: AgentSession
  readonly #language: Language
  #process: Process | undefined
  #runs = 0
  #queue: Promise<unknown> = Promise.resolve()

  constructor(session: AgentSession, language: Language) {
    this.#session = session
    this.#language = language
  }

  /** One run at a time: two runs in one namespace would mix their output. */
  run(code: string, timeoutMs: number, call: Call): Promise<Result> {
    const turn = this.#queue.then(() => this.#run(code, timeoutMs, call))
    this.#queue = turn.catch(() => {})
    return turn
  }

  async #run(code: string, timeoutMs: number, call: Call): Promise<Result> {
    const language = this.#language
    if (language === 'bash') return this.#session.shell('code').run(code, { timeoutMs }, call)
    const sandbox = await this.#session.sandbox()
    const judged = [...DRIVERS[language].judged, code]
    await this.#session.admit(judged, call)
    const process = await this.#driver(language, call)
    const path = `${DIR}/${language}-${++this.#runs}`
    await sandbox.files.write(path, Buffer.from(code))
    await process.running.write(`${path}\n`)
    const text = await untilEnd(process, timeoutMs, call)
    const open = !text.includes(END) && isRunning(process)
    return open ? this.#giveUp(process, text, call) : this.#answer(text, process)
  }

  #answer(text: string, process: Process): Result {
    const at = text.indexOf(END)
    const output = clip(at < 0 ? text : text.slice(0, at), READ_CHARS)
    const failed = at < 0 || text.startsWith('error', at + END.length)
    const ended = process.ended ? `[the interpreter exited: ${outcomeText(process.ended.outcome)}]` : ''
    if (at < 0) this.#process = undefined
    return {
      ...done([output, ended].filter((part) => part !== '').join('\n') || '[no output]', { output, failed }),
    }
  }

  async #giveUp(process: Process, text: string, call: Call): Promise<Result> {
    await process.running.signal('SIGKILL').catch(() => {})
    this.#process = undefined
    const output = clip(text + process.output.take(), READ_CHARS)
    const why = call.signal?.aborted ? 'cancelled' : 'timed out'
    return done(`${output}\n[${why}; the interpreter was stopped and its variables are lost]`, {
      output,
      failed: true,
    })
  }

  async #driver(language: 'python' | 'javascript', call: Call): Promise<Process> {
    if (this.#process && isRunning(this.#process)) return this.#process
    const sandbox = await this.#session.sandbox()
    const { argv, first, file, text } = DRIVERS[language]
    await sandbox.files.write(file, Buffer.from(text))
    const process = await this.#session.start(argv, { stdinOpen: true }, call)
    if (first !== '') await process.running.write(first)
    const said = await untilEnd(process, READY_MS, call)
    if (!said.includes(END)) {
      await process.running.signal('SIGKILL').catch(() => {})
      throw new SandboxError(
        'unsupported',
        `${language} does not start in this sandbox: ${clip(said.trim(), 200)}`,
      )
    }
    this.#process = process
    return process
  }

  /** Stops the interpreter; the next run starts a new one. */
  async restart(): Promise<void> {
    if (this.#language === 'bash') await this.#session.shell('code').restart()
    const process = this.#process
    this.#process = undefined
    if (process && isRunning(process)) await process.running.signal('SIGKILL')
  }
}

/** Reads output until the end marker or the timeout. */
async function untilEnd(process: Process, timeoutMs: number, call: Call): Promise<string> {
  const until = Date.now() + timeoutMs
  let text = process.output.take()
  while (!text.includes(END) && isRunning(process) && Date.now() < until && !call.signal?.aborted) {
    await waitFor(process, 25, call.signal)
    text += process.output.take()
  }
  return text + process.output.take()
}
