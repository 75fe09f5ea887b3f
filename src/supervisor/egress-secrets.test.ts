import { createServer } from 'node:http'
import { type AddressInfo, connect, createServer as createTcpServer, type Server } from 'node:net'
import { afterEach, expect, test } from 'vitest'
import { Vault } from '../host/secrets/vault.ts'
import type { Event } from '../model/event.ts'
import type { Plan } from '../model/plan.ts'
import { egressWith } from './egress.ts'

/** What isolated commands of one sandbox get from the host of a secret. */

const VALUE = 'SuperSecret-0123456789'
const servers: Server[] = []
afterEach(async () => {
  await Promise.all(servers.splice(0).map((server) => new Promise((resolve) => server.close(resolve))))
})

async function listening(server: Server): Promise<number> {
  servers.push(server)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return (server.address() as AddressInfo).port
}

/** A service that keeps a note with the credentials of its writer. */
function notebook(): Promise<number> {
  let note = ''
  const server = createServer((request, response) => {
    if (request.method === 'PUT') note = `by ${request.headers.authorization}`
    response.end(note)
  })
  return listening(server)
}

type Sandbox = {
  readonly placeholder: string
  readonly records: Event[]
  ask(secrets: readonly string[], method?: string, header?: string): Promise<string>
}

async function sandboxWith(service: number): Promise<Sandbox> {
  const records: Event[] = []
  const network = { mode: 'fetch' as const, allowHosts: [`localhost:${service}`] }
  const prepared = egressWith({
    trail: { append: async (event) => void records.push(event) },
    allowPrivate: ['localhost'],
    upstreams: [],
    declared: [],
    vault: new Vault({}),
    env: { API_TOKEN: VALUE },
    systemCertificates: () => '',
    nodePreload: () => undefined,
  })({ secrets: [`TOKEN=API_TOKEN@http://localhost:${service}`], network })
  const egress = prepared.start({ network } as unknown as Plan, 'sb')
  const ask = async (secrets: readonly string[], method = 'GET', header = ''): Promise<string> => {
    const door = createTcpServer({ allowHalfOpen: true }, (stream) => egress.handle(stream, secrets))
    const client = connect(await listening(door), '127.0.0.1')
    const at = `localhost:${service}`
    client.write(
      `${method} http://${at}/ HTTP/1.1\r\nHost: ${at}\r\n${header}Content-Length: 0\r\nConnection: close\r\n\r\n`,
    )
    let heard = ''
    for await (const chunk of client) heard += String(chunk)
    return heard
  }
  return { placeholder: prepared.facts.placeholders.TOKEN as string, records, ask }
}

test('what one command stored with a secret, no other command reads', async () => {
  const { placeholder, ask } = await sandboxWith(await notebook())
  const header = `Authorization: Bearer ${placeholder}\r\n`
  expect(await ask(['TOKEN'], 'PUT', header)).toContain('200')
  expect(await ask(['TOKEN'])).toContain(`by Bearer ${placeholder}`)
  const other = await ask([])
  expect(other).not.toContain(VALUE)
  expect(other).toContain(`by Bearer ${placeholder}`)
})

test('a command without the secret cannot send its placeholder, and the attempt is recorded', async () => {
  const { placeholder, records, ask } = await sandboxWith(await notebook())
  const said = await ask([], 'PUT', `Authorization: Bearer ${placeholder}\r\n`)
  expect(said).toContain('capability-denied: the secret `TOKEN` was not given to this command')
  expect(await ask(['TOKEN']), 'nothing was sent').not.toContain('Bearer')
  expect(records.filter(({ event }) => event === 'SandboxViolation')).toHaveLength(1)
})
