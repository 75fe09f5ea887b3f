import type { CoreType, LabelType, ValueType } from './types.ts'

/**
 * Sizes and core types of values in the canonical ABI. Each type is measured once, so that types that contain each other many
 * times cost no more than their definitions.
 *
 * The class text is part of the worker's source, so it may use only JavaScript globals.
 */
export class ComponentLayout {
  readonly #sizes = new WeakMap<ValueType, { readonly size: number; readonly align: number }>()
  readonly #flat = new WeakMap<ValueType, readonly CoreType[]>()
  readonly #payloads = new WeakMap<
    readonly LabelType[],
    { readonly offset: number; readonly align: number }
  >()
  readonly #bytesOf: Readonly<Record<string, number>> = {
    ...{ bool: 1, s8: 1, u8: 1, s16: 2, u16: 2, s32: 4, u32: 4, f32: 4, char: 4 },
    ...{ s64: 8, u64: 8, f64: 8, string: 8 },
  }

  /** The size of a primitive value. */
  bytes(name: string): number {
    return this.#bytesOf[name] as number
  }

  /** The core types of values. More than 17 are never needed: they are passed in memory. */
  flatten(types: readonly ValueType[]): readonly CoreType[] {
    const all: CoreType[] = []
    for (const type of types) {
      all.push(...this.flat(type))
      if (all.length > 16) return all.slice(0, 17)
    }
    return all
  }

  /** The size and alignment of a value in memory. */
  of(type: ValueType): { readonly size: number; readonly align: number } {
    const known = this.#sizes.get(type)
    if (known) return known
    const made = this.#layoutOf(type)
    this.#sizes.set(type, made)
    return made
  }

  #layoutOf(type: ValueType): { readonly size: number; readonly align: number } {
    switch (type.is) {
      case 'primitive': {
        const size = this.bytes(type.name)
        return { size, align: type.name === 'string' ? 4 : size }
      }
      case 'record': {
        let [size, align] = [0, 1]
        for (const { type: field } of type.labels) {
          const inner = this.of(field as ValueType)
          size = this.up(size, inner.align) + inner.size
          align = Math.max(align, inner.align)
        }
        return { size: this.up(size, align), align }
      }
      case 'variant': {
        const { offset, align } = this.#aligned(type.labels)
        const most = Math.max(0, ...type.labels.map(({ type: inner }) => (inner ? this.of(inner).size : 0)))
        return { size: this.up(offset + most, align), align }
      }
      case 'flags': {
        const size = this.flagBytes(type.names.length)
        return { size, align: Math.min(size, 4) }
      }
      case 'list':
        return { size: 8, align: 4 }
      default:
        return { size: 4, align: 4 }
    }
  }

  up(at: number, align: number): number {
    return Math.ceil(at / align) * align
  }

  flagBytes(count: number): number {
    if (count <= 8) return 1
    return count <= 16 ? 2 : 4 * Math.ceil(count / 32)
  }

  tagBytes(cases: number): 1 | 2 | 4 {
    if (cases <= 256) return 1
    return cases <= 65_536 ? 2 : 4
  }

  /** Where the payload of a variant starts. */
  payload(cases: readonly LabelType[]): number {
    return this.#aligned(cases).offset
  }

  #aligned(cases: readonly LabelType[]): { readonly offset: number; readonly align: number } {
    const known = this.#payloads.get(cases)
    if (known) return known
    const tag = this.tagBytes(cases.length)
    let align = 1
    for (const { type } of cases) if (type) align = Math.max(align, this.of(type).align)
    const made = { offset: this.up(tag, align), align: Math.max(tag, align) }
    this.#payloads.set(cases, made)
    return made
  }

  /** The core types of one value. */
  flat(type: ValueType): readonly CoreType[] {
    const known = this.#flat.get(type)
    if (known) return known
    const made = this.#flattened(type)
    this.#flat.set(type, made)
    return made
  }

  #flattened(type: ValueType): readonly CoreType[] {
    switch (type.is) {
      case 'primitive': {
        if (type.name === 'string') return ['i32', 'i32']
        if (type.name === 'f32' || type.name === 'f64') return [type.name]
        return [type.name === 's64' || type.name === 'u64' ? 'i64' : 'i32']
      }
      case 'record':
        return this.flatten(type.labels.map(({ type: field }) => field as ValueType))
      case 'variant': {
        const joined: CoreType[] = []
        for (const { type: inner } of type.labels)
          for (const [index, core] of (inner ? this.flat(inner) : []).entries())
            joined[index] = this.#join(joined[index], core)
        return ['i32' as const, ...joined].slice(0, 17)
      }
      case 'flags':
        return Array.from({ length: Math.min(17, Math.ceil(type.names.length / 32)) }, () => 'i32' as const)
      case 'list':
        return ['i32', 'i32']
      default:
        return ['i32']
    }
  }

  #join(a: CoreType | undefined, b: CoreType): CoreType {
    if (a === undefined || a === b) return b
    return (a === 'i32' && b === 'f32') || (a === 'f32' && b === 'i32') ? 'i32' : 'i64'
  }
}
