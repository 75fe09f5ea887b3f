import { chmodSync, createWriteStream } from 'node:fs'
import { createServer } from 'node:net'
import { pipeline } from 'node:stream/promises'

/**
 * Writes what one process sends to a socket into a file. `written` resolves when it has closed its end; `close` gives up.
 * The directory of the socket decides who may come; within it anybody may.
 */
export async function receiveInto(
  socket: string,
  file: string,
): Promise<{ readonly written: Promise<void>; readonly close: () => void }> {
  const server = createServer()
  const written = new Promise<void>((resolve, reject) => {
    server.once('connection', (stream) => {
      pipeline(stream, createWriteStream(file, { flags: 'wx', mode: 0o600 })).then(resolve, reject)
    })
  })
  written.catch(() => {})
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(socket, resolve)
  })
  chmodSync(socket, 0o777)
  return { written, close: () => server.close() }
}
