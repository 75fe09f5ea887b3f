import { createSocket, type Socket as Datagrams } from 'node:dgram'
import { once } from 'node:events'
import { type AddressInfo, createServer, isIPv6, type Server, type Socket } from 'node:net'

type Question = { readonly name: string; readonly type: 'A' | 'AAAA' | 'other'; readonly tcp: boolean }

/** An address of the name that was asked for, or of another one; or the other name of one. */
type Answered =
  | { readonly address: string; readonly name?: string }
  | { readonly alias: string; readonly name?: string }

/** What the server sends: records, a failure, bytes of its own; or nothing. */
type Reply =
  | {
      readonly records?: readonly Answered[]
      readonly rcode?: number
      readonly truncated?: boolean
      readonly bytes?: Buffer
    }
  | undefined

export const NXDOMAIN = 3
const TYPES: Readonly<Record<number, Question['type']>> = { 1: 'A', 28: 'AAAA' }

/** A name server on loopback, over UDP and TCP. */
export class NameServer {
  readonly asked: Question[] = []
  readonly #answer: (question: Question) => Reply
  readonly #datagrams: Datagrams
  readonly #server: Server
  readonly #open = new Set<Socket>()

  private constructor(answer: (question: Question) => Reply) {
    this.#answer = answer
    this.#datagrams = createSocket('udp4', (bytes, { port, address }) => {
      const reply = this.#replyTo(bytes, false)
      if (reply) this.#datagrams.send(reply, port, address)
    })
    this.#server = createServer((socket) => {
      this.#open.add(socket)
      socket.on('error', () => undefined).on('close', () => this.#open.delete(socket))
      let waiting = Buffer.alloc(0)
      socket.on('data', (bytes) => {
        waiting = Buffer.concat([waiting, bytes])
        while (waiting.length > 2 && waiting.length >= 2 + waiting.readUInt16BE(0)) {
          const end = 2 + waiting.readUInt16BE(0)
          const reply = this.#replyTo(waiting.subarray(2, end), true)
          if (reply) socket.write(Buffer.concat([number(reply.length), reply]))
          waiting = waiting.subarray(end)
        }
      })
    })
  }

  static async start(answer: (question: Question) => Reply): Promise<NameServer> {
    for (;;) {
      const server = new NameServer(answer)
      if (await server.#listen()) return server
      server.close()
    }
  }

  /** Both listen on one port, which may be in use for one of them. */
  async #listen(): Promise<boolean> {
    try {
      await once(this.#server.listen(0, '127.0.0.1'), 'listening')
      await once(this.#datagrams.bind((this.#server.address() as AddressInfo).port, '127.0.0.1'), 'listening')
      return true
    } catch {
      return false
    }
  }

  get address(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`
  }

  /** The names that were asked for, without the order and the repetitions of the two families. */
  get names(): readonly string[] {
    return [...new Set(this.asked.map(({ name }) => name))]
  }

  close(): void {
    for (const socket of this.#open) socket.destroy()
    this.#server.close()
    this.#datagrams.close()
  }

  #replyTo(query: Buffer, tcp: boolean): Buffer | undefined {
    const { name, end } = readName(query, 12)
    const type = TYPES[query.readUInt16BE(end)] ?? 'other'
    this.asked.push({ name, type, tcp })
    const reply = this.#answer({ name, type, tcp })
    if (reply === undefined || reply.bytes) return reply?.bytes
    const { records = [], rcode = 0, truncated = false } = reply
    const head = Buffer.concat([query.subarray(0, 2), number(0x8180 | (truncated ? 0x200 : 0) | rcode)])
    const counts = Buffer.concat([1, records.length, 0, 0].map(number))
    return Buffer.concat([
      head,
      counts,
      query.subarray(12, end + 4),
      ...records.map((one) => recordBytes(one, name)),
    ])
  }
}

/** The addresses that fit the type of the question. */
export const addresses = ({ type }: Question, ...all: readonly string[]): Reply => ({
  records: all.filter((one) => isIPv6(one) === (type === 'AAAA')).map((address) => ({ address })),
})

const number = (value: number): Buffer => Buffer.from([value >> 8, value & 255])

function readName(bytes: Buffer, from: number): { readonly name: string; readonly end: number } {
  const labels: string[] = []
  let at = from
  for (let size = bytes[at] ?? 0; size > 0; size = bytes[at] ?? 0) {
    labels.push(bytes.toString('latin1', at + 1, at + 1 + size))
    at += size + 1
  }
  return { name: labels.join('.').toLowerCase(), end: at + 1 }
}

const nameBytes = (name: string): Buffer =>
  Buffer.concat([
    ...name.split('.').map((label) => Buffer.from([label.length, ...Buffer.from(label, 'latin1')])),
    Buffer.of(0),
  ])

function recordBytes(record: Answered, asked: string): Buffer {
  const [type, data] = 'alias' in record ? [5, nameBytes(record.alias)] : addressBytes(record.address)
  const owner = nameBytes(record.name ?? asked)
  return Buffer.concat([owner, number(type), number(1), number(0), number(60), number(data.length), data])
}

function addressBytes(address: string): [number, Buffer] {
  if (!isIPv6(address)) return [1, Buffer.from(address.split('.').map(Number))]
  const [before = '', after = ''] = address.split('::')
  const parts = (text: string): string[] => text.split(':').filter(Boolean)
  const zeros = Array(8 - parts(before).length - parts(after).length).fill('0')
  const all = [...parts(before), ...zeros, ...parts(after)]
  return [28, Buffer.concat(all.map((part) => number(Number.parseInt(part, 16))))]
}
