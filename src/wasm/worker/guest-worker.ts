import { MessageChannel, type MessagePort, Worker } from 'node:worker_threads'
import type { GuestJob, GuestMessage, GuestReport } from './guest-protocol.ts'
import { workerSource } from './worker-source.ts'

/** Answers one request of a guest: the method, if the import names it, and the text of the request. */
export type Answer = (method: string | undefined, text: string, signal: AbortSignal) => Promise<string>

/** The end of a run as the host sees it: the thread's report, or why there is none. */
export type RunEnd =
  | { readonly kind: 'report'; readonly report: GuestReport }
  | { readonly kind: 'timeout' }
  | { readonly kind: 'died'; readonly reason: 'memory' | 'internal' }

// PLATFORM: native frames are larger than the guest's; 1024 frames of any size must fit.
const STACK_MB = 64
const HEAP_MB = 128

type Running = {
  readonly done: (end: RunEnd) => void
  readonly answer: Answer
  readonly abort: AbortController
  readonly wallMs: number
  timer: NodeJS.Timeout | undefined
}

/** One thread. It runs one job at a time and is discarded if a job had to be terminated. */
export class GuestWorker {
  readonly #worker: Worker
  readonly #replies: MessagePort
  readonly #signal = new Int32Array(new SharedArrayBuffer(4))
  readonly #onGone: (worker: GuestWorker) => void
  #running: Running | undefined
  #ready = false
  #gone = false

  constructor(onGone: (worker: GuestWorker) => void) {
    this.#onGone = onGone
    const { port1, port2 } = new MessageChannel()
    this.#replies = port1
    this.#worker = new Worker(workerSource(), {
      eval: true,
      env: {},
      execArgv: [],
      workerData: { replies: port2, signal: this.#signal },
      transferList: [port2],
      resourceLimits: { stackSizeMb: STACK_MB, maxOldGenerationSizeMb: HEAP_MB },
    })
    this.#replies.unref()
    this.#worker.unref()
    this.#worker.on('message', (message: GuestMessage | { readonly kind: 'ready' }) => this.#hear(message))
    this.#worker.on('error', (error: NodeJS.ErrnoException) =>
      this.#leave({
        kind: 'died',
        reason: error.code === 'ERR_WORKER_OUT_OF_MEMORY' ? 'memory' : 'internal',
      }),
    )
    this.#worker.on('exit', () => this.#leave({ kind: 'died', reason: 'internal' }))
  }

  /** Runs one job. At the deadline the promise resolves at once, even if the thread is still running. */
  run(job: GuestJob, answer: Answer): Promise<RunEnd> {
    if (this.#gone) return Promise.resolve({ kind: 'died', reason: 'internal' })
    return new Promise((resolve) => {
      const { wallMs } = job
      this.#running = { done: resolve, answer, abort: new AbortController(), wallMs, timer: undefined }
      if (this.#ready) this.#startClock()
      this.#worker.ref()
      this.#worker.postMessage(job)
    })
  }

  /** A cold thread takes about 50 ms to start, which does not count against the deadline. */
  #startClock(): void {
    const running = this.#running
    if (running) running.timer = setTimeout(() => this.#leave({ kind: 'timeout' }), running.wallMs)
  }

  /** Terminates the thread. Code that cannot be interrupted runs on until its fuel is used up. */
  close(): void {
    this.#leave({ kind: 'died', reason: 'internal' })
  }

  #hear(message: GuestMessage | { readonly kind: 'ready' }): void {
    if (this.#gone) return
    switch (message.kind) {
      case 'ready':
        this.#ready = true
        this.#startClock()
        break
      case 'ask':
        void this.#reply(message.method, message.text)
        break
      case 'report':
        this.#report(message)
        break
      default:
        message satisfies never
    }
  }

  /**
   * SECURITY: a thread whose wait for a reply timed out is not reused. The reply may already be queued on its port, and
   * the next run would read it as its own.
   */
  #report(end: Extract<RunEnd, { kind: 'report' }>): void {
    if (end.report.end.kind === 'timeout') {
      this.#leave({ kind: 'timeout' })
      return
    }
    this.#worker.unref()
    this.#finish(end)
  }

  async #reply(method: string | undefined, text: string): Promise<void> {
    const running = this.#running
    if (!running) return
    const reply = await running.answer(method, text, running.abort.signal)
    // INVARIANT: a reply that arrives after the end of the run is dropped.
    if (this.#running !== running || this.#gone) return
    this.#replies.postMessage(reply)
    Atomics.store(this.#signal, 0, 1)
    Atomics.notify(this.#signal, 0)
  }

  #finish(end: RunEnd): void {
    const running = this.#running
    if (!running) return
    this.#running = undefined
    clearTimeout(running.timer)
    running.abort.abort()
    running.done(end)
  }

  #leave(end: RunEnd): void {
    if (this.#gone) return
    this.#gone = true
    this.#replies.close()
    this.#worker.unref()
    void this.#worker.terminate()
    this.#onGone(this)
    this.#finish(end)
  }
}
