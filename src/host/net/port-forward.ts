import { createServer } from 'node:net'
import type { Duplex } from 'node:stream'

/** The address of a forwarded port. */
export type PortForward = { readonly url: string; readonly close: () => void }

/** Forwards a port on the host's loopback to a sandbox. Every user of this host can connect to it. */
export function forwardPort(connect: () => Promise<Duplex>): Promise<PortForward> {
  const open = new Set<Duplex>()
  const server = createServer((outside) => {
    open.add(outside)
    outside.on('close', () => open.delete(outside))
    outside.on('error', () => outside.destroy())
    connect().then(
      (inside) => {
        inside.on('error', () => outside.destroy())
        inside.on('close', () => outside.destroy())
        outside.on('close', () => inside.destroy())
        outside.pipe(inside).pipe(outside)
      },
      () => outside.destroy(),
    )
  })
  const close = (): void => {
    for (const socket of open) socket.destroy()
    server.close()
  }
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const address = server.address()
      const port = typeof address === 'object' && address ? address.port : 0
      // An open port must not keep the process alive.
      server.unref()
      resolve({ url: `http://127.0.0.1:${port}`, close })
    })
  })
}
