import { forwardPort, tcpThrough } from '../../host/net/port-forward.ts'
import { visible } from '../../model/text/visible.ts'
import { address } from '../server/remote.ts'
import { err } from '../terminal/output.ts'

/** Leads a port of this machine's loopback to a port in a sandbox until Ctrl-C: any protocol on TCP. */
export async function openPort(id: string, port: number, listen: number | undefined): Promise<number> {
  const { url, apiKey } = address()
  const target = `${url}/v1/sandboxes/${id}/ports/${port}/`
  const forward = await forwardPort(() => tcpThrough(target, { authorization: `Bearer ${apiKey}` }), {
    listen: listen ?? port,
    onError: ({ message }) => err(`ringfence: ${visible(message)}\n`),
  })
  err(`ringfence: ${new URL(forward.url).host} leads to port ${port} in ${visible(id)}; Ctrl-C ends it\n`)
  const running = setInterval(() => {}, 60_000)
  await new Promise<void>((resolve) => {
    for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => resolve())
  })
  clearInterval(running)
  forward.close()
  return 0
}
