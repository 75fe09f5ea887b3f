import { SandboxError } from '../model/errors.ts'
import { clip } from './capture.ts'
import { type Call, done, type Result } from './operation.ts'
import { isRunning, type Process, waitFor } from './processes.ts'
import { outcomeText, READ_CHARS } from './results.ts'
import type { AgentSession } from './session.ts'

export const LANGUAGES = ['python', 'javascript', 'bash'] as const
export type Language = (typeof LANGUAGES)[number]

const DIR = '/tmp/.ringfence/code'
/** What nobody prints by chance. */
const END = '\u001e\u001dringfence-end '

/** Reads a path a line, runs the file in one lasting namespace, shows the last expression, then says that it ended. */
const DRIVERS: Readonly<
  Record<'python' | 'javascript', { readonly argv: readonly string[]; readonly text: string }>
> = {
  python: {
    argv: ['python3', '-u', `${DIR}/driver.py`],
    text: `import ast, sys, traceback
space = {'__name__': '__main__'}
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
    argv: ['node', `${DIR}/driver.cjs`],
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
require('node:readline').createInterface({ input: process.stdin }).on('line', (path) => { queue = queue.then(() => run(path)) })
`,
  },
}

/** An interpreter that stays: variables of one run are there in the next. */
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

  /** One at a time: two runs in one namespace would mix their output. */
  run(code: string, timeoutMs: number, call: Call): Promise<Result> {
    const turn = this.#queue.then(() => this.#run(code, timeoutMs, call))
    this.#queue = turn.catch(() => {})
    return turn
  }

  async #run(code: string, timeoutMs: number, call: Call): Promise<Result> {
    const language = this.#language
    if (language === 'bash') return this.#session.shell('code').run(code, { timeoutMs }, call)
    const place = await this.#session.place()
    const process = await this.#driver(language, call)
    const path = `${DIR}/${language}-${++this.#runs}`
    await place.files.write(path, Buffer.from(code))
    await process.running.write(`${path}\n`)
    const until = Date.now() + timeoutMs
    let text = ''
    while (!text.includes(END) && isRunning(process)) {
      if (Date.now() >= until || call.signal?.aborted) return this.#giveUp(process, text, call)
      await waitFor(process, 25, call.signal)
      text += process.output.take()
    }
    return this.#answer(text, process)
  }

  #answer(text: string, process: Process): Result {
    const at = text.indexOf(END)
    const output = clip(at < 0 ? text : text.slice(0, at), READ_CHARS)
    const failed = at < 0 || text.startsWith('error', at + END.length)
    const ended = process.ended ? `[the interpreter ended: ${outcomeText(process.ended.outcome)}]` : ''
    if (at < 0) this.#process = undefined
    return {
      ...done([output, ended].filter((part) => part !== '').join('\n') || '[no output]', { output, failed }),
    }
  }

  async #giveUp(process: Process, text: string, call: Call): Promise<Result> {
    await process.running.signal('SIGKILL').catch(() => {})
    this.#process = undefined
    const output = clip(text + process.output.take(), READ_CHARS)
    const why = call.signal?.aborted ? 'cancelled' : 'out of time'
    return done(`${output}\n[${why}; the interpreter was ended and its variables are gone]`, {
      output,
      failed: true,
    })
  }

  async #driver(language: 'python' | 'javascript', call: Call): Promise<Process> {
    if (this.#process && isRunning(this.#process)) return this.#process
    const place = await this.#session.place()
    const { argv, text } = DRIVERS[language]
    await place.files.write(argv.at(-1) as string, Buffer.from(text))
    this.#process = await this.#session.start(argv, { stdinOpen: true }, call)
    return this.#process
  }

  /** Ends the interpreter; the next run starts with nothing. */
  async restart(): Promise<void> {
    if (this.#language === 'bash') await this.#session.shell('code').restart()
    const process = this.#process
    this.#process = undefined
    if (process && isRunning(process)) await process.running.signal('SIGKILL')
  }
}

/** What the model's word for a language means. */
export function languageOf(name: string): Language {
  const known: Readonly<Record<string, Language>> = {
    py: 'python',
    python3: 'python',
    js: 'javascript',
    node: 'javascript',
    sh: 'bash',
    shell: 'bash',
  }
  const language = Object.hasOwn(known, name) ? (known[name] as Language) : name
  if ((LANGUAGES as readonly string[]).includes(language)) return language as Language
  throw new SandboxError('invalid-input', `unknown language \`${name.slice(0, 32)}\``, {
    hint: `one of: ${LANGUAGES.join(', ')}`,
  })
}
