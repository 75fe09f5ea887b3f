// PLATFORM: only ending the thread stops code that the engine cannot interrupt: it checks the deadline between bytecodes,
// and `new Array(4e9).join()` is one bytecode that ran for 515 seconds when measured.
import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads'
import { PRELUDE } from './prelude.ts'
import type { EvalEnd, EvalJob, EvalReport } from './protocol.ts'
import { EvalThread, type WasmModule } from './thread.ts'

/** Built from the class text, so that source tree and bundle run the same code and no file is looked up at run time. */
const source = (): string => `'use strict'
const { parentPort, receiveMessageOnPort, workerData } = require('node:worker_threads')
const Thread = ${EvalThread.toString()}
const { module, prelude, port, signal } = workerData
const thread = new Thread(module, prelude)
// A failure here repeats in the next run and is reported there.
const prepare = () => { try { thread.prepare() } catch {} }
const tell = (at) => { Atomics.store(signal, at, 1); Atomics.notify(signal, at) }
prepare()
tell(0)
parentPort.postMessage('ready')
for (;;) {
  Atomics.wait(signal, 1, 0)
  Atomics.store(signal, 1, 0)
  const job = receiveMessageOnPort(port)
  if (!job) continue
  port.postMessage(thread.run(job.message))
  tell(2)
  prepare()
}
`

// Indices into the shared signal. The thread waits on its index without an event loop, which wakes twice as fast.
const READY = 0
const ASKED = 1
const ANSWERED = 2
const START_MS = 30_000
/** The engine stops nearly everything at the deadline; after this much longer, the thread is terminated. */
const GRACE_MS = 100
// PLATFORM: one frame of the engine takes many times its size on the native stack.
const STACK_MB = 64
const HEAP_MB = 64

const TIMEOUT: EvalReport = { end: { kind: 'timeout' }, retire: true }
const broken = (reason: string): EvalReport => ({ end: { kind: 'broken', reason }, retire: true })

/** One thread with one engine. It runs one job at a time; after `retire` or a hard stop, `gone` is true. */
export class EvalWorker {
  readonly #worker: Worker
  readonly #port: MessagePort
  readonly #signal = new Int32Array(new SharedArrayBuffer(12))
  readonly #ready: Promise<void>
  #fail: (reason: string) => void = () => undefined
  #gone = false

  constructor(module: WasmModule) {
    const { port1, port2 } = new MessageChannel()
    this.#port = port1
    this.#worker = new Worker(source(), {
      eval: true,
      env: {},
      execArgv: [],
      workerData: { module, prelude: PRELUDE, port: port2, signal: this.#signal },
      transferList: [port2],
      resourceLimits: { stackSizeMb: STACK_MB, maxOldGenerationSizeMb: HEAP_MB },
    })
    this.#ready = new Promise((resolve) => {
      this.#worker.once('message', () => resolve())
      this.#worker.once('exit', () => resolve())
    })
    this.#worker.on('error', (error) => this.#died(error.message))
    this.#worker.on('exit', () => this.#died('its thread ended'))
    this.#port.unref()
    this.#worker.unref()
  }

  get gone(): boolean {
    return this.#gone
  }

  /** Resolves when the engine is loaded; a cold start does not count against the deadline. */
  async ready(): Promise<void> {
    this.#worker.ref()
    if (Atomics.load(this.#signal, READY) === 0 && !this.#gone) await this.#ready
    this.#worker.unref()
  }

  /** Blocks the calling thread until the result or the deadline. */
  runSync(job: EvalJob): EvalEnd {
    Atomics.wait(this.#signal, READY, 0, START_MS)
    if (Atomics.load(this.#signal, READY) === 0) return this.#end(broken('its thread does not start'))
    this.#ask(job)
    return this.#end(this.#await(performance.now() + job.timeoutMs + GRACE_MS))
  }

  /** Runs the job without blocking the calling thread. */
  async run(job: EvalJob): Promise<EvalEnd> {
    await this.ready()
    if (this.#gone) return broken('its thread does not start').end
    this.#worker.ref()
    let timer: NodeJS.Timeout | undefined
    const report = await new Promise<EvalReport>((resolve) => {
      this.#fail = (reason) => resolve(broken(reason))
      // The answer may already be queued if the event loop was blocked for long.
      timer = setTimeout(() => resolve(this.#answer() ?? TIMEOUT), job.timeoutMs + GRACE_MS)
      this.#port.once('message', resolve)
      this.#ask(job)
    })
    clearTimeout(timer)
    this.#port.removeAllListeners('message')
    this.#worker.unref()
    return this.#end(report)
  }

  /** Terminates the thread, even in the middle of a job. */
  close(): void {
    this.#gone = true
    this.#port.close()
    void this.#worker.terminate()
  }

  #ask(job: EvalJob): void {
    this.#port.postMessage(job)
    Atomics.store(this.#signal, ASKED, 1)
    Atomics.notify(this.#signal, ASKED)
  }

  /** A late signal of the previous answer may wake this wait without a message: then wait again. */
  #await(deadline: number): EvalReport {
    for (let left = deadline - performance.now(); left > 0; left = deadline - performance.now()) {
      Atomics.wait(this.#signal, ANSWERED, 0, left)
      Atomics.store(this.#signal, ANSWERED, 0)
      const answer = this.#answer()
      if (answer) return answer
    }
    return TIMEOUT
  }

  #answer(): EvalReport | undefined {
    return receiveMessageOnPort(this.#port)?.message
  }

  #died(reason: string): void {
    this.#gone = true
    this.#fail(reason)
  }

  #end({ end, retire }: EvalReport): EvalEnd {
    if (retire) this.close()
    return end
  }
}
