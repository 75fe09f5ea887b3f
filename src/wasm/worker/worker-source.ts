import { AssemblyScriptShim } from './assemblyscript-shim.ts'
import { ExtismShim } from './extism-shim.ts'
import { GuestThread } from './guest-thread.ts'
import { WasiDescriptors } from './wasi-descriptors.ts'
import { WasiPathCalls } from './wasi-path-calls.ts'
import { WasiShim } from './wasi-shim.ts'

/**
 * The source text of the worker. PLATFORM: on Linux each thread has its own priority; guests get the lowest, so that
 * they do not slow down the host's event loop.
 *
 * Built from the class texts, so that source tree and bundle run the same code and no file is looked up at run time.
 */
export const workerSource = (): string => `'use strict'
const { parentPort, receiveMessageOnPort, workerData } = require('node:worker_threads')
const Thread = ${GuestThread.toString()}
const Wasi = ${WasiShim.toString()}
const Files = ${WasiDescriptors.toString()}
const Paths = ${WasiPathCalls.toString()}
const AssemblyScript = ${AssemblyScriptShim.toString()}
const Extism = ${ExtismShim.toString()}
try {
  require('node:os').setPriority(Number(require('node:fs').readlinkSync('/proc/thread-self').split('/').pop()), 19)
} catch {}
const thread = new Thread({
  post: (message) => parentPort.postMessage(message),
  receive: () => receiveMessageOnPort(workerData.replies),
  signal: workerData.signal,
  wasi: Wasi,
  files: Files,
  paths: Paths,
  extism: Extism,
  assemblyscript: AssemblyScript,
  random: (bytes) => { bytes.set(require('node:crypto').randomBytes(bytes.length)) },
  fromBase64: (text) => new Uint8Array(Buffer.from(text, 'base64')),
  toBase64: (bytes) => Buffer.from(bytes).toString('base64'),
})
parentPort.on('message', (job) => thread.run(job))
parentPort.postMessage({ kind: 'ready' })
`
