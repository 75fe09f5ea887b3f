import { chmodSync, createWriteStream, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'

/** Fails when more comes through than expected. */
const atMost = (bytes: number): Transform => {
  let left = bytes
  return new Transform({
    transform(chunk: Uint8Array, _encoding, done) {
      left -= chunk.length
      if (left < 0) done(new Error(`more than ${bytes} bytes were sent`))
      else done(null, chunk)
    },
  })
}

/**
 * Writes what one process sends to a unix socket into a file, `most` bytes at most. `written` resolves when the sender has closed;
 * `close` aborts. The permissions of the socket's directory decide who may connect.
 */
export async function receiveInto(
  socket: string,
  file: string,
  most: number,
): Promise<{ readonly written: Promise<void>; readonly close: () => void }> {
  const server = createServer()
  const written = new Promise<void>((resolve, reject) => {
    server.once('connection', (stream) => {
      pipeline(stream, atMost(most), createWriteStream(file, { flags: 'wx', mode: 0o600 })).then(
        resolve,
        reject,
      )
    })
  })
  written.catch(() => {})
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    rmSync(socket, { force: true })
    server.listen(socket, resolve)
  })
  chmodSync(socket, 0o777)
  return { written, close: () => server.close() }
}
