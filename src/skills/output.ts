import { StringDecoder } from 'node:string_decoder'

/** Collects a script's output up to a limit. */
export class BoundedOutput {
  readonly #decoders = { stdout: new StringDecoder('utf8'), stderr: new StringDecoder('utf8') }
  readonly #texts = { stdout: '', stderr: '' }
  #room: number
  #truncated = false

  constructor(characters: number) {
    this.#room = characters
  }

  readonly take = (stream: 'stdout' | 'stderr', chunk: Uint8Array): void => {
    // Output past the limit is not decoded.
    if (this.#room === 0) this.#truncated ||= chunk.length > 0
    else this.#keep(stream, this.#decoders[stream].write(Buffer.from(chunk)))
  }

  #keep(stream: 'stdout' | 'stderr', text: string): void {
    // Count code points: a surrogate pair is one character.
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
