import {
  createSecureServer,
  createServer,
  type SecureServerOptions,
  type ServerHttp2Stream,
} from 'node:http2'
import type { AddressInfo } from 'node:net'
import type { BackendSandbox } from '../../src/backends/backend.ts'
import {
  decode,
  encode,
  type Fields,
  type Message,
  messageOf,
  numberOf,
  textOf,
} from '../../src/backends/openshell/protobuf.ts'

/**
 * A stand-in for NVIDIA OpenShell's gateway, because the real one cannot run here: the same methods and messages, strict
 * about everything it gets, with our own sandboxes behind it.
 */
export type StandIn = {
  readonly url: string
  /** The received calls with their tokens. */
  readonly calls: { readonly method: string; readonly token: string | undefined }[]
  readonly living: () => number
  readonly close: () => Promise<void>
}

export type StandInOptions = {
  readonly open: () => Promise<BackendSandbox>
  readonly version?: string
  readonly token?: string
  /** Answers every call with these bytes. */
  readonly garbage?: Buffer
  readonly hangs?: boolean
  readonly phase?: number
  /** Uses TLS and requires client certificates. */
  readonly tls?: SecureServerOptions
}

class Refused extends Error {
  readonly code: number
  constructor(code: number, message: string) {
    super(message)
    this.code = code
  }
}

/** Fields that a message has; anything else in it is a mistake of ours. */
const KNOWN: Readonly<Record<string, readonly number[]>> = {
  Health: [],
  CreateSandbox: [1, 2, 3],
  GetSandbox: [1],
  DeleteSandbox: [1],
  ExecSandbox: [1, 2, 3, 4, 5, 6, 7, 8, 9],
  ExecSandboxInteractive: [1, 2, 3],
}

function strict(fields: Fields, known: readonly number[], what: string): Fields {
  const strange = [...fields.keys()].filter((field) => !known.includes(field))
  if (strange.length > 0) throw new Refused(3, `${what} has no field ${strange}`)
  return fields
}

export async function standIn(options: StandInOptions): Promise<StandIn> {
  const calls: { method: string; token: string | undefined }[] = []
  const sandboxes = new Map<
    string,
    { readonly name: string; readonly inside: BackendSandbox; polls: number }
  >()
  const server = options.tls ? createSecureServer({ ...options.tls, requestCert: true }) : createServer()
  server.on('stream', (stream, headers) => {
    const method = String(headers[':path']).replace('/openshell.v1.OpenShell/', '')
    const token = headers.authorization as string | undefined
    calls.push({ method, token })
    stream.on('error', () => {})
    if (options.hangs) return
    stream.respond({ ':status': 200, 'content-type': 'application/grpc+proto' }, { waitForTrailers: true })
    const finish = (code: number, message = ''): void => {
      stream.on('wantTrailers', () =>
        stream.sendTrailers({ 'grpc-status': String(code), 'grpc-message': encodeURIComponent(message) }),
      )
      stream.end()
    }
    if (options.garbage) {
      stream.write(options.garbage)
      return finish(0)
    }
    if (options.token !== undefined && token !== `Bearer ${options.token}`) return finish(16, 'who are you')
    answer(method, stream).then(
      () => finish(0),
      (error: Error) => finish(error instanceof Refused ? error.code : 13, error.message),
    )
  })

  async function answer(method: string, stream: ServerHttp2Stream): Promise<void> {
    const known = KNOWN[method]
    if (!known) throw new Refused(12, method)
    const messages = incoming(stream)
    const first = strict(decode((await messages.next()).value ?? Buffer.alloc(0)), known, method)
    if (method === 'ExecSandboxInteractive') return exec(messageOf(first, 1), stream, messages)
    if (method === 'ExecSandbox') return exec(first, stream, undefined)
    stream.write(framed((await UNARY[method]?.(first)) ?? {}))
  }

  const UNARY: Readonly<Record<string, (message: Fields) => Promise<Message>>> = {
    Health: async () => ({ 1: 1, 2: options.version ?? '0.0.40' }),
    async CreateSandbox(message) {
      const spec = strict(messageOf(message, 1), [1, 5, 6, 7, 8, 9], 'SandboxSpec')
      const policy = strict(messageOf(spec, 7), [1, 2, 3, 4, 5, 6], 'SandboxPolicy')
      if (numberOf(policy, 1) !== 1) throw new Refused(3, 'a policy is required')
      if (textOf(messageOf(policy, 3), 1) !== 'hard_requirement') throw new Refused(3, 'landlock is required')
      const id = `id-${sandboxes.size + 1}`
      const name = `name-${sandboxes.size + 1}`
      sandboxes.set(id, { name, inside: await options.open(), polls: 0 })
      return { 1: { 1: { 1: id, 2: name }, 3: { 6: 1 } } }
    },
    async GetSandbox(message) {
      const found = [...sandboxes].find(([, one]) => one.name === textOf(message, 1))
      if (!found) throw new Refused(5, 'no such sandbox')
      const [id, one] = found
      return { 1: { 1: { 1: id, 2: one.name }, 3: { 6: one.polls++ === 0 ? 1 : (options.phase ?? 2) } } }
    },
    async DeleteSandbox(message) {
      const found = [...sandboxes].find(([, one]) => one.name === textOf(message, 1))
      if (!found) throw new Refused(5, 'no such sandbox')
      sandboxes.delete(found[0])
      await found[1].inside.close()
      return { 1: true }
    },
  }

  async function exec(
    request: Fields,
    stream: ServerHttp2Stream,
    input: AsyncGenerator<Buffer> | undefined,
  ): Promise<void> {
    strict(request, KNOWN.ExecSandbox as readonly number[], 'ExecSandboxRequest')
    const sandbox = sandboxes.get(textOf(request, 1))
    if (!sandbox) throw new Refused(5, 'no such sandbox')
    const argv = (request.get(2) ?? []).map(String) as [string, ...string[]]
    const env = Object.fromEntries(
      (request.get(4) ?? []).map((pair) => {
        const entry = decode(pair as Buffer)
        return [textOf(entry, 1), textOf(entry, 2)]
      }),
    )
    const cwd = textOf(request, 3)
    const tty = numberOf(request, 7) === 1
    const running = await sandbox.inside.start(
      { argv, env, ...(cwd ? { cwd } : {}) },
      {
        stdin: true,
        ...(tty ? { terminal: { cols: numberOf(request, 8), rows: numberOf(request, 9) } } : {}),
        output: (name, chunk) => void stream.write(framed({ [name === 'stdout' ? 1 : 2]: { 1: chunk } })),
      },
    )
    void feed(input, running)
    const { outcome } = await running.result
    stream.write(framed({ 3: { 1: outcome.kind === 'exited' ? outcome.code : 137 } }))
  }

  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `${options.tls ? 'https' : 'http'}://127.0.0.1:${(server.address() as AddressInfo).port}`,
    calls,
    living: () => sandboxes.size,
    close: async () => {
      for (const { inside } of sandboxes.values()) await inside.close()
      server.close()
    },
  }
}

async function feed(
  input: AsyncGenerator<Buffer> | undefined,
  running: Awaited<ReturnType<BackendSandbox['start']>>,
): Promise<void> {
  try {
    if (input)
      for await (const bytes of input) {
        const message = strict(decode(bytes), [2, 3], 'ExecSandboxInput')
        const data = message.get(2)?.[0]
        const size = messageOf(message, 3)
        if (Buffer.isBuffer(data)) await running.write(data)
        else running.resize({ cols: numberOf(size, 1), rows: numberOf(size, 2) })
      }
    running.endInput()
  } catch {
    // The command has ended.
  }
}

const framed = (message: Message): Buffer => {
  const body = encode(message)
  const head = Buffer.alloc(5)
  head.writeUInt32BE(body.length, 1)
  return Buffer.concat([head, body])
}

async function* incoming(stream: ServerHttp2Stream): AsyncGenerator<Buffer> {
  let rest = Buffer.alloc(0)
  for await (const chunk of stream) {
    rest = Buffer.concat([rest, chunk as Buffer])
    while (rest.length >= 5 && rest.length >= 5 + rest.readUInt32BE(1)) {
      const end = 5 + rest.readUInt32BE(1)
      yield rest.subarray(5, end)
      rest = rest.subarray(end)
    }
  }
}
