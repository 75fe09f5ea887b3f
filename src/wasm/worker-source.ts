import { GuestThread } from './guest-thread.ts'
import { WasiShim } from './wasi-shim.ts'

/**
 * The text of the worker. PLATFORM: on Linux a thread has a priority of its own; guests get a low one, so that
 * the host's loop comes first whatever they do.
 *
 * Made from the two classes themselves, so that it is the same code in the source tree
 * and in a bundle, and no file has to be found at run time.
 */
export const workerSource = (): string => `'use strict'
const { parentPort, receiveMessageOnPort, workerData } = require('node:worker_threads')
const Thread = ${GuestThread.toString()}
const Wasi = ${WasiShim.toString()}
try {
  require('node:os').setPriority(Number(require('node:fs').readlinkSync('/proc/thread-self').split('/').pop()), 10)
} catch {}
const thread = new Thread({
  post: (message) => parentPort.postMessage(message),
  receive: () => receiveMessageOnPort(workerData.replies),
  signal: workerData.signal,
  wasi: Wasi,
})
parentPort.on('message', (job) => thread.run(job))
parentPort.postMessage({ kind: 'ready' })
`
