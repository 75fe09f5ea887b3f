import type { GuestHost } from '../guest-host.ts'
import type {
  CallContext,
  CoreType,
  CoreValue,
  LabelType,
  Layout,
  TaggedValue,
  Value,
  ValueMemory,
  ValueType,
} from './types.ts'

/**
 * The canonical ABI of components: how values are laid out in memory and passed as core values.
 *
 * SECURITY: everything that is read was written by the guest. Every access is inside its memory, every value costs fuel, and
 * a value that does not fit its type ends the run.
 *
 * The class text is part of the worker's source, so it may use only its arguments and JavaScript globals.
 */
export class ComponentValues {
  readonly #host: Pick<GuestHost, 'charge'>
  readonly #layout: Layout
  readonly #memory: ValueMemory
  readonly #reinterpret = new DataView(new ArrayBuffer(8))

  constructor(host: Pick<GuestHost, 'charge'>, layout: Layout, memory: ValueMemory) {
    this.#host = host
    this.#layout = layout
    this.#memory = memory
  }

  lift(cx: CallContext, types: readonly ValueType[], flat: readonly CoreValue[], max: number): Value[] {
    if (this.#layout.flatten(types).length > max) {
      const [value] = [this.#load(cx, this.#tuple(types), this.#aligned(flat[0], this.#tuple(types)))]
      return types.map((_, index) => (value as Record<string, Value>)[index])
    }
    const source = { flat, at: 0 }
    return types.map((type) => this.#liftFlat(cx, type, source))
  }

  lower(
    cx: CallContext,
    types: readonly ValueType[],
    values: readonly Value[],
    max: number,
    at?: number,
  ): CoreValue[] {
    if (this.#layout.flatten(types).length > max) {
      const tuple = this.#tuple(types)
      const { size, align } = this.#layout.of(tuple)
      const place = at === undefined ? this.#memory.allocate(cx, size, align) : this.#aligned(at, tuple)
      this.#store(cx, tuple, values, place)
      return at === undefined ? [place] : []
    }
    return types.flatMap((type, index) => this.#lowerFlat(cx, type, values[index]))
  }

  #tuple(types: readonly ValueType[]): ValueType & { readonly is: 'record' } {
    return { is: 'record', labels: types.map((type, index) => ({ name: String(index), type })) }
  }

  // Memory

  #aligned(at: CoreValue | undefined, type: ValueType): number {
    const place = Number(at) >>> 0
    if (place % this.#layout.of(type).align !== 0) throw new TypeError('a value is not aligned')
    return place
  }

  #load(cx: CallContext, type: ValueType, at: number): Value {
    switch (type.is) {
      case 'primitive':
        return this.#loadPrimitive(cx, type.name, at)
      case 'record': {
        const record: Record<string, Value> = Object.create(null)
        let place = at
        for (const { name, type: field } of type.labels) {
          const { size, align } = this.#layout.of(field as ValueType)
          place = this.#layout.up(place, align)
          record[name] = this.#load(cx, field as ValueType, place)
          place += size
        }
        return record
      }
      case 'variant': {
        const bytes = this.#layout.tagBytes(type.labels.length)
        const label = this.#case(type.labels, this.#memory.word(cx, at, bytes))
        const offset = this.#layout.payload(type.labels)
        return { tag: label.name, value: label.type && this.#load(cx, label.type, at + offset) }
      }
      case 'flags': {
        const bytes = this.#layout.flagBytes(type.names.length)
        const words = this.#words(type.names.length)
        return this.#flags(
          type.names,
          words.map((index) => this.#memory.word(cx, at + index * 4, Math.min(4, bytes))),
        )
      }
      case 'list':
        return this.#loadList(cx, type.of, this.#memory.word(cx, at, 4), this.#memory.word(cx, at + 4, 4))
      default:
        return this.#liftHandle(cx, type, this.#memory.word(cx, at, 4))
    }
  }

  /** SECURITY: the component declares the names of fields; only those of the value itself exist. */
  #field(value: Value, name: string): Value {
    if (typeof value !== 'object' || value === null) throw new TypeError('a value has no fields')
    return Object.hasOwn(value, name) ? (value as Record<string, Value>)[name] : undefined
  }

  #words(flags: number): number[] {
    return Array.from({ length: Math.ceil(flags / 32) }, (_, index) => index)
  }

  #loadPrimitive(cx: CallContext, name: string, at: number): Value {
    if (name === 'string')
      return this.#memory.text(cx, this.#memory.word(cx, at, 4), this.#memory.word(cx, at + 4, 4))
    const view = this.#memory.view(cx, at, this.#layout.bytes(name))
    switch (name) {
      case 's8':
        return view.getInt8(0)
      case 's16':
        return view.getInt16(0, true)
      case 's64':
        return view.getBigInt64(0, true)
      case 'u64':
        return view.getBigUint64(0, true)
      case 'f32':
        return view.getFloat32(0, true)
      case 'f64':
        return view.getFloat64(0, true)
      default:
        return this.#fromCore(name, this.#memory.word(cx, at, this.#layout.bytes(name)))
    }
  }

  /** A value of at most 32 bits, from its core value. */
  #fromCore(name: string, word: number): Value {
    switch (name) {
      case 'bool':
        return word !== 0
      case 'u8':
        return word & 0xff
      case 'u16':
        return word & 0xffff
      case 's8':
        return (word << 24) >> 24
      case 's16':
        return (word << 16) >> 16
      case 's32':
        return word | 0
      case 'char': {
        const point = word >>> 0
        if (point > 0x10_ffff || (point >= 0xd800 && point <= 0xdfff))
          throw new TypeError('a char is not valid')
        return String.fromCodePoint(point)
      }
      default:
        return word >>> 0
    }
  }

  #loadList(cx: CallContext, of: ValueType, at: number, length: number): Value {
    const { size } = this.#layout.of(of)
    const view = this.#memory.view(cx, at, size * length)
    this.#host.charge(length)
    if (of.is === 'primitive' && of.name === 'u8')
      return new Uint8Array(view.buffer, view.byteOffset, length).slice()
    this.#aligned(at, of)
    const list: Value[] = []
    for (let index = 0; index < length; index++) list.push(this.#load(cx, of, at + index * size))
    return list
  }

  #case(labels: readonly LabelType[], tag: number): LabelType {
    const label = labels[tag]
    if (label === undefined) throw new TypeError('a variant has no such case')
    return label
  }

  #flags(names: readonly string[], words: readonly number[]): Record<string, boolean> {
    const flags: Record<string, boolean> = Object.create(null)
    for (const [index, name] of names.entries())
      flags[name] = (((words[index >> 5] as number) >>> (index & 31)) & 1) === 1
    return flags
  }

  #flagWords(names: readonly string[], value: Value): number[] {
    const words = this.#words(names.length).map(() => 0)
    for (const [index, name] of names.entries())
      if (this.#field(value, name) === true)
        words[index >> 5] = ((words[index >> 5] as number) | (1 << (index & 31))) >>> 0
    return words
  }

  #store(cx: CallContext, type: ValueType, value: Value, at: number): void {
    switch (type.is) {
      case 'primitive':
        this.#storePrimitive(cx, type.name, value, at)
        break
      case 'record': {
        let place = at
        for (const { name, type: field } of type.labels) {
          const { size, align } = this.#layout.of(field as ValueType)
          place = this.#layout.up(place, align)
          this.#store(cx, field as ValueType, this.#field(value, name), place)
          place += size
        }
        break
      }
      case 'variant': {
        const { index, label, inner } = this.#caseOf(type.labels, value)
        this.#memory.setWord(cx, at, this.#layout.tagBytes(type.labels.length), index)
        if (label.type) this.#store(cx, label.type, inner, at + this.#layout.payload(type.labels))
        break
      }
      case 'flags':
        for (const [index, word] of this.#flagWords(type.names, value).entries())
          this.#memory.setWord(
            cx,
            at + index * 4,
            Math.min(4, this.#layout.flagBytes(type.names.length)),
            word,
          )
        break
      default: {
        const words = this.#lowerFlat(cx, type, value)
        for (const [index, word] of words.entries()) this.#memory.setWord(cx, at + index * 4, 4, Number(word))
      }
    }
  }

  #storePrimitive(cx: CallContext, name: string, value: Value, at: number): void {
    const [first, second] = this.#lowerFlat(cx, { is: 'primitive', name }, value)
    const view = this.#memory.view(cx, at, this.#layout.bytes(name))
    if (name === 'f32') view.setFloat32(0, first as number, true)
    else if (name === 'f64') view.setFloat64(0, first as number, true)
    else if (typeof first === 'bigint') view.setBigInt64(0, first, true)
    else this.#memory.setWord(cx, at, Math.min(4, this.#layout.bytes(name)), first as number)
    if (second !== undefined) this.#memory.setWord(cx, at + 4, 4, second as number)
  }

  #caseOf(labels: readonly LabelType[], value: Value) {
    const { tag, value: inner } = value as TaggedValue
    const index = labels.findIndex(({ name }) => name === tag)
    this.#host.charge(1 + (index === -1 ? 0 : index >> 2))
    if (index === -1) throw new TypeError(`a variant has no case \`${String(tag).slice(0, 40)}\``)
    return { index, label: labels[index] as LabelType, inner }
  }

  // Core values

  #liftFlat(
    cx: CallContext,
    type: ValueType,
    source: { readonly flat: readonly CoreValue[]; at: number },
  ): Value {
    this.#host.charge(2)
    const next = (): CoreValue => source.flat[source.at++] as CoreValue
    switch (type.is) {
      case 'primitive': {
        if (type.name === 'string') return this.#memory.text(cx, Number(next()) >>> 0, Number(next()) >>> 0)
        const value = next()
        if (type.name === 'u64') return BigInt.asUintN(64, value as bigint)
        if (type.name === 's64') return BigInt.asIntN(64, value as bigint)
        // SECURITY: a core module may declare any type for its import, and pass a reference.
        if (typeof value !== 'number') throw new TypeError('a core value is not a number')
        return type.name === 'f32' || type.name === 'f64' ? value : this.#fromCore(type.name, value)
      }
      case 'record': {
        const record: Record<string, Value> = Object.create(null)
        for (const { name, type: field } of type.labels)
          record[name] = this.#liftFlat(cx, field as ValueType, source)
        return record
      }
      case 'variant':
        return this.#liftVariant(cx, type, source)
      case 'flags':
        return this.#flags(
          type.names,
          this.#words(type.names.length).map(() => Number(next()) >>> 0),
        )
      case 'list':
        return this.#loadList(cx, type.of, Number(next()) >>> 0, Number(next()) >>> 0)
      default:
        return this.#liftHandle(cx, type, Number(next()) >>> 0)
    }
  }

  #liftVariant(
    cx: CallContext,
    type: Extract<ValueType, { is: 'record' | 'variant' }>,
    source: { readonly flat: readonly CoreValue[]; at: number },
  ): Value {
    const joined = this.#layout.flat(type)
    const start = source.at
    const label = this.#case(type.labels, Number(source.flat[start]) >>> 0)
    source.at = start + joined.length
    if (label.type === undefined) return { tag: label.name }
    const flat = this.#layout
      .flat(label.type)
      .map((want, index) =>
        this.#convert(source.flat[start + 1 + index] as CoreValue, joined[index + 1] as CoreType, want),
      )
    return { tag: label.name, value: this.#liftFlat(cx, label.type, { flat, at: 0 }) }
  }

  /** The bits of a core value as another type: cases of a variant share their core values. */
  #convert(value: CoreValue, from: CoreType, to: CoreType): CoreValue {
    if (from === to) return value
    const view = this.#reinterpret
    view.setBigInt64(0, 0n, true)
    if (from === 'i64') view.setBigInt64(0, value as bigint, true)
    else if (from === 'f64') view.setFloat64(0, value as number, true)
    else if (from === 'f32') view.setFloat32(0, value as number, true)
    else view.setInt32(0, value as number, true)
    if (to === 'i64') return view.getBigInt64(0, true)
    if (to === 'f64') return view.getFloat64(0, true)
    return to === 'f32' ? view.getFloat32(0, true) : view.getInt32(0, true)
  }

  #lowerFlat(cx: CallContext, type: ValueType, value: Value): CoreValue[] {
    this.#host.charge(2)
    switch (type.is) {
      case 'primitive':
        return this.#lowerPrimitive(cx, type.name, value)
      case 'record':
        return type.labels.flatMap(({ name, type: field }) =>
          this.#lowerFlat(cx, field as ValueType, this.#field(value, name)),
        )
      case 'variant': {
        const { index, label, inner } = this.#caseOf(type.labels, value)
        const [, ...joined] = this.#layout.flat(type)
        const flat = label.type ? this.#lowerFlat(cx, label.type, inner) : []
        const own = label.type ? this.#layout.flat(label.type) : []
        const rest = joined.map((core, at) => {
          const given = flat[at]
          if (given === undefined) return core === 'i64' ? 0n : 0
          return this.#convert(given, own[at] as CoreType, core)
        })
        return [index, ...rest]
      }
      case 'flags':
        return this.#flagWords(type.names, value).map((word) => word | 0)
      case 'list':
        return this.#lowerList(cx, type.of, value)
      default:
        return [this.#lowerHandle(cx, type, value)]
    }
  }

  #lowerPrimitive(cx: CallContext, name: string, value: Value): CoreValue[] {
    switch (name) {
      case 'bool':
        return [value === true ? 1 : 0]
      case 'u64':
      case 's64':
        return [BigInt.asIntN(64, BigInt(value as bigint))]
      case 'f32':
      case 'f64':
        return [Number(value)]
      case 'char':
        return [(value as string).codePointAt(0) as number]
      case 'string':
        return this.#memory.putText(cx, value)
      default:
        return [Number(this.#fromCore(name, Number(value)))]
    }
  }

  #lowerList(cx: CallContext, of: ValueType, value: Value): CoreValue[] {
    if (value instanceof Uint8Array && of.is === 'primitive' && of.name === 'u8')
      return [this.#memory.put(cx, value, 1), value.length]
    if (!Array.isArray(value) && !(value instanceof Uint8Array)) throw new TypeError('a value is not a list')
    const { size, align } = this.#layout.of(of)
    const at = this.#memory.allocate(cx, size * value.length, align)
    for (const [index, item] of value.entries()) this.#store(cx, of, item, at + index * size)
    return [at, value.length]
  }

  #liftHandle(cx: CallContext, type: Extract<ValueType, { is: 'own' | 'borrow' }>, handle: number): unknown {
    if (type.is === 'borrow') return cx.handles.get(handle, type.of)
    const { represents, owned } = cx.handles.take(handle, type.of)
    if (!owned) throw new TypeError('a borrowed resource is given away')
    return represents
  }

  #lowerHandle(cx: CallContext, type: Extract<ValueType, { is: 'own' | 'borrow' }>, value: Value): number {
    // An instance that implements a resource gets its own representation.
    if (type.is === 'borrow' && type.of.owner === cx.instance) return Number(value) | 0
    return cx.handles.add(type.of, value, type.is === 'own')
  }
}
