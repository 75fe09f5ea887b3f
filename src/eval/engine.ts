// PLATFORM: the engine is the .wasm file of the package `quickjs-wasi`; reading it is left to the caller. The package's
// own wrapper is not used: it creates a VM only asynchronously, and not from a saved memory image.
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { SandboxError } from '../model/errors.ts'
import type { EvalEnd, EvalJob } from './protocol.ts'
import type { WasmModule } from './thread.ts'
import { EvalWorker } from './worker.ts'

const MAX_THREADS = 4
const MAX_IDLE = 2

/** A small pool of threads, each with its own engine instance of one compiled module. Threads start on first use. */
export class EvalPool {
  readonly #idle: EvalWorker[] = []
  readonly #waiting: ((worker: EvalWorker) => void)[] = []
  #module: WasmModule | undefined
  #busy = 0

  /** Starts the first thread, so that the first evaluation does not pay for the cold start. */
  async warm(): Promise<void> {
    const worker = this.#take()
    await worker.ready()
    this.#give(worker)
  }

  /** Starts an extra thread when all are busy: a blocking caller cannot wait in the queue. */
  runSync(job: EvalJob): EvalEnd {
    const worker = this.#take()
    try {
      return worker.runSync(job)
    } finally {
      this.#give(worker)
    }
  }

  /** Waits for a free thread; the wait does not count against the deadline. */
  async run(job: EvalJob): Promise<EvalEnd> {
    const worker = this.#busy < MAX_THREADS ? this.#take() : await this.#turn()
    try {
      return await worker.run(job)
    } finally {
      this.#give(worker)
    }
  }

  #turn(): Promise<EvalWorker> {
    return new Promise((resolve) => {
      this.#waiting.push(resolve)
    })
  }

  #take(): EvalWorker {
    this.#busy++
    let worker = this.#idle.pop()
    while (worker?.gone) worker = this.#idle.pop()
    return worker ?? this.#start()
  }

  #start(): EvalWorker {
    this.#module ??= compiled()
    return new EvalWorker(this.#module)
  }

  #give(worker: EvalWorker): void {
    const next = this.#waiting.shift()
    if (next) {
      next(worker.gone ? this.#start() : worker)
      return
    }
    this.#busy--
    if (worker.gone) return
    if (this.#idle.length < MAX_IDLE) this.#idle.push(worker)
    else worker.close()
  }
}

function compiled(): WasmModule {
  const { Module } = (
    globalThis as unknown as { WebAssembly: { Module: new (bytes: Uint8Array) => WasmModule } }
  ).WebAssembly
  return new Module(readFileSync(engineFile()))
}

/** Searched as Node resolves packages: in `node_modules` of this directory and of every parent directory. */
function engineFile(): string {
  const tail = join('node_modules', 'quickjs-wasi', 'quickjs.wasm')
  let dir = dirname(fileURLToPath(import.meta.url))
  while (!existsSync(join(dir, tail))) {
    if (dir === dirname(dir))
      throw new SandboxError('backend-unavailable', 'the package `quickjs-wasi` is not installed', {
        hint: 'run `npm install`',
      })
    dir = dirname(dir)
  }
  return join(dir, tail)
}
