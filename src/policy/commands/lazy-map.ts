/**
 * A map and a set that allocate nothing until something is put into them. Every command of a line has several of each, nearly
 * all of them stay empty, and an empty `Map` takes more memory than everything else of a shell's state.
 */

const NOTHING: readonly never[] = []

/** A map from names. */
export class LazyMap<V> {
  private map: Map<string, V> | undefined

  constructor(map?: Map<string, V>) {
    this.map = map
  }

  get size(): number {
    return this.map === undefined ? 0 : this.map.size
  }

  get(name: string): V | undefined {
    return this.map === undefined ? undefined : this.map.get(name)
  }

  has(name: string): boolean {
    return this.map === undefined ? false : this.map.has(name)
  }

  set(name: string, value: V): void {
    if (this.map === undefined) this.map = new Map()
    this.map.set(name, value)
  }

  delete(name: string): void {
    if (this.map !== undefined) this.map.delete(name)
  }

  keys(): Iterable<string> {
    return this.map === undefined ? NOTHING : this.map.keys()
  }

  values(): Iterable<V> {
    return this.map === undefined ? NOTHING : this.map.values()
  }

  entries(): Iterable<readonly [string, V]> {
    return this.map === undefined ? NOTHING : this.map.entries()
  }

  /** An independent copy. */
  copy(): LazyMap<V> {
    return new LazyMap(this.map === undefined || this.map.size === 0 ? undefined : new Map(this.map))
  }
}

/** A set of names. */
export class LazySet {
  private set: Set<string> | undefined

  constructor() {
    this.set = undefined
  }

  get size(): number {
    return this.set === undefined ? 0 : this.set.size
  }

  has(name: string): boolean {
    return this.set === undefined ? false : this.set.has(name)
  }

  add(name: string): void {
    if (this.set === undefined) this.set = new Set()
    this.set.add(name)
  }

  values(): Iterable<string> {
    return this.set === undefined ? NOTHING : this.set
  }
}
