import { type Duplex, duplexPair } from 'node:stream'

/** A frame as guest/agent/common/channel.c writes it. */
export function agentFrame(
  type: string,
  id: number,
  payload: string | Uint8Array = '',
  length?: number,
): Buffer {
  const body = Buffer.from(payload as string)
  const header = Buffer.alloc(9)
  header.write(type, 0, 'latin1')
  header.writeUInt32LE(id >>> 0, 1)
  header.writeUInt32LE(length ?? body.length, 5)
  return Buffer.concat([header, body])
}

export const number32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32LE(value >>> 0)
  return bytes
}

export type Heard = { readonly type: string; readonly id: number; readonly payload: Buffer }

/** The agent's end of a channel in tests: sends any frame and records what the host sends. */
export class AgentSide {
  readonly host: Duplex
  readonly heard: Heard[] = []
  readonly #end: Duplex
  #rest: Buffer = Buffer.alloc(0)

  constructor() {
    const [host, end] = duplexPair()
    this.host = host
    this.#end = end
    end.on('data', (chunk: Buffer) => this.#take(chunk))
    end.on('error', () => {})
  }

  say(type: string, id: number, payload: string | Uint8Array = ''): this {
    this.#end.write(agentFrame(type, id, payload))
    return this
  }

  raw(bytes: Uint8Array): this {
    this.#end.write(bytes)
    return this
  }

  /** Stops reading. */
  deaf(): void {
    this.#end.removeAllListeners('data')
    this.#end.pause()
  }

  die(): void {
    this.#end.destroy()
    this.host.destroy()
  }

  /** What the host sent of one type, in order. */
  of(type: string): Heard[] {
    return this.heard.filter((one) => one.type === type)
  }

  #take(chunk: Buffer): void {
    this.#rest = Buffer.concat([this.#rest, chunk])
    while (this.#rest.length >= 9 && this.#rest.length >= 9 + this.#rest.readUInt32LE(5)) {
      const end = 9 + this.#rest.readUInt32LE(5)
      const type = String.fromCharCode(this.#rest[0] as number)
      const payload = Buffer.from(this.#rest.subarray(9, end))
      this.heard.push({ type, id: this.#rest.readUInt32LE(1), payload })
      this.#rest = this.#rest.subarray(end)
    }
  }
}

export const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))
/** Waits until pending data has arrived. */
export async function settle(turns = 12): Promise<void> {
  for (let done = 0; done < turns; done++) await turn()
}
