import { type GrpcAddress, GrpcChannel } from '../../host/net/grpc.ts'
import { SandboxError } from '../../model/errors.ts'
import type { RemoteEnd, RemoteLine } from '../remote/process.ts'
import type { RemoteRequest } from '../remote/sandbox.ts'
import {
  bytesOf,
  decode,
  encode,
  type Fields,
  type Message,
  mapOf,
  messageOf,
  numberOf,
  textOf,
} from './protobuf.ts'

/** The calls to an OpenShell gateway, version 0.0.x. Field numbers are those of the protocol. */

const SERVICE = 'openshell.v1.OpenShell'
const ANSWER_MS = 20_000
const READY_MS = 180_000
const POLL_MS = 250
const PHASE = { ready: 2, error: 3, deleting: 4 } as const

/** A sandbox of the gateway. */
export type GatewaySandbox = { readonly id: string; readonly name: string }

/** Only the sandbox's own files; no host may be reached. */
const POLICY: Message = {
  1: 1,
  2: {
    1: true,
    2: ['/usr', '/lib', '/lib64', '/bin', '/sbin', '/etc', '/proc', '/dev/urandom'],
    3: ['/sandbox', '/tmp', '/dev/null'],
  },
  3: { 1: 'hard_requirement' },
  4: { 1: 'sandbox', 2: 'sandbox' },
}

/** A client for the gateway's API. */
export class Gateway {
  readonly #channel: GrpcChannel

  constructor(address: GrpcAddress) {
    this.#channel = new GrpcChannel(address)
  }

  /** The gateway's version; throws if its messages are not supported. */
  async version(timeoutMs = ANSWER_MS): Promise<string> {
    const version = textOf(await this.#ask('Health', {}, timeoutMs), 2)
    if (!/^v?0\.0\./.test(version))
      throw new SandboxError('unsupported', `gateway version \`${version.slice(0, 40)}\` is not supported`, {
        hint: 'use a gateway of version 0.0.x',
      })
    return version
  }

  async create(image: string | undefined, labels: Readonly<Record<string, string>>): Promise<GatewaySandbox> {
    const spec: Message = { ...(image === undefined ? {} : { 6: { 1: image } }), 7: POLICY }
    const made = await this.#ask('CreateSandbox', { 1: spec, 3: mapOf(labels) })
    const sandbox = identityOf(messageOf(made, 1))
    await this.#ready(sandbox).catch(async (error: unknown) => {
      await this.delete(sandbox).catch(() => {})
      throw error
    })
    return sandbox
  }

  async #ready(sandbox: GatewaySandbox): Promise<void> {
    for (const end = Date.now() + READY_MS; Date.now() < end; ) {
      const seen = messageOf(await this.#ask('GetSandbox', { 1: sandbox.name }), 1)
      const phase = numberOf(messageOf(seen, 3), 6)
      if (phase === PHASE.ready) return
      if (phase === PHASE.error || phase === PHASE.deleting)
        throw new SandboxError('launch-failed', 'the gateway could not start the sandbox')
      await new Promise((resolve) => setTimeout(resolve, POLL_MS))
    }
    throw new SandboxError('timeout', 'the gateway did not start the sandbox in time')
  }

  async delete({ name }: GatewaySandbox): Promise<void> {
    await this.#ask('DeleteSandbox', { 1: name }).catch((error: unknown) => {
      if (!(error instanceof SandboxError && error.code === 'not-found')) throw error
    })
  }

  line(sandbox: GatewaySandbox, request: RemoteRequest): RemoteLine {
    return new GatewayLine(this.#channel, sandbox, request)
  }

  close(): void {
    this.#channel.close()
  }

  async #ask(method: string, message: Message, timeoutMs = ANSWER_MS): Promise<Fields> {
    return parsed(await this.#channel.unary(`${SERVICE}/${method}`, encode(message), timeoutMs))
  }
}

function parsed(bytes: Buffer): Fields {
  try {
    return decode(bytes)
  } catch (error) {
    throw new SandboxError('fetch-failed', `the gateway sent an invalid message: ${(error as Error).message}`)
  }
}

function identityOf(sandbox: Fields): GatewaySandbox {
  const metadata = messageOf(sandbox, 1)
  const found = { id: textOf(metadata, 1), name: textOf(metadata, 2) }
  if (found.id === '' || found.name === '')
    throw new SandboxError('fetch-failed', 'the gateway’s response contains no sandbox id')
  return found
}

/** Prints the pid first, which is needed to send signals. */
const ANNOUNCE = 'echo $$; exec "$@"'

/** One remote command, over `ExecSandboxInteractive`. */
class GatewayLine implements RemoteLine {
  readonly #channel: GrpcChannel
  readonly #sandbox: GatewaySandbox
  readonly #request: RemoteRequest
  #pid = 0
  #first = ''
  #call: ReturnType<GrpcChannel['open']> | undefined

  constructor(channel: GrpcChannel, sandbox: GatewaySandbox, request: RemoteRequest) {
    this.#channel = channel
    this.#sandbox = sandbox
    this.#request = request
  }

  async run(onPid: (pid: number) => void, stopped: AbortSignal): Promise<RemoteEnd> {
    const { stdin } = this.#request
    const call = this.#channel.open(`${SERVICE}/ExecSandboxInteractive`, stopped)
    this.#call = call
    await call.write(encode({ 1: this.#start() }))
    if (!stdin) call.end()
    for await (const message of call.messages) {
      const event = parsed(message)
      const [stdout, stderr, exit] = [bytesOf(event, 1), bytesOf(event, 2), bytesOf(event, 3)]
      if (stdout) await this.#print(bytesOf(decode(stdout), 1) ?? Buffer.alloc(0), onPid)
      if (stderr) await this.#request.onOutput('stderr', bytesOf(decode(stderr), 1) ?? Buffer.alloc(0))
      if (exit) return { signaled: false, code: numberOf(decode(exit), 1) & 0xff }
    }
    throw new SandboxError('unreachable', 'the gateway ended the stream before the command ended')
  }

  #start(): Message {
    const { argv, env, cwd, terminal } = this.#request
    return {
      1: this.#sandbox.id,
      2: ['/bin/sh', '-c', ANNOUNCE, 'sh', ...argv],
      3: cwd,
      4: mapOf(env),
      ...(terminal ? { 7: true, 8: terminal.cols, 9: terminal.rows } : {}),
    }
  }

  /** The first line of output is the pid. */
  async #print(bytes: Buffer, onPid: (pid: number) => void): Promise<void> {
    if (this.#pid > 0) {
      await this.#request.onOutput('stdout', bytes)
      return
    }
    const end = bytes.indexOf(0x0a)
    this.#first += bytes.subarray(0, end < 0 ? bytes.length : end).toString('latin1')
    if (end < 0 && this.#first.length < 32) return
    if (!/^\d{1,10}\r?$/.test(this.#first))
      throw new SandboxError('fetch-failed', 'the sandbox has no shell to start commands')
    this.#pid = Number.parseInt(this.#first, 10)
    onPid(this.#pid)
    const rest = bytes.subarray(end + 1)
    if (rest.length > 0) await this.#request.onOutput('stdout', rest)
  }

  async write(data: Uint8Array): Promise<void> {
    await this.#call?.write(encode({ 2: data }))
  }

  async endInput(): Promise<void> {
    this.#call?.end()
  }

  async resize(cols: number, rows: number): Promise<void> {
    await this.#call?.write(encode({ 3: { 1: cols, 2: rows } }))
  }

  /** The protocol has no call for signals, so a second command sends them. */
  async signal(signal: NodeJS.Signals): Promise<void> {
    const name = signal.replace(/^SIG/, '')
    const script = 'kill -s "$1" -- "-$2" 2>/dev/null || kill -s "$1" "$2"'
    const command = ['/bin/sh', '-c', script, 'sh', name, String(this.#pid)]
    const call = this.#channel.open(`${SERVICE}/ExecSandbox`, AbortSignal.timeout(ANSWER_MS))
    await call.write(encode({ 1: this.#sandbox.id, 2: command }))
    call.end()
    for await (const _ of call.messages);
  }
}
