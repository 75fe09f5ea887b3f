import type { WasmMemory } from '../../engine.ts'
import type { GuestHost } from '../guest-host.ts'
import type { CallContext, CoreValue, Value } from './types.ts'

/**
 * Words, texts and bytes in the memory of a component.
 *
 * SECURITY: every access is inside the memory and costs fuel.
 *
 * The class text is part of the worker's source, so it may use only its arguments and JavaScript globals.
 */
export class ComponentMemory {
  readonly #host: Pick<GuestHost, 'charge'>

  constructor(host: Pick<GuestHost, 'charge'>) {
    this.#host = host
  }

  view(cx: CallContext, at: number, length: number): DataView {
    this.#host.charge(2)
    const { buffer } = this.#memory(cx)
    if (!(at >= 0 && at + length <= buffer.byteLength)) throw new TypeError('a value lies outside the memory')
    return new DataView(buffer, at, length)
  }

  #memory({ memory }: CallContext): WasmMemory {
    if (memory === undefined) throw new TypeError('a function has no memory for its values')
    return memory
  }

  allocate(cx: CallContext, size: number, align: number): number {
    if (cx.realloc === undefined) throw new TypeError('a function has no `realloc`')
    if (size > 0x7fff_ffff) throw new TypeError('a value is too large')
    this.#host.charge(100 + size)
    const at = (cx.realloc(0, 0, align, size) as number) >>> 0
    if (at % align !== 0) throw new TypeError('`realloc` returned a place that is not aligned')
    this.view(cx, at, size)
    return at
  }

  word(cx: CallContext, at: number, bytes: number): number {
    const view = this.view(cx, at, bytes)
    if (bytes === 1) return view.getUint8(0)
    return bytes === 2 ? view.getUint16(0, true) : view.getUint32(0, true)
  }

  setWord(cx: CallContext, at: number, bytes: number, value: number): void {
    const view = this.view(cx, at, bytes)
    if (bytes === 1) view.setUint8(0, value)
    else if (bytes === 2) view.setUint16(0, value, true)
    else view.setUint32(0, value, true)
  }

  text(cx: CallContext, at: number, length: number): string {
    const latin = cx.encoding === 'latin1+utf16' && (length & 0x8000_0000) === 0
    const wide = cx.encoding !== 'utf8' && !latin
    const count = (cx.encoding === 'latin1+utf16' ? length & 0x7fff_ffff : length) * (wide ? 2 : 1)
    const view = this.view(cx, at, count)
    this.#host.charge(count)
    const bytes = new Uint8Array(view.buffer, view.byteOffset, count).slice()
    if (latin) return Array.from(bytes, (byte) => String.fromCharCode(byte)).join('')
    return new TextDecoder(wide ? 'utf-16le' : 'utf-8', { fatal: true, ignoreBOM: true }).decode(bytes)
  }

  putText(cx: CallContext, value: Value): CoreValue[] {
    if (typeof value !== 'string') throw new TypeError('a value is not text')
    const wide = cx.encoding !== 'utf8'
    const bytes = wide ? new Uint8Array(value.length * 2) : new TextEncoder().encode(value)
    if (wide) {
      const view = new DataView(bytes.buffer)
      for (let at = 0; at < value.length; at++) view.setUint16(at * 2, value.charCodeAt(at), true)
    }
    const at = this.put(cx, bytes, wide ? 2 : 1)
    if (!wide) return [at, bytes.length]
    // In the mixed encoding, the highest bit marks UTF-16.
    return [at, cx.encoding === 'utf16' ? value.length : (value.length | 0x8000_0000) >>> 0]
  }

  put(cx: CallContext, bytes: Uint8Array, align: number): number {
    const at = this.allocate(cx, bytes.length, align)
    const view = this.view(cx, at, bytes.length)
    new Uint8Array(view.buffer, at, bytes.length).set(bytes)
    return at
  }
}
