import { Worker } from 'node:worker_threads'

/** Runs in the worker, as plain JavaScript: no file of its own has to be found in the bundle. */
const WORK = `
const { createHash } = require('node:crypto')
const { closeSync, openSync, readSync } = require('node:fs')
const { parentPort, workerData } = require('node:worker_threads')
const file = openSync(workerData, 'r')
const buffer = Buffer.allocUnsafe(1024 * 1024)
const hash = createHash('sha256')
let bytes = 0
for (let read; (read = readSync(file, buffer)) > 0; bytes += read) hash.update(buffer.subarray(0, read))
closeSync(file)
parentPort.postMessage({ sha256: hash.digest('hex'), bytes })
`

/** What a file holds. */
export type HashedFile = { readonly sha256: string; readonly bytes: number }

/** The SHA-256 of a file and its size, in a thread of its own: the disk of a sandbox has gigabytes, most of them zeros. */
export function hashFile(path: string): Promise<HashedFile> {
  return new Promise((resolve, reject) => {
    // SECURITY: the thread gets nothing of our environment and our options.
    const worker = new Worker(WORK, { eval: true, workerData: path, env: {}, execArgv: [] })
    worker.once('message', resolve)
    worker.once('error', reject)
    worker.once('exit', (code) => reject(new Error(`the thread that hashes \`${path}\` ended with ${code}`)))
  })
}
