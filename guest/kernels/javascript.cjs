'use strict'
/**
 * A small JavaScript kernel: one JSON request a line on standard input, marked JSON lines on standard output.
 * It runs inside the sandbox. Code is evaluated as Node's own prompt does it, so that names stay and `await` works.
 */
const { writeSync } = require('node:fs')
const { PassThrough } = require('node:stream')
const { createInterface } = require('node:readline')
const { inspect } = require('node:util')
const repl = require('node:repl')

const MARK = `\x1e${process.env.RINGFENCE_KERNEL} `
delete process.env.RINGFENCE_KERNEL

/** The pipe may be full: then it is tried again until the host has read. */
function put(text) {
  let bytes = Buffer.from(text)
  while (bytes.length > 0) {
    try {
      bytes = bytes.subarray(writeSync(1, bytes))
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error
    }
  }
}
const say = (type, fields = {}) => put(`${MARK}${JSON.stringify({ type, ...fields })}\n`)

for (const name of ['stdout', 'stderr'])
  process[name].write = (chunk, encoding, done) => {
    const text = typeof chunk === 'string' ? chunk : Buffer.from(chunk).toString('utf8')
    if (text !== '') say(name, { text, timestamp: Date.now() * 1000 })
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
// The prompt's own names are Node's; the code's `require` looks from its working directory.
globalThis.require = require('node:module').createRequire(`${process.cwd()}/`)

const FORMATS = { toHTML: 'html', toSVG: 'svg', toMarkdown: 'markdown', toPNG: 'png' }

function show(value, main) {
  const shown = { text: inspect(value, { depth: 4 }) }
  if (typeof value === 'object' && value !== null) {
    for (const [method, name] of Object.entries(FORMATS))
      if (typeof value[method] === 'function') shown[name] = String(value[method]())
    try {
      const json = JSON.parse(JSON.stringify(value))
      if (typeof json === 'object' && json !== null) shown.json = json
    } catch {
      // Circles and big numbers have no JSON; their text is enough.
    }
  }
  say('result', { is_main_result: main, ...shown })
}
globalThis.display = (...values) => {
  for (const value of values) show(value, false)
}

/** The prompt hands what the code throws to its domain, not to whoever evaluates. */
let thrown = () => {}
server._domain.removeAllListeners('error')
server._domain.on('error', (error) => thrown(error))

// PLATFORM: Node breaks into code that never yields only while nobody listens to the signal.
const deaf = () => {}
process.on('SIGINT', deaf)

function evaluate(code, name) {
  let interrupt = deaf
  return new Promise((resolve, reject) => {
    thrown = reject
    interrupt = () => reject(Object.assign(new Error('interrupted'), { name: 'Interrupted' }))
    process.removeListener('SIGINT', deaf)
    server.eval(code, server.context, name, (error, value) => (error ? reject(error) : resolve(value)))
    process.on('SIGINT', interrupt)
  }).finally(() => {
    process.on('SIGINT', deaf)
    process.removeListener('SIGINT', interrupt)
  })
}

function tellError(what) {
  const error = what?.err ?? what
  const isError = error instanceof Error || typeof error?.stack === 'string'
  const stack = isError ? String(error.stack) : inspect(error)
  const traceback = stack
    .split('\n')
    .filter((line) => !/^ +at (new Promise|.*node:)/.test(line) && !line.includes(__filename))
    .join('\n')
  say('error', {
    name: isError ? String(error.name) : 'Error',
    value: isError ? String(error.message) : inspect(error),
    traceback,
  })
}

async function execute({ code, env = {} }, count) {
  const before = { ...process.env }
  Object.assign(process.env, env)
  try {
    const value = await evaluate(`${code}\n`, `cell${count}.js`)
    if (value !== undefined) show(value, true)
  } catch (error) {
    tellError(error)
  } finally {
    for (const name of Object.keys(process.env)) if (!(name in before)) delete process.env[name]
    Object.assign(process.env, before)
  }
  say('number_of_executions', { execution_count: count })
  say('end_of_execution')
}

process.on('uncaughtException', tellError)
process.on('unhandledRejection', tellError)

let count = 0
let tail = Promise.resolve()
createInterface({ input: process.stdin, terminal: false }).on('line', (line) => {
  tail = tail.then(() => execute(JSON.parse(line), ++count))
})
process.stdin.on('end', () => tail.then(() => process.exit(0)))
