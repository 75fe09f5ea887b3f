/** A decoded component: its definitions in order, as plain data that can be sent to a thread. */

type CoreSort =
  | 'core func'
  | 'core table'
  | 'core memory'
  | 'core global'
  | 'core tag'
  | 'core type'
  | 'core module'
  | 'core instance'
/** An index space of a component. */
export type Sort = CoreSort | 'func' | 'type' | 'component' | 'instance'

type SortIndex = { readonly sort: Sort; readonly index: number }
/** A name and the entry that it stands for. */
export type Named = SortIndex & { readonly name: string }

/** A value type: the name of a primitive type, or the index of a defined one. */
export type ValueRef = string | number
/** A field of a record or a case of a variant. */
export type Label = { readonly name: string; readonly type: ValueRef | undefined }

/** A type as it is written; indices refer to the scope that contains it. */
export type TypeCode =
  | { readonly is: 'value'; readonly type: ValueRef }
  | { readonly is: 'record' | 'variant'; readonly labels: readonly Label[] }
  | { readonly is: 'flags'; readonly names: readonly string[] }
  | { readonly is: 'list'; readonly of: ValueRef }
  | { readonly is: 'own' | 'borrow'; readonly of: number }
  | { readonly is: 'resource'; readonly destructor: number | undefined }
  | { readonly is: 'func'; readonly params: readonly ValueRef[]; readonly result: ValueRef | undefined }
  | { readonly is: 'instance' | 'component'; readonly declarations: readonly Definition[] }

/** What an import, or an export of an instance type, is. */
export type Description =
  | { readonly sort: 'func' | 'component' | 'instance' | 'core module'; readonly type: number }
  | { readonly sort: 'type'; readonly equals: number | undefined }

/** Options of a function that crosses the boundary of a component. */
export type CanonOptions = {
  readonly encoding: 'utf8' | 'utf16' | 'latin1+utf16'
  readonly memory: number | undefined
  readonly realloc: number | undefined
  readonly postReturn: number | undefined
}

/** One definition; most add an entry to an index space. */
export type Definition =
  | { readonly is: 'module'; readonly module: number }
  | {
      readonly is: 'core-instance'
      readonly module: number
      readonly args: readonly { readonly name: string; readonly instance: number }[]
    }
  | { readonly is: 'core-exports'; readonly exports: readonly Named[] }
  | { readonly is: 'component'; readonly definitions: readonly Definition[] }
  | { readonly is: 'instance'; readonly component: number; readonly args: readonly Named[] }
  | { readonly is: 'exports'; readonly exports: readonly Named[] }
  | {
      readonly is: 'alias'
      readonly from: 'instance' | 'core instance'
      readonly sort: Sort
      readonly instance: number
      readonly name: string
    }
  | { readonly is: 'outer'; readonly sort: Sort; readonly depth: number; readonly index: number }
  | { readonly is: 'type'; readonly type: TypeCode }
  | { readonly is: 'lift'; readonly func: number; readonly options: CanonOptions; readonly type: number }
  | { readonly is: 'lower'; readonly func: number; readonly options: CanonOptions }
  | { readonly is: 'resource'; readonly op: 'new' | 'drop' | 'rep'; readonly type: number }
  | { readonly is: 'import'; readonly name: string; readonly description: Description }
  /** `type` if the export of an instance type declares it instead of naming an entry. */
  | { readonly is: 'declare'; readonly name: string; readonly description: Description }
  | { readonly is: 'export'; readonly name: string; readonly sort: Sort; readonly index: number }

/** A component without the code of its core modules, which are listed in the order of their numbers. */
export type DecodedComponent = {
  readonly definitions: readonly Definition[]
  readonly modules: readonly Uint8Array[]
}
