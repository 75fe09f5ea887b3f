import type { GuestHost } from './guest-host.ts'

type Reply = { readonly ok: unknown } | { readonly error: string; readonly code: string }

/**
 * The interface of Extism plug-ins: memory blocks outside the guest's own memory (used for input, output and error),
 * configuration, variables, HTTP requests and a log.
 *
 * The class text is part of the worker's source, so it may use only its argument and JavaScript globals.
 */
export class ExtismShim {
  readonly #host: GuestHost
  #bytes = new Uint8Array(65_536)
  // Offset 0 is the null pointer, so no block starts there.
  #end = 8
  readonly #lengths = new Map<number, number>()
  /** Freed blocks by size. */
  readonly #freed = new Map<number, number[]>()
  readonly #variables = new Map<string, Uint8Array>()
  readonly #input: Uint8Array
  #output: { readonly at: number; readonly length: number } = { at: 0, length: 0 }
  #error = ''
  #status = 0
  #headers: Readonly<Record<string, string>> = {}

  constructor(host: GuestHost) {
    this.#host = host
    this.#input = new TextEncoder().encode(host.input)
  }

  get stdout(): string {
    const { at, length } = this.#output
    return new TextDecoder().decode(this.#bytes.subarray(at, at + length))
  }

  /** The plug-in's error message, if it failed. */
  get failure(): string {
    return this.#error
  }

  get functions(): Readonly<Record<string, unknown>> {
    return { ...this.#memoryCalls(), ...this.#inputCalls(), ...this.#hostCalls() }
  }

  #memoryCalls(): Record<string, unknown> {
    return {
      alloc: (length: bigint) => BigInt(this.#alloc(this.#size(length))),
      free: (at: bigint) => this.#free(this.#size(at)),
      length: (at: bigint) => BigInt(this.#lengthOf(at)),
      length_unsafe: (at: bigint) => BigInt(this.#lengthOf(at)),
      load_u8: (at: bigint) => this.#view(at, 1).getUint8(0),
      load_u64: (at: bigint) => this.#view(at, 8).getBigInt64(0, true),
      store_u8: (at: bigint, value: number) => this.#view(at, 1).setUint8(0, value),
      store_u64: (at: bigint, value: bigint) => this.#view(at, 8).setBigInt64(0, value, true),
    }
  }

  #inputCalls(): Record<string, unknown> {
    const view = new DataView(this.#input.buffer, this.#input.byteOffset, this.#input.byteLength)
    const inside = (at: bigint, length: number): number => {
      this.#host.charge(10)
      const offset = this.#size(at)
      if (offset + length > this.#input.length) this.#host.abort('an offset lies outside the input')
      return offset
    }
    return {
      input_length: () => BigInt(this.#input.length),
      input_offset: () => BigInt(this.#put(this.#input)),
      input_load_u8: (at: bigint) => view.getUint8(inside(at, 1)),
      input_load_u64: (at: bigint) => view.getBigInt64(inside(at, 8), true),
      output_set: (at: bigint, length: bigint) => {
        const size = this.#size(length)
        if (size > this.#host.messageBytes) this.#host.abort('the output is too long')
        if (size > 0) this.#view(at, size)
        this.#host.charge(100 + size)
        this.#output = { at: this.#size(at), length: size }
      },
      error_set: (at: bigint) => {
        this.#error = at === 0n ? '' : this.#text(at)
      },
      error_get: () => (this.#error === '' ? 0n : BigInt(this.#put(new TextEncoder().encode(this.#error)))),
      reset: () => undefined,
    }
  }

  #hostCalls(): Record<string, unknown> {
    const log = (level: number) => (at: bigint) => this.#host.log(level, this.#text(at))
    return {
      config_get: (at: bigint) => this.#config(this.#text(at)),
      var_get: (at: bigint) => {
        const kept = this.#variables.get(this.#text(at))
        return kept === undefined ? 0n : BigInt(this.#put(kept))
      },
      var_set: (at: bigint, value: bigint) => this.#setVariable(this.#text(at), value),
      http_request: (request: bigint, body: bigint) => this.#request(this.#text(request), body),
      http_status_code: () => this.#status,
      http_headers: () => BigInt(this.#put(new TextEncoder().encode(JSON.stringify(this.#headers)))),
      get_log_level: () => 0,
      log_trace: log(0),
      log_debug: log(1),
      log_info: log(2),
      log_warn: log(3),
      log_error: log(4),
    }
  }

  /** SECURITY: 64-bit numbers of the guest are unsigned; a value that a double cannot hold exactly ends the run. */
  #size(value: bigint): number {
    const size = Number(BigInt.asUintN(64, value))
    return Number.isSafeInteger(size) ? size : this.#host.abort('an offset is out of range')
  }

  #view(at: bigint, length: number): DataView {
    this.#host.charge(10)
    const offset = this.#size(at)
    if (offset === 0 || offset + length > this.#end) this.#host.abort('an offset lies outside the memory')
    return new DataView(this.#bytes.buffer, offset, length)
  }

  #lengthOf(at: bigint): number {
    this.#host.charge(10)
    return this.#lengths.get(this.#size(at)) ?? 0
  }

  #alloc(length: number): number {
    this.#host.charge(100 + length)
    if (length === 0) return 0
    const room = (length + 7) & ~7
    const again = this.#freed.get(room)?.pop()
    const at = again ?? this.#end
    if (again === undefined) {
      // Many times the size limit of a message; the guest's own memory has a separate limit.
      if (length > 64 * 1024 * 1024 || this.#end + room > 64 * 1024 * 1024) return 0
      this.#end += room
      this.#reserve()
    }
    this.#bytes.fill(0, at, at + room)
    this.#lengths.set(at, length)
    return at
  }

  #reserve(): void {
    if (this.#end <= this.#bytes.length) return
    const more = new Uint8Array(Math.max(this.#end, this.#bytes.length * 2))
    more.set(this.#bytes)
    this.#bytes = more
  }

  #free(at: number): void {
    this.#host.charge(10)
    const length = this.#lengths.get(at)
    if (length === undefined) return
    this.#lengths.delete(at)
    const room = (length + 7) & ~7
    this.#freed.set(room, [...(this.#freed.get(room) ?? []).slice(-63), at])
  }

  #put(bytes: Uint8Array): number {
    const at = this.#alloc(bytes.length)
    if (at !== 0) this.#bytes.set(bytes, at)
    return at
  }

  #block(at: bigint): Uint8Array {
    const offset = this.#size(at)
    const length = this.#lengths.get(offset) ?? 0
    this.#host.charge(10 + length)
    if (length > this.#host.messageBytes) this.#host.abort('a block is too long')
    return this.#bytes.slice(offset, offset + length)
  }

  #text(at: bigint): string {
    return new TextDecoder().decode(this.#block(at))
  }

  #config(name: string): bigint {
    const reply = this.#host.ask('env_read', { name }) as Reply
    return 'ok' in reply && typeof reply.ok === 'string'
      ? BigInt(this.#put(new TextEncoder().encode(reply.ok)))
      : 0n
  }

  #setVariable(name: string, value: bigint): void {
    if (value === 0n) {
      this.#variables.delete(name)
      return
    }
    const bytes = this.#block(value)
    const kept = [...this.#variables.values()].reduce((sum, one) => sum + one.length, 0)
    if (kept + bytes.length > this.#host.messageBytes || this.#variables.size > 1000)
      this.#host.abort('the variables are too large')
    this.#variables.set(name, bytes)
  }

  #request(text: string, body: bigint): bigint {
    let asked: unknown
    try {
      asked = JSON.parse(text)
    } catch {
      this.#host.abort('the request is not JSON')
    }
    const given = (typeof asked === 'object' && asked !== null ? asked : {}) as Record<string, unknown>
    const { url, method, headers } = given
    const params = { url, method: method ?? 'GET', headers: headers ?? {} }
    const reply = this.#host.ask(
      'net_fetch',
      body === 0n ? params : { ...params, body: this.#text(body) },
    ) as Reply
    // A refused request ends the call, as in other Extism hosts.
    if (!('ok' in reply)) return this.#host.refuse(reply.code, reply.error)
    const answer = reply.ok as { status: number; headers: Record<string, string>; body: string }
    this.#status = answer.status
    this.#headers = answer.headers
    return BigInt(this.#put(new TextEncoder().encode(answer.body)))
  }
}
