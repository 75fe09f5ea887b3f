import type { Definition, Description, Named, Sort, TypeCode, ValueRef } from '../../component/definitions.ts'
import type { WasmFunction, WasmMemory } from '../../engine.ts'
import type { GuestHost } from '../guest-host.ts'
import type {
  CallContext,
  ComponentFunc,
  CoreValue,
  FuncType,
  HandleTable,
  HostInterfaces,
  Layout,
  ResourceType,
  Value,
  Values,
  ValueType,
} from './types.ts'

/** The index spaces of one instance, or of one type. */
type Scope = {
  readonly outer: Scope | undefined
  readonly spaces: Map<Sort, unknown[]>
  readonly handles: HandleTable
}
type Entry = { readonly sort: Sort; readonly value: unknown }
type InstanceExports = Map<string, Entry>
type ComponentClosure = { readonly definitions: readonly Definition[]; readonly scope: Scope | undefined }
type CoreExports = Readonly<Record<string, unknown>>
type TypeEntry =
  | { readonly is: 'value'; readonly type: ValueType }
  | { readonly is: 'resource'; readonly resource: ResourceType }
  | { readonly is: 'func'; readonly type: FuncType }
  | { readonly is: 'instance'; readonly declarations: readonly Definition[]; readonly scope: Scope }
  | { readonly is: 'component' }

/** What the linker needs of the thread. */
type LinkerParts = {
  readonly host: Pick<GuestHost, 'charge'>
  readonly values: Values
  readonly layout: Pick<Layout, 'flatten'>
  readonly handles: () => HandleTable
  readonly interfaces: Pick<HostInterfaces, 'functions' | 'drop'>
  /** Starts core module number `module`, metered. */
  readonly start: (module: number, imports: Readonly<Record<string, CoreExports>>) => CoreExports
  /** Ends the run if the action throws anything but a trap. SECURITY: a guest could catch an exception, but no trap. */
  readonly guard: <T>(action: () => T) => T
}

/**
 * Instantiates a component: evaluates its definitions in order. Component-level types are not validated beforehand: what
 * does not fit throws, and ends the run.
 *
 * The class text is part of the worker's source, so it may use only its arguments and JavaScript globals.
 */
export class ComponentLinker {
  readonly #parts: LinkerParts
  readonly #primitives = new Map<string, ValueType>()
  readonly #hostResources = new Map<string, ResourceType>()

  constructor(parts: LinkerParts) {
    this.#parts = parts
  }

  /** Instantiates the outermost component with the host's interfaces, and returns its exports. */
  instantiate(definitions: readonly Definition[]): ReadonlyMap<string, { readonly value: unknown }> {
    return this.#run({ definitions, scope: undefined }, undefined)
  }

  #run({ definitions, scope: outer }: ComponentClosure, args: InstanceExports | undefined): InstanceExports {
    const scope: Scope = { outer, spaces: new Map(), handles: this.#parts.handles() }
    const exports: InstanceExports = new Map()
    for (const definition of definitions) {
      this.#parts.host.charge(100)
      this.#define(scope, definition, args, exports)
    }
    return exports
  }

  #define(
    scope: Scope,
    definition: Definition,
    args: InstanceExports | undefined,
    exports: InstanceExports,
  ): void {
    switch (definition.is) {
      case 'import': {
        const { name, description } = definition
        const given = args === undefined ? this.#fromHost(scope, name, description) : args.get(name)
        if (given === undefined || given.sort !== description.sort)
          throw new TypeError(`the import \`${name.slice(0, 80)}\` is missing`)
        this.#push(scope, given.sort, given.value)
        break
      }
      case 'export': {
        const { name, sort, index } = definition
        const value = this.#at(scope, sort, index)
        exports.set(name, { sort, value })
        this.#push(scope, sort, value)
        break
      }
      case 'declare':
        throw new TypeError('a declaration is outside of a type')
      default: {
        const { sort, value } = this.#entryOf(scope, definition)
        this.#push(scope, sort, value)
      }
    }
  }

  #entryOf(scope: Scope, definition: Exclude<Definition, { is: 'import' | 'export' | 'declare' }>): Entry {
    switch (definition.is) {
      case 'module':
        return { sort: 'core module', value: definition.module }
      case 'component':
        return { sort: 'component', value: { definitions: definition.definitions, scope } }
      case 'core-instance':
        return { sort: 'core instance', value: this.#startModule(scope, definition) }
      case 'core-exports': {
        const exports: Record<string, unknown> = Object.create(null)
        this.#parts.host.charge(definition.exports.length)
        for (const { name, sort, index } of definition.exports) exports[name] = this.#at(scope, sort, index)
        return { sort: 'core instance', value: exports }
      }
      case 'instance': {
        const component = this.#at(scope, 'component', definition.component) as ComponentClosure
        return { sort: 'instance', value: this.#run(component, this.#namedEntries(scope, definition.args)) }
      }
      case 'exports':
        return { sort: 'instance', value: this.#namedEntries(scope, definition.exports) }
      case 'alias':
        return this.#alias(scope, definition)
      case 'outer':
        return { sort: definition.sort, value: this.#outer(scope, definition) }
      case 'type':
        return { sort: 'type', value: this.#type(scope, definition.type) }
      case 'lift':
        return { sort: 'func', value: this.#lift(scope, definition) }
      case 'lower':
        return { sort: 'core func', value: this.#lower(scope, definition) }
      case 'resource':
        return { sort: 'core func', value: this.#resourceFunction(scope, definition) }
      default:
        return definition satisfies never
    }
  }

  #space(scope: Scope, sort: Sort): unknown[] {
    const known = scope.spaces.get(sort)
    if (known !== undefined) return known
    const space: unknown[] = []
    scope.spaces.set(sort, space)
    return space
  }

  #push(scope: Scope, sort: Sort, value: unknown): void {
    this.#space(scope, sort).push(value)
  }

  #at(scope: Scope, sort: Sort, index: number): unknown {
    const space = this.#space(scope, sort)
    if (index >= space.length) throw new TypeError(`there is no ${sort} ${index}`)
    return space[index]
  }

  #namedEntries(scope: Scope, list: readonly Named[]): InstanceExports {
    this.#parts.host.charge(list.length)
    return new Map(list.map(({ name, sort, index }) => [name, { sort, value: this.#at(scope, sort, index) }]))
  }

  #startModule(scope: Scope, { module, args }: Extract<Definition, { is: 'core-instance' }>): CoreExports {
    const imports: Record<string, CoreExports> = Object.create(null)
    this.#parts.host.charge(args.length)
    for (const { name, instance } of args)
      imports[name] = this.#at(scope, 'core instance', instance) as CoreExports
    return this.#parts.start(this.#at(scope, 'core module', module) as number, imports)
  }

  #alias(scope: Scope, { from, sort, instance, name }: Extract<Definition, { is: 'alias' }>): Entry {
    const found = this.#at(scope, from, instance)
    if (from === 'instance') {
      const entry = (found as InstanceExports).get(name)
      if (entry === undefined || entry.sort !== sort) throw new TypeError('an alias names no export')
      return entry
    }
    if (!Object.hasOwn(found as CoreExports, name)) throw new TypeError('an alias names no core export')
    return { sort, value: (found as CoreExports)[name] }
  }

  #outer(scope: Scope, { sort, depth, index }: Extract<Definition, { is: 'outer' }>): unknown {
    let at: Scope | undefined = scope
    for (let left = depth; left > 0 && at !== undefined; left--) at = at.outer
    if (at === undefined) throw new TypeError('an alias leads outside of the component')
    return this.#at(at, sort, index)
  }

  // Types

  #type(scope: Scope, code: TypeCode): TypeEntry {
    switch (code.is) {
      case 'func': {
        this.#parts.host.charge(code.params.length)
        const params = code.params.map((ref) => this.#value(scope, ref))
        const result = code.result === undefined ? undefined : this.#value(scope, code.result)
        return { is: 'func', type: { params, result } }
      }
      case 'resource': {
        const { destructor: index } = code
        const destructor =
          index === undefined ? undefined : (this.#at(scope, 'core func', index) as WasmFunction)
        return { is: 'resource', resource: { owner: scope, destructor } }
      }
      case 'instance':
        return { is: 'instance', declarations: code.declarations, scope }
      case 'component':
        return { is: 'component' }
      default:
        return { is: 'value', type: this.#valueType(scope, code) }
    }
  }

  #valueType(
    scope: Scope,
    code: Exclude<TypeCode, { is: 'func' | 'resource' | 'instance' | 'component' }>,
  ): ValueType {
    switch (code.is) {
      case 'value':
        return this.#value(scope, code.type)
      case 'list':
        return { is: 'list', of: this.#value(scope, code.of) }
      case 'flags':
        return code
      case 'own':
      case 'borrow':
        return { is: code.is, of: this.#resource(scope, code.of) }
      default: {
        this.#parts.host.charge(code.labels.length)
        const labels = code.labels.map(({ name, type }) => ({
          name,
          type: type === undefined ? undefined : this.#value(scope, type),
        }))
        return { is: code.is, labels }
      }
    }
  }

  #value(scope: Scope, ref: ValueRef): ValueType {
    if (typeof ref === 'number') {
      const found = this.#at(scope, 'type', ref) as TypeEntry
      if (found.is !== 'value') throw new TypeError('a type is not a value type')
      return found.type
    }
    const type: ValueType = this.#primitives.get(ref) ?? { is: 'primitive', name: ref }
    this.#primitives.set(ref, type)
    return type
  }

  #resource(scope: Scope, index: number): ResourceType {
    const found = this.#at(scope, 'type', index) as TypeEntry
    if (found.is !== 'resource') throw new TypeError('a type is not a resource')
    return found.resource
  }

  #func(scope: Scope, index: number): FuncType {
    const found = this.#at(scope, 'type', index) as TypeEntry
    if (found.is !== 'func') throw new TypeError('a type is not the type of a function')
    return found.type
  }

  // The host's interfaces

  #fromHost(scope: Scope, name: string, description: Description): Entry | undefined {
    if (description.sort === 'type' && description.equals !== undefined)
      return { sort: 'type', value: this.#at(scope, 'type', description.equals) }
    if (description.sort !== 'instance') return undefined
    const type = this.#at(scope, 'type', description.type) as TypeEntry
    if (type.is !== 'instance') return undefined
    return { sort: 'instance', value: this.#hostInstance(type, name.split('@')[0] as string) }
  }

  #hostInstance(
    { declarations, scope: outer }: Extract<TypeEntry, { is: 'instance' }>,
    name: string,
  ): InstanceExports {
    const scope: Scope = { outer, spaces: new Map(), handles: outer.handles }
    const exports: InstanceExports = new Map()
    for (const definition of declarations) {
      this.#parts.host.charge(100)
      if (definition.is !== 'declare') this.#define(scope, definition, new Map(), exports)
      else {
        const entry = this.#hostExport(scope, name, definition)
        exports.set(definition.name, entry)
        this.#push(scope, entry.sort, entry.value)
      }
    }
    return exports
  }

  #hostExport(
    scope: Scope,
    owner: string,
    { name, description }: Extract<Definition, { is: 'declare' }>,
  ): Entry {
    if (description.sort === 'type') {
      if (description.equals !== undefined)
        return { sort: 'type', value: this.#at(scope, 'type', description.equals) }
      return { sort: 'type', value: { is: 'resource', resource: this.#hostResource(`${owner}.${name}`) } }
    }
    if (description.sort !== 'func') throw new TypeError('an import is not supported')
    return { sort: 'func', value: this.#hostFunction(owner, name, this.#func(scope, description.type)) }
  }

  #hostResource(name: string): ResourceType {
    const resource = this.#hostResources.get(name) ?? { owner: this }
    this.#hostResources.set(name, resource)
    return resource
  }

  #hostFunction(owner: string, name: string, type: FuncType): ComponentFunc {
    const { functions } = this.#parts.interfaces
    const known = Object.hasOwn(functions, owner) ? functions[owner] : undefined
    const found = known && Object.hasOwn(known, name) ? known[name] : undefined
    return {
      type,
      call: (args) => {
        this.#parts.host.charge(100)
        if (found === undefined) throw new TypeError(`\`${owner} ${name}\` is not supported`.slice(0, 160))
        return found(...(args as never[]))
      },
    }
  }

  // Functions

  #context(scope: Scope, options: Extract<Definition, { is: 'lift' }>['options']): CallContext {
    const { memory, realloc, encoding } = options
    return {
      memory: memory === undefined ? undefined : (this.#at(scope, 'core memory', memory) as WasmMemory),
      realloc: realloc === undefined ? undefined : (this.#at(scope, 'core func', realloc) as WasmFunction),
      encoding,
      instance: scope,
      handles: scope.handles,
    }
  }

  /** A function of a core module, as a function of the component. */
  #lift(scope: Scope, { func, options, type }: Extract<Definition, { is: 'lift' }>): ComponentFunc {
    const { values } = this.#parts
    const core = this.#at(scope, 'core func', func) as WasmFunction
    const cx = this.#context(scope, options)
    const { postReturn } = options
    const after =
      postReturn === undefined ? undefined : (this.#at(scope, 'core func', postReturn) as WasmFunction)
    const kind = this.#func(scope, type)
    const call = (args: readonly Value[]): Value => {
      const returned = core(...values.lower(cx, kind.params, args, 16))
      const flat = returned === undefined ? [] : [returned as CoreValue]
      const [value] = kind.result === undefined ? [undefined] : values.lift(cx, [kind.result], flat, 1)
      after?.(...flat)
      return value
    }
    return { type: kind, call }
  }

  /** A function of a component or of the host, as a function that a core module can import. */
  #lower(scope: Scope, { func, options }: Extract<Definition, { is: 'lower' }>): WasmFunction {
    const { values, layout, guard } = this.#parts
    const { type, call } = this.#at(scope, 'func', func) as ComponentFunc
    const cx = this.#context(scope, options)
    const results = type.result === undefined ? [] : [type.result]
    const inMemory = layout.flatten(results).length > 1
    return (...flat) =>
      guard(() => {
        const value = call(values.lift(cx, type.params, flat as CoreValue[], 16))
        const at = inMemory ? Number(flat.at(-1)) >>> 0 : undefined
        return values.lower(cx, results, [value], 1, at)[0]
      })
  }

  #resourceFunction(scope: Scope, { op, type }: Extract<Definition, { is: 'resource' }>): WasmFunction {
    const { guard, interfaces, host } = this.#parts
    const resource = this.#resource(scope, type)
    const { handles } = scope
    const drop = (handle: number): undefined => {
      const { represents, owned } = handles.take(handle, resource)
      if (!owned) return
      if (resource.owner === this) interfaces.drop(represents)
      else resource.destructor?.(represents as number)
    }
    const actions = {
      // SECURITY: a core module may declare any type for its import; a representation is a number.
      new: (represents: number) => handles.add(resource, Number(represents) | 0, true),
      rep: (handle: number) => Number(handles.get(handle >>> 0, resource)) | 0,
      drop: (handle: number) => drop(handle >>> 0),
    }
    return (value) =>
      guard(() => {
        host.charge(100)
        return actions[op](value as number)
      })
  }
}
