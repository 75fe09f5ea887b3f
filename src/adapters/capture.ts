/** Shortens long output for a model to its beginning and its end. */

const MARK = (left: number): string => `\n[… ${left} characters omitted …]\n`

/** At most `max` characters, with a marker where text is omitted. */
export function clip(text: string, max: number): string {
  if (text.length <= max) return text
  const head = Math.ceil(max / 2)
  return text.slice(0, head) + MARK(text.length - max) + text.slice(text.length - (max - head))
}

/** One stream's text with bounded memory: keeps the first half of the space and the most recent half. */
export class Capture {
  readonly #half: number
  readonly #decoder = new TextDecoder()
  #head = ''
  #tail = ''
  #left = 0

  constructor(max = 1024 * 1024) {
    this.#half = Math.floor(max / 2)
  }

  push(chunk: Uint8Array): void {
    let text = this.#decoder.decode(chunk, { stream: true })
    if (this.#head.length < this.#half) {
      const room = this.#half - this.#head.length
      this.#head += text.slice(0, room)
      text = text.slice(room)
    }
    this.#tail += text
    // Trimmed at twice the space, so that a long stream is not copied for every chunk.
    if (this.#tail.length > 2 * this.#half) this.#cut()
  }

  #cut(): void {
    const over = Math.max(0, this.#tail.length - this.#half)
    this.#left += over
    this.#tail = this.#tail.slice(over)
  }

  get truncated(): boolean {
    return this.#left > 0 || this.#tail.length > this.#half
  }

  get text(): string {
    if (this.truncated) this.#cut()
    return this.#head + (this.#left > 0 ? MARK(this.#left) : '') + this.#tail
  }

  /** The text so far; the next call begins after it. */
  take(): string {
    const { text } = this
    this.#head = ''
    this.#tail = ''
    this.#left = 0
    return text
  }
}
