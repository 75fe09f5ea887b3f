import type { GuestHost } from './guest-host.ts'

/**
 * The functions that AssemblyScript's compiler imports by default from `env`. Strings are UTF-16, with their size in
 * bytes in the four bytes before them.
 *
 * The class text is part of the worker's source, so it may use only its argument and JavaScript globals.
 */
export class AssemblyScriptShim {
  readonly #host: GuestHost

  constructor(host: GuestHost) {
    this.#host = host
  }

  get functions(): Readonly<Record<string, unknown>> {
    return {
      abort: (message: number, file: number, line: number, column: number) => {
        const [said, where] = [this.#text(message), this.#text(file)]
        const place = where === '' ? '' : ` at ${where}:${line >>> 0}:${column >>> 0}`
        this.#host.trap(`abort${said === '' ? '' : `: ${said}`}${place}`)
      },
      trace: (message: number, count: number, ...values: readonly number[]) => {
        const shown = values.slice(0, Math.max(0, count)).join(', ')
        this.#host.log(0, `${this.#text(message)}${shown === '' ? '' : ` ${shown}`}`)
      },
      'console.log': (message: number) => this.#host.log(2, this.#text(message)),
      seed: () => this.#seed(),
    }
  }

  #text(at: number): string {
    this.#host.charge(100)
    if (at >>> 0 < 4) return ''
    const header = this.#host.memory((at >>> 0) - 4, 4)
    const size = new DataView(header.buffer, header.byteOffset, 4).getUint32(0, true)
    const length = Math.min(size, 8192) & ~1
    this.#host.charge(length)
    return new TextDecoder('utf-16le').decode(this.#host.memory(at, length).slice())
  }

  /** The seed of `Math.random`: the same in every run unless a real random source is granted. */
  #seed(): number {
    this.#host.charge(100)
    const bytes = new Uint8Array(4)
    this.#host.random?.(bytes)
    return this.#host.random === undefined ? 0x9e37_79b9 : new DataView(bytes.buffer).getUint32(0, true)
  }
}
