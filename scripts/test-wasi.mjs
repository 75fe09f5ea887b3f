/**
 * `npm run test:wasi -- --modules DIR`: runs every WASI preview 1 module below a directory, for example the built modules of
 * the WASI testsuite, and prints how many pass. A JSON file of the same name may give `args`, `env`, `exit_code`, `stdout`
 * and the directory that the program sees (`root` or `dirs`); each run gets a copy of that directory.
 */
import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { root } from './setup.mjs'

const { values } = parseArgs({ options: { modules: { type: 'string' }, only: { type: 'string' } } })
const named = values.modules ?? process.env.RINGFENCE_WASI_MODULES
if (!named || !existsSync(named)) {
  process.stderr.write('usage: npm run test:wasi -- --modules DIR [--only NAME]\n')
  process.exit(2)
}
const { WasmSandbox } = await import(join(root, 'dist', 'index.js'))

const SOURCES = ['ToolInvoke(clock)', 'ToolInvoke(random)']
const FILES = ['ToolInvoke(file_read)', 'ToolInvoke(file_write)', 'ToolInvoke(file_list)']
/** The fifth byte of a core module is 1; components have another version. */
const isCore = (path) => readFileSync(path)[4] === 1 && readFileSync(path)[6] === 0

const modules = readdirSync(named, { recursive: true })
  .filter((name) => name.endsWith('.wasm') && (values.only === undefined || name.includes(values.only)))
  .map((name) => resolve(named, name))
  .filter(isCore)
  .sort()

/** Runs one module in an empty or copied workspace; returns what went wrong. */
async function problemOf(path) {
  const file = path.replace(/\.wasm$/, '.json')
  const spec = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : {}
  const directory = spec.root ?? spec.dirs?.[0]
  const workspace = mkdtempSync(join(tmpdir(), 'ringfence-wasi-'))
  const source = directory === undefined ? undefined : join(dirname(path), directory)
  // Modules name what they create `*.cleanup`; an earlier run with another runtime may have left it.
  const filter = (from) => !from.endsWith('.cleanup')
  if (source !== undefined && existsSync(source)) cpSync(source, workspace, { recursive: true, filter })
  const sandbox = new WasmSandbox({ fuel: 1e9, epochDeadline: 200 })
  try {
    const grants = directory === undefined ? SOURCES : [...SOURCES, ...FILES]
    const { args = [], env = {} } = spec
    const result = await sandbox.run(readFileSync(path), null, { grants, workspace, args, env })
    return compare(spec, result)
  } finally {
    sandbox.close()
    rmSync(workspace, { recursive: true, force: true })
  }
}

function compare({ exit_code: wanted = 0, stdout }, result) {
  const denied = result.violations.find(({ violationType }) => violationType === 'CapabilityDenied')
  if (denied) return `false violation: ${denied.details}`
  const code = 'ok' in result ? 0 : Number(/exited with code (\d+)/.exec(result.error.message)?.[1] ?? -1)
  if (code !== wanted) {
    const last = result.log.at(-1)?.text ?? ''
    return `${result.error?.message ?? `exit code ${code}, expected ${wanted}`} ${last}`
  }
  const same = stdout === undefined || !('ok' in result) || String(result.ok) === stdout
  return same ? undefined : `standard output is ${JSON.stringify(result.ok)}`
}

let passed = 0
for (const path of modules) {
  const problem = await problemOf(path)
  if (problem === undefined) passed++
  else process.stdout.write(`failed: ${path.slice(resolve(named).length + 1)}: ${problem}\n`)
}
process.stdout.write(`WASI preview 1 modules: ${passed} of ${modules.length} pass\n`)
process.exit(passed === modules.length && passed > 0 ? 0 : 1)
