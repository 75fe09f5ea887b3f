import { Worker } from 'node:worker_threads'

/** How often the main thread shows that it still works. */
const BEAT_MS = 1000

/** Kills this process when its main thread has been busy for so long that it answers nobody. Beats are counted, not time: a machine that slept has missed none. */
export function killOwnProcessWhenStuck(ms: number): void {
  const beats = new Int32Array(new SharedArrayBuffer(4))
  const source = `
    const beats = new Int32Array(require('node:worker_threads').workerData)
    let [last, missed] = [0, 0]
    setInterval(() => {
      const now = Atomics.load(beats, 0)
      missed = now === last ? missed + 1 : 0
      last = now
      if (missed > ${Math.ceil(ms / BEAT_MS)}) process.kill(process.pid, 'SIGKILL')
    }, ${BEAT_MS})`
  const worker = new Worker(source, { eval: true, workerData: beats.buffer, stdin: false })
  worker.unref()
  setInterval(() => Atomics.add(beats, 0, 1), BEAT_MS).unref()
}

/**
 * Kills this process after a time, even if its main thread is busy and no timer of its own would fire.
 * The parent process sees a signal, never a success.
 */
export function killOwnProcessAfter(ms: number): void {
  const source = `setTimeout(() => process.kill(process.pid, 'SIGKILL'), ${Math.ceil(ms)})`
  const worker = new Worker(source, {
    eval: true,
    stdin: false,
    resourceLimits: { maxOldGenerationSizeMb: 8 },
  })
  // Without the worker, the timer of the main thread remains; with it, the process may exit before.
  worker.on('error', () => {})
  worker.unref()
}
