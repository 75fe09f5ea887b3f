import { StringDecoder } from 'node:string_decoder'

/** What a script writes, cut while it is read. */
export class BoundedOutput {
  readonly #decoders = { stdout: new StringDecoder('utf8'), stderr: new StringDecoder('utf8') }
  readonly #texts = { stdout: '', stderr: '' }
  #room: number
  #truncated = false

  constructor(characters: number) {
    this.#room = characters
  }

  readonly take = (stream: 'stdout' | 'stderr', chunk: Uint8Array): void => {
    // What will not be kept is not even decoded.
    if (this.#room === 0) this.#truncated ||= chunk.length > 0
    else this.#keep(stream, this.#decoders[stream].write(Buffer.from(chunk)))
  }

  #keep(stream: 'stdout' | 'stderr', text: string): void {
    // Characters as a reader counts them: one of two code units is one.
    const units = Array.from(text)
    const kept = units.slice(0, this.#room)
    this.#room -= kept.length
    this.#truncated ||= kept.length < units.length
    this.#texts[stream] += kept.join('')
  }

  get result(): { readonly stdout: string; readonly stderr: string; readonly truncated: boolean } {
    for (const stream of ['stdout', 'stderr'] as const) this.#keep(stream, this.#decoders[stream].end())
    return { ...this.#texts, truncated: this.#truncated }
  }
}
