import { GuestThread } from './guest-thread.ts'
import { WasiShim } from './wasi-shim.ts'

/**
 * The text of the worker. Made from the two classes themselves, so that it is the same code in the source tree
 * and in a bundle, and no file has to be found at run time.
 */
export const workerSource = (): string => `'use strict'
const { parentPort, receiveMessageOnPort, workerData } = require('node:worker_threads')
const Thread = ${GuestThread.toString()}
const Wasi = ${WasiShim.toString()}
const thread = new Thread({
  post: (message) => parentPort.postMessage(message),
  receive: () => receiveMessageOnPort(workerData.replies),
  signal: workerData.signal,
  wasi: Wasi,
})
parentPort.on('message', (job) => thread.run(job))
parentPort.postMessage({ kind: 'ready' })
`
