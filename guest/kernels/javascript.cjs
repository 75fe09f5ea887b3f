'use strict'
/**
 * The JavaScript and TypeScript kernel of the code interpreter. It runs inside the sandbox: one JSON request per line on
 * standard input, JSON lines with a marker on standard output. Code is evaluated by Node's REPL, so that variables persist and
 * `await` works; `syntax.cjs` removes types and turns `import` statements into what the REPL accepts.
 */
const { writeSync } = require('node:fs')
const { PassThrough } = require('node:stream')
const { createInterface } = require('node:readline')
const { inspect } = require('node:util')
const repl = require('node:repl')

const MARK = `\x1e${process.env.RINGFENCE_KERNEL} `
delete process.env.RINGFENCE_KERNEL
const IS_TYPESCRIPT = process.argv[2] === 'typescript'

/** Retries while the pipe is full, until the host has read from it. */
function put(text, fd = 1) {
  let bytes = Buffer.from(text)
  while (bytes.length > 0) {
    try {
      bytes = bytes.subarray(writeSync(fd, bytes))
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error
    }
  }
}
const send = (type, fields = {}) => put(`${MARK}${JSON.stringify({ type, ...fields })}\n`)

/** Sends a message that ends something; the marker on standard error tells that nothing more comes there. */
function finish(type) {
  put(`${MARK}\n`, 2)
  send(type)
}

/** How many characters of output one message carries; the host ends a kernel that writes a longer line than it can hold. */
const PIECE = 2 ** 20
const MOST_JSON = 32 * PIECE

for (const name of ['stdout', 'stderr'])
  process[name].write = (chunk, encoding, done) => {
    const text = typeof chunk === 'string' ? chunk : Buffer.from(chunk).toString('utf8')
    for (let at = 0; at < text.length; at += PIECE)
      send(name, { text: text.slice(at, at + PIECE), timestamp: Date.now() * 1000 })
    const after = typeof encoding === 'function' ? encoding : done
    if (typeof after === 'function') process.nextTick(after)
    return true
  }

const server = repl.start({
  input: new PassThrough(),
  output: new PassThrough(),
  terminal: false,
  useGlobal: true,
  prompt: '',
  breakEvalOnSigint: true,
})
// The REPL's own `require` resolves from Node's directory; the code's must resolve from the working directory.
globalThis.require = require('node:module').createRequire(`${process.cwd()}/`)

const FORMATS = { toHTML: 'html', toSVG: 'svg', toMarkdown: 'markdown', toPNG: 'png' }

function show(value, main) {
  const shown = { text: inspect(value, { depth: 4 }) }
  if (typeof value === 'object' && value !== null) {
    for (const [method, name] of Object.entries(FORMATS))
      if (typeof value[method] === 'function') shown[name] = String(value[method]())
    try {
      const text = JSON.stringify(value)
      const json = text.length < MOST_JSON ? JSON.parse(text) : undefined
      if (typeof json === 'object' && json !== null) shown.json = json
    } catch {
      // Cyclic objects and BigInts have no JSON; their text is enough.
    }
  }
  send('result', { is_main_result: main, ...shown })
}
globalThis.display = (...values) => {
  for (const value of values) show(value, false)
}

/** The REPL reports exceptions of the code to its domain and not to the caller of `eval`. */
let onThrown = () => {}
server._domain.removeAllListeners('error')
server._domain.on('error', (error) => onThrown(error))

// PLATFORM: Node interrupts synchronous code only while SIGINT has no listener.
const ignoreSignal = () => {}
process.on('SIGINT', ignoreSignal)

function evaluate(code, name) {
  let interrupt = ignoreSignal
  return new Promise((resolve, reject) => {
    onThrown = reject
    interrupt = () => reject(Object.assign(new Error('interrupted'), { name: 'Interrupted' }))
    process.removeListener('SIGINT', ignoreSignal)
    server.eval(code, server.context, name, (error, value) => (error ? reject(error) : resolve(value)))
    process.on('SIGINT', interrupt)
  }).finally(() => {
    process.on('SIGINT', ignoreSignal)
    process.removeListener('SIGINT', interrupt)
  })
}

function sendError(what) {
  const error = what?.err ?? what
  const isError = error instanceof Error || typeof error?.stack === 'string'
  const stack = isError ? String(error.stack) : inspect(error)
  const traceback = stack
    .split('\n')
    .filter((line) => !/^ +at (new Promise|.*node:)/.test(line) && !line.includes(__dirname))
    .join('\n')
  send('error', {
    name: isError ? String(error.name) : 'Error',
    value: isError ? String(error.message) : inspect(error),
    traceback,
  })
}

/** The code as the REPL accepts it. PERFORMANCE: the parser is loaded only for code that needs it. */
function prepare(code) {
  if (!IS_TYPESCRIPT && !/(^|[\n;}])\s*import\b/.test(code)) return code
  return require('./syntax.cjs').prepare(code, IS_TYPESCRIPT)
}

async function execute({ code, env = {} }, count) {
  const before = Object.keys(env).map((name) => [name, process.env[name]])
  Object.assign(process.env, env)
  try {
    const value = await evaluate(`${prepare(code)}\n`, `cell${count}.${IS_TYPESCRIPT ? 'ts' : 'js'}`)
    if (value !== undefined) show(value, true)
  } catch (error) {
    sendError(error)
  } finally {
    for (const [name, value] of before)
      if (value === undefined) delete process.env[name]
      else process.env[name] = value
  }
  send('number_of_executions', { execution_count: count })
  finish('end_of_execution')
}

process.on('uncaughtException', sendError)
process.on('unhandledRejection', sendError)

let count = 0
let tail = Promise.resolve()
createInterface({ input: process.stdin, terminal: false }).on('line', (line) => {
  tail = tail.then(() => execute(JSON.parse(line), ++count))
})
process.stdin.on('end', () => tail.then(() => process.exit(0)))
finish('ready')
