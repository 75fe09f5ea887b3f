import { AssemblyScriptShim } from './assemblyscript-shim.ts'
import { ComponentHandles } from './component/handles.ts'
import { ComponentLayout } from './component/layout.ts'
import { ComponentLinker } from './component/linker.ts'
import { ComponentMemory } from './component/memory.ts'
import { ComponentRunner } from './component/runner.ts'
import { ComponentValues } from './component/values.ts'
import { ExtismShim } from './extism-shim.ts'
import { GuestThread } from './guest-thread.ts'
import { ProgramStreams } from './program-streams.ts'
import { WasiDescriptors } from './wasi/wasi-descriptors.ts'
import { WasiPathCalls } from './wasi/wasi-path-calls.ts'
import { WasiShim } from './wasi/wasi-shim.ts'
import { Wasi2Files } from './wasi/wasi2-files.ts'
import { Wasi2Http } from './wasi/wasi2-http.ts'
import { Wasi2Io } from './wasi/wasi2-io.ts'

/**
 * The source text of the worker. PLATFORM: on Linux each thread has its own priority; guests get the lowest, so that
 * they do not slow down the host's event loop.
 *
 * Built from the class texts, so that source tree and bundle run the same code and no file is looked up at run time.
 */
export const workerSource = (): string => `'use strict'
const { parentPort, receiveMessageOnPort, workerData } = require('node:worker_threads')
const Thread = ${GuestThread.toString()}
const Streams = ${ProgramStreams.toString()}
const Wasi = ${WasiShim.toString()}
const Files = ${WasiDescriptors.toString()}
const Paths = ${WasiPathCalls.toString()}
const AssemblyScript = ${AssemblyScriptShim.toString()}
const Extism = ${ExtismShim.toString()}
const Layout = ${ComponentLayout.toString()}
const Memory = ${ComponentMemory.toString()}
const Values = ${ComponentValues.toString()}
const Handles = ${ComponentHandles.toString()}
const Linker = ${ComponentLinker.toString()}
const Runner = ${ComponentRunner.toString()}
const Io = ${Wasi2Io.toString()}
const Files2 = ${Wasi2Files.toString()}
const Http = ${Wasi2Http.toString()}
const component = (parts, entry) => {
  const { host, guard } = parts
  const streams = new Streams(host)
  const io = new Io(host, streams)
  const files = new Files2(host, io)
  const http = new Http(host, io)
  const interfaces = {
    functions: { ...io.functions, ...files.functions, ...http.functions },
    drop: (value) => { files.drop(value); http.drop(value); io.drop(value) },
    get stdout() { return streams.stdout },
  }
  const runner = new Runner({ ...parts, interfaces }, entry)
  const start = (module, imports) => runner.start(module, imports)
  const layout = new Layout()
  const values = new Values(host, layout, new Memory(host))
  const linker = new Linker({ host, guard, interfaces, start, values, layout, handles: () => new Handles() })
  return { interfaces, run: () => runner.run(linker) }
}
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
  streams: Streams,
  extism: Extism,
  assemblyscript: AssemblyScript,
  component,
  random: (bytes) => { bytes.set(require('node:crypto').randomBytes(bytes.length)) },
  fromBase64: (text) => new Uint8Array(Buffer.from(text, 'base64')),
  toBase64: (bytes) => Buffer.from(bytes).toString('base64'),
})
parentPort.on('message', (job) => thread.run(job))
parentPort.postMessage({ kind: 'ready' })
`
