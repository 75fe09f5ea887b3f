import { Worker } from 'node:worker_threads'

/**
 * Kills this process after a time, also when its main thread is busy and no timer of its own would fire.
 * Whoever waits for the process sees a signal, never a success.
 */
export function killOwnProcessAfter(ms: number): void {
  const source = `setTimeout(() => process.kill(process.pid, 'SIGKILL'), ${Math.ceil(ms)})`
  const worker = new Worker(source, {
    eval: true,
    stdin: false,
    resourceLimits: { maxOldGenerationSizeMb: 8 },
  })
  // Without it the timer of the main thread is still there; with it the process may end before.
  worker.on('error', () => {})
  worker.unref()
}
