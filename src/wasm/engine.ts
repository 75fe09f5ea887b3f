/**
 * PLATFORM: TypeScript's library for Node has no WebAssembly types; these are the parts in use.
 */
export type WasmModule = object & { readonly [compiled]: true }
declare const compiled: unique symbol

/** A 64-bit global. */
export type WasmGlobal = { value: bigint }
/** A memory of an instance. */
export type WasmMemory = { readonly buffer: ArrayBuffer }
/** A function of an instance. */
export type WasmFunction = (...args: readonly unknown[]) => unknown
type WasmExport = WasmFunction | WasmGlobal | WasmMemory | object
/** A running module. */
export type WasmInstance = { readonly exports: Readonly<Record<string, WasmExport>> }
type WasmImports = Readonly<Record<string, Readonly<Record<string, unknown>>>>

/** The global `WebAssembly`. */
export type WasmEngine = {
  validate(bytes: Uint8Array): boolean
  compile(bytes: Uint8Array): Promise<WasmModule>
  readonly Module: new (bytes: Uint8Array) => WasmModule
  readonly Instance: new (module: WasmModule, imports: WasmImports) => WasmInstance
  readonly Global: new (type: { value: string; mutable: boolean }, value?: unknown) => WasmGlobal
  readonly Memory: new (limits: { initial: number; maximum?: number }) => WasmMemory
  readonly Table: new (limits: { element: string; initial: number; maximum?: number }) => object
  readonly RuntimeError: new (message?: string) => Error
  readonly CompileError: new (message?: string) => Error
  readonly LinkError: new (message?: string) => Error
}

/** The engine of this process. */
export const wasmEngine = (): WasmEngine => (globalThis as unknown as { WebAssembly: WasmEngine }).WebAssembly
