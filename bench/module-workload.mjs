/**
 * One real module and one workload, metered or not, in its own process. Each line on standard input runs the workload
 * once; the reply contains the CPU time and a digest of the result.
 */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { METER_EXPORTS, meterModule, meterWord } from '../dist/bench/library.js'

const [, , dir, name, mode] = process.argv
const require = createRequire(join(dir, 'package.json'))
const file = (path) => readFileSync(join(dir, 'node_modules', path))
const load = (path) => import(require.resolve(path))

const sizes = { before: 0, after: 0, ms: 0 }
const meters = []
if (mode === 'metered') {
  const engine = {
    ...Object.fromEntries(
      ['Module', 'Instance', 'compile', 'instantiate'].map((key) => [key, WebAssembly[key]]),
    ),
  }
  const metered = (source) => {
    const bytes = new Uint8Array(source.buffer ?? source, source.byteOffset ?? 0, source.byteLength)
    const start = performance.now()
    const out = meterModule(bytes, { memoryMb: 4096, initial: { fuel: 2 ** 40, frames: 30_000 } }).bytes
    sizes.ms += performance.now() - start
    sizes.before += bytes.length
    sizes.after += out.length
    return out
  }
  const seen = (instance) => {
    const {
      [METER_EXPORTS.meter]: meter,
      [METER_EXPORTS.work]: work,
      [METER_EXPORTS.start]: begin,
    } = instance.exports
    if (meter) meters.push([meter, work])
    begin?.()
    return instance
  }
  WebAssembly.Module = new Proxy(engine.Module, {
    construct: (Module, [bytes]) => new Module(metered(bytes)),
  })
  WebAssembly.Instance = function Instance(module, imports) {
    return seen(new engine.Instance(module, imports))
  }
  WebAssembly.compile = async (bytes) => engine.compile(metered(bytes))
  WebAssembly.instantiate = async (source, imports) => {
    if (source instanceof engine.Module) return seen(await engine.instantiate(source, imports))
    const module = await engine.compile(metered(source))
    return { module, instance: seen(await engine.instantiate(module, imports)) }
  }
  WebAssembly.instantiateStreaming = undefined
}

const picture = (size) => {
  const data = new Uint8ClampedArray(size * size * 4)
  for (let at = 0; at < data.length; at++)
    data[at] = at % 4 === 3 ? 255 : ((at * 2_654_435_761) >>> (at % 13)) & 255
  return { data, width: size, height: size, colorSpace: 'srgb' }
}
globalThis.ImageData ??= class {
  constructor(data, width, height) {
    Object.assign(this, { data, width, height })
  }
}
const TEXT = 'The quick brown fox jumps over the lazy dog; 12345 times, naïvely. '.repeat(400)

const WORKLOADS = {
  async quickjs() {
    const { getQuickJS } = await load('quickjs-emscripten')
    const quick = await getQuickJS()
    return () =>
      quick.evalCode(
        'let s=0;for(let i=0;i<60000;i++){s=(s*31+[i,i+1].map(x=>x%7)[0])|0} JSON.stringify({s})',
      )
  },
  async sqlite() {
    const { default: init } = await load('sql.js')
    const SQL = await init({ wasmBinary: file('sql.js/dist/sql-wasm.wasm') })
    return () => {
      const db = new SQL.Database()
      db.run('create table t(a integer, b text)')
      const insert = db.prepare('insert into t values (?, ?)')
      for (let i = 0; i < 3000; i++) insert.run([i, `text ${i * 7919}`])
      insert.free()
      const out = db.exec(
        'select b, count(*), sum(a * 3) from t where a % 3 = 0 group by substr(b, 1, 7) order by 3 limit 50',
      )
      db.close()
      return JSON.stringify(out)
    }
  },
  async resvg() {
    const { initWasm, Resvg } = require('@resvg/resvg-wasm')
    await initWasm(file('@resvg/resvg-wasm/index_bg.wasm'))
    const shapes = Array.from(
      { length: 150 },
      (_, i) =>
        `<circle cx="${(i * 37) % 400}" cy="${(i * 53) % 400}" r="${10 + (i % 40)}" fill="hsl(${i * 7},70%,50%)" opacity="0.6"/>`,
    )
    const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="400" height="400">${shapes.join('')}</svg>`
    return () => new Resvg(svg).render().asPng()
  },
  async tiktoken() {
    const { get_encoding } = await load('tiktoken')
    const encoding = get_encoding('cl100k_base')
    return () => encoding.encode(TEXT).length
  },
  async argon2() {
    const { argon2id } = await load('hash-wasm')
    return () =>
      argon2id({
        password: 'p',
        salt: 'saltsaltsalt',
        parallelism: 1,
        iterations: 3,
        memorySize: 4096,
        hashLength: 32,
      })
  },
  async hashes() {
    const { sha256, blake3 } = await load('hash-wasm')
    const data = new Uint8Array(4_000_000).fill(7)
    return async () => (await sha256(data)) + (await blake3(data))
  },
  async mozjpeg() {
    const { default: encode, init } = await import(join(dir, 'node_modules/@jsquash/jpeg/encode.js'))
    await init(new WebAssembly.Module(file('@jsquash/jpeg/codec/enc/mozjpeg_enc.wasm')))
    return async () => new Uint8Array(await encode(picture(256)))
  },
  async webp() {
    const { default: encode, init } = await import(join(dir, 'node_modules/@jsquash/webp/encode.js'))
    await init(new WebAssembly.Module(file('@jsquash/webp/codec/enc/webp_enc_simd.wasm')))
    return async () => new Uint8Array(await encode(picture(256)))
  },
  async treesitter() {
    const { Parser, Language } = await load('web-tree-sitter')
    await Parser.init({ wasmBinary: file('web-tree-sitter/web-tree-sitter.wasm') })
    const parser = new Parser()
    parser.setLanguage(
      await Language.load(new Uint8Array(file('tree-sitter-javascript/tree-sitter-javascript.wasm'))),
    )
    const source =
      'function f(a, b) { return a.map((x) => x * b + a).filter(Boolean); }\nclass A { get x() { return 1 } }\n'.repeat(
        400,
      )
    return () => parser.parse(source).rootNode.endIndex
  },
  async yoga() {
    const { default: Yoga } = await load('yoga-layout')
    return () => {
      const root = Yoga.Node.create()
      root.setWidth(1000)
      root.setFlexWrap(Yoga.WRAP_WRAP)
      for (let i = 0; i < 1500; i++) {
        const node = Yoga.Node.create()
        node.setWidth(10 + (i % 50))
        node.setHeight(5 + (i % 20))
        root.insertChild(node, i)
      }
      root.calculateLayout(1000, undefined)
      const height = root.getComputedHeight()
      root.freeRecursive()
      return height
    }
  },
}

const run = await WORKLOADS[name]()
const digest = (value) =>
  createHash('sha256')
    .update(value instanceof Uint8Array ? value : (JSON.stringify(value?.value ? 'value' : value) ?? ''))
    .digest('hex')
/** CPU time in microseconds. The kernel only estimates the split into user and system time, so both are added. */
async function cpu(times) {
  const start = process.cpuUsage()
  let value
  for (let i = 0; i < times; i++) value = await run()
  const { user, system } = process.cpuUsage(start)
  return { us: (user + system) / times, value }
}

for (let warm = 0; warm < 5; warm++) await run()
// Shorter samples are dominated by the clock's resolution.
const SAMPLE_US = 200_000
const times = Math.max(1, Math.ceil(SAMPLE_US / Math.max(1, (await cpu(3)).us)))
console.log(JSON.stringify({ sizes }))
for await (const _ of createInterface({ input: process.stdin })) {
  for (const [meter, work] of meters) {
    meter.value = meterWord(2 ** 40, 30_000)
    work.value = 2n ** 40n
  }
  const { us, value } = await cpu(times)
  console.log(JSON.stringify({ us, digest: digest(value) }))
}
