import { chmodSync, createWriteStream } from 'node:fs'
import { createServer } from 'node:net'
import { pipeline } from 'node:stream/promises'

/**
 * Writes what one process sends to a unix socket into a file. `written` resolves when the sender has closed; `close`
 * aborts. The permissions of the socket's directory decide who may connect.
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
