import type { WasmEngine, WasmInstance } from '../engine.ts'
import type { HostInterfaces } from './component/types.ts'
import type { ComponentEntry, GuestEnd, GuestMessage } from './guest-protocol.ts'

/** Types shared by the classes of the worker; types only, so that no class needs an import at run time. */

/** The functions that the thread provides to a system interface. */
export type GuestHost = {
  readonly memory: (at: number, length: number) => Uint8Array
  readonly charge: (amount: number) => void
  readonly log: (level: number, text: string) => void
  readonly exit: (code: number) => never
  readonly abort: (message: string) => never
  /** Ends the run as a trap of the program. */
  readonly trap: (message: string) => never
  readonly refuse: (code: string, message: string) => never
  readonly fuelUsed: () => number
  /** Sleeps until the deadline at most. */
  readonly sleep: (ms: number) => void
  /** Calls a host method that guests cannot name, and parses the reply. */
  readonly ask: (method: string, params: Readonly<Record<string, unknown>>) => unknown
  readonly fromBase64: (text: string) => Uint8Array
  readonly toBase64: (bytes: Uint8Array) => string
  readonly input: string
  readonly messageBytes: number
  readonly args: readonly string[]
  /** `NAME=value` each. */
  readonly env: readonly string[]
  readonly preopens: readonly { readonly name: string; readonly base: string }[]
  /** With a real clock: the start of the run, in milliseconds. */
  readonly started: number | undefined
  /** A real random source, if granted. */
  readonly random: ((bytes: Uint8Array) => void) | undefined
}

/** The functions of a system interface that a module imports, and the output written through them. */
export type SystemInterface = {
  readonly functions: Readonly<Record<string, unknown>>
  readonly stdout: string
  /** The plug-in's error message, if it failed. */
  readonly failure?: string
}

/** The standard streams, the clock and the random numbers of a program. */
export type ProgramIo = {
  readonly stdout: string
  readonly full: boolean
  read(length: number): Uint8Array
  write(bytes: Uint8Array): number
  log(bytes: Uint8Array): void
  now(wall: boolean): bigint
  sleep(ns: number): void
  random(bytes: Uint8Array): void
}

/** A file's status, as the host reports it; times in nanoseconds. */
export type FileStatus = {
  readonly kind: string
  readonly size: number
  readonly dev: string
  readonly ino: string
  readonly nlink: number
  readonly atim: string
  readonly mtim: string
  readonly ctim: string
}

/** The host's reply to a file request. */
export type SystemReply = { readonly ok: unknown } | { readonly code: string }

/** One open descriptor of a WASI program. */
export type OpenDescriptor = {
  readonly kind: 'stream' | 'dir' | 'file'
  /** The host's handle; for a preopened directory, its path. */
  readonly dir?: number | string
  readonly stream?: number
  /** For a preopened directory: its name in the guest. */
  readonly preopen?: string
  flags: number
  rights: bigint
  inheriting: bigint
  at: number
  /** For a directory: its entries when the guest started to read it. */
  entries?: readonly { readonly name: string; readonly kind: string; readonly ino: string }[]
}

/** The descriptor table, as the path calls use it. */
export type DescriptorTable = {
  readonly full: boolean
  use(fd: number, rights: bigint, action: (open: OpenDescriptor) => number): number
  add(kind: 'dir' | 'file', dir: number, how: Pick<OpenDescriptor, 'rights' | 'inheriting' | 'flags'>): number
  ask(method: string, params: Readonly<Record<string, unknown>>, use?: (ok: unknown) => number): number
  data(at: number, length: number): DataView
  putStatus(stat: unknown, at: number): number
  times(atim: bigint, mtim: bigint, flags: number): Readonly<Record<string, string>> | undefined
}

/** The file functions of a system interface. */
export type SystemFiles = DescriptorTable & {
  readonly functions: Readonly<Record<string, unknown>>
  /** The number of the standard stream behind a descriptor. */
  stream(fd: number): number | undefined
  allows(fd: number, rights: bigint): boolean
  read(fd: number, vectors: number, count: number, read: number): number
  write(fd: number, vectors: number, count: number, written: number): number
}

/** What the thread gives to the classes that run components. */
export type ComponentParts = {
  readonly host: GuestHost
  readonly engine: WasmEngine
  /** Runs an action with the meter in this instance. */
  readonly within: <T>(instance: WasmInstance, action: () => T) => T
  readonly startName: string
  readonly exhausted: (what: 'memory') => never
  readonly guard: <T>(action: () => T) => T
}

/** A component that is about to run. */
type ComponentRun = {
  readonly interfaces: Pick<HostInterfaces, 'stdout'>
  readonly run: () => GuestEnd
}

/** Node functions and classes that the thread uses. */
export type ThreadParts = {
  readonly post: (message: GuestMessage) => void
  readonly receive: () => { readonly message: string } | undefined
  /** One word: 0 while the host handles a request, 1 when its reply is queued on the port. */
  readonly signal: Int32Array
  readonly files: new (host: GuestHost) => SystemFiles
  readonly paths: new (host: GuestHost, table: DescriptorTable) => Pick<SystemInterface, 'functions'>
  readonly wasi: new (
    host: GuestHost,
    files: SystemFiles,
    paths: Pick<SystemInterface, 'functions'>,
    streams: ProgramIo,
  ) => SystemInterface
  readonly streams: new (host: GuestHost) => ProgramIo
  readonly extism: new (host: GuestHost) => SystemInterface
  readonly assemblyscript: new (host: GuestHost) => Pick<SystemInterface, 'functions'>
  readonly component: (parts: ComponentParts, entry: ComponentEntry) => ComponentRun
  readonly random: (bytes: Uint8Array) => void
  readonly fromBase64: (text: string) => Uint8Array
  readonly toBase64: (bytes: Uint8Array) => string
}
