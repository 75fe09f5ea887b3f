import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'

/** A server outside of all sandboxes that sees what they do: each beat names a sandbox and its epoch. */
export type Witness = {
  readonly port: number
  readonly beats: readonly Beat[]
  /** The configuration that lets sandboxes reach it through the proxy. */
  readonly config: string
  /** A command that beats for ever. */
  readonly command: (name: string, epoch?: number) => string
  readonly of: (name: string) => readonly Beat[]
  readonly close: () => Promise<void>
}

type Beat = { readonly name: string; readonly epoch: number; readonly at: number }

/** `address`: where it listens; default: loopback. */
export async function startWitness(address = '127.0.0.1'): Promise<Witness> {
  const beats: Beat[] = []
  const server = createServer((request, response) => {
    const [, name = '', epoch = '0'] = (request.url ?? '').split('/')
    beats.push({ name, epoch: Number(epoch), at: performance.now() })
    response.end('ok')
  })
  await new Promise<void>((resolve) => server.listen(0, address, resolve))
  const { port } = server.address() as AddressInfo
  const url = (name: string, epoch: number): string => `http://${address}:${port}/${name}/${epoch}`
  return {
    port,
    beats,
    config: `[network]\nallow_private = ["${address}"]\nallow_hosts = ["${address}:${port}"]\n[[policy.rule]]\nprefix = ["curl"]\naction = "sandbox"\n`,
    command: (name, epoch = 1) =>
      `while :; do curl -s -m 5 --noproxy x.invalid -x http://127.0.0.1:3128 ${url(name, epoch)} >/dev/null; sleep 0.05; done`,
    of: (name) => beats.filter((beat) => beat.name === name),
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}
