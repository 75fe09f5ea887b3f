import { Worker } from 'node:worker_threads'

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
