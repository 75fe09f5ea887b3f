import type { GuestMessage } from './guest-protocol.ts'

/** What the classes of the worker get from each other, so that none of them needs an import. */

/** What a system interface needs of the thread. */
export type GuestHost = {
  readonly memory: (at: number, length: number) => Uint8Array
  readonly charge: (amount: number) => void
  readonly log: (level: number, text: string) => void
  readonly exit: (code: number) => never
  readonly abort: (message: string) => never
  readonly refuse: (code: string, message: string) => never
  readonly fuelUsed: () => number
  /** Waits, at most until the deadline. */
  readonly sleep: (ms: number) => void
  /** Asks the host by a name that no guest can write, and parses the answer. */
  readonly ask: (method: string, params: Readonly<Record<string, unknown>>) => unknown
  readonly fromBase64: (text: string) => Uint8Array
  readonly toBase64: (bytes: Uint8Array) => string
  readonly input: string
  readonly messageBytes: number
  readonly args: readonly string[]
  /** `NAME=value` each. */
  readonly env: readonly string[]
  readonly preopens: readonly { readonly name: string; readonly base: string }[]
  /** With a real clock: when the run started, in milliseconds. */
  readonly started: number | undefined
  /** Real random numbers, where they are granted. */
  readonly random: ((bytes: Uint8Array) => void) | undefined
}

/** A set of functions that a module imports, and what it has put out through them. */
export type SystemInterface = {
  readonly functions: Readonly<Record<string, unknown>>
  readonly stdout: string
  /** What a plug-in said when it failed. */
  readonly failure?: string
}

/** The files of a system interface. */
export type SystemFiles = {
  readonly functions: Readonly<Record<string, unknown>>
  read(fd: number, vectors: number, count: number, read: number): number
  write(fd: number, vectors: number, count: number, written: number): number
}

/** What the thread gets from Node. */
export type ThreadParts = {
  readonly post: (message: GuestMessage) => void
  readonly receive: () => { readonly message: string } | undefined
  /** One word: 0 while the host thinks, 1 when its reply lies on the port. */
  readonly signal: Int32Array
  readonly files: new (host: GuestHost) => SystemFiles
  readonly wasi: new (host: GuestHost, files: SystemFiles) => SystemInterface
  readonly extism: new (host: GuestHost) => SystemInterface
  readonly random: (bytes: Uint8Array) => void
  readonly fromBase64: (text: string) => Uint8Array
  readonly toBase64: (bytes: Uint8Array) => string
}
