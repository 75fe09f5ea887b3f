import type { WasmFunction, WasmMemory } from '../../engine.ts'

/** Types of the classes that run components; types only, because the classes are sent to the thread as text. */

/** A resource type: of the host, or of one instance of a component. */
export type ResourceType = {
  readonly owner: object
  readonly destructor?: WasmFunction | undefined
}

/** A field or a case. */
export type LabelType = { readonly name: string; readonly type: ValueType | undefined }

/** A value type with everything it refers to. */
export type ValueType =
  | { readonly is: 'primitive'; readonly name: string }
  | { readonly is: 'record' | 'variant'; readonly labels: readonly LabelType[] }
  | { readonly is: 'flags'; readonly names: readonly string[] }
  | { readonly is: 'list'; readonly of: ValueType }
  | { readonly is: 'own' | 'borrow'; readonly of: ResourceType }

/**
 * A value between two components, or between a component and the host: a number, a bigint (64 bits), text, a boolean,
 * bytes (a list of u8), a list, an object without a prototype (records, flags), `{ tag, value }` (variants), or what
 * represents a resource.
 */
export type Value = unknown
/** A value of a variant. */
export type TaggedValue = { readonly tag: string; readonly value?: Value }

/** The type of a function between components. */
export type FuncType = { readonly params: readonly ValueType[]; readonly result: ValueType | undefined }
/** A function between components. */
export type ComponentFunc = {
  readonly type: FuncType
  readonly call: (args: readonly Value[]) => Value
}

/** The handles of one instance of a component. */
export type HandleTable = {
  add(resource: ResourceType, represents: unknown, owned: boolean): number
  /** What the handle represents. */
  get(handle: number, resource: ResourceType): unknown
  /** Removes the handle. */
  take(handle: number, resource: ResourceType): { readonly represents: unknown; readonly owned: boolean }
}

/** Where the values of one call are stored. */
export type CallContext = {
  readonly memory: WasmMemory | undefined
  readonly realloc: WasmFunction | undefined
  readonly encoding: 'utf8' | 'utf16' | 'latin1+utf16'
  /** The instance on whose side the values are. */
  readonly instance: object
  readonly handles: HandleTable
}

/** A value of a core function. */
export type CoreValue = number | bigint
/** The types of core values. */
export type CoreType = 'i32' | 'i64' | 'f32' | 'f64'

/** Sizes and core types of values in the canonical ABI. */
export type Layout = {
  bytes(name: string): number
  of(type: ValueType): { readonly size: number; readonly align: number }
  flat(type: ValueType): readonly CoreType[]
  flatten(types: readonly ValueType[]): readonly CoreType[]
  payload(cases: readonly LabelType[]): number
  up(at: number, align: number): number
  flagBytes(count: number): number
  tagBytes(cases: number): 1 | 2 | 4
}

/** Words, texts and bytes in the memory of a component. */
export type ValueMemory = {
  view(cx: CallContext, at: number, length: number): DataView
  allocate(cx: CallContext, size: number, align: number): number
  word(cx: CallContext, at: number, bytes: number): number
  setWord(cx: CallContext, at: number, bytes: number, value: number): void
  text(cx: CallContext, at: number, length: number): string
  /** Writes a text to a new place: its address and length. */
  putText(cx: CallContext, value: Value): CoreValue[]
  put(cx: CallContext, bytes: Uint8Array, align: number): number
}

/** Reads and writes values as the canonical ABI lays them out. */
export type Values = {
  /** Reads values from core values, or from memory if there are more than `max`. */
  lift(cx: CallContext, types: readonly ValueType[], flat: readonly CoreValue[], max: number): Value[]
  /** Writes values as core values, or to memory (at `at`, or at a new place) if there are more than `max`. */
  lower(
    cx: CallContext,
    types: readonly ValueType[],
    values: readonly Value[],
    max: number,
    at?: number,
  ): CoreValue[]
}

/** Functions of the host that a component can import, by interface (without its version) and name. */
export type HostInterfaces = {
  readonly functions: Readonly<Record<string, Readonly<Record<string, (...args: never[]) => Value>>>>
  /** The host's part in the life of a resource that the component drops. */
  drop(represents: unknown): void
  readonly stdout: string
}
