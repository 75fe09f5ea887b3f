import type { Duplex } from 'node:stream'
import type { Command, ExecResult } from '../model/command.ts'
import type { Guarantee, Level } from '../model/guarantee.ts'
import type { Plan } from '../model/plan.ts'
import type { Limits } from '../model/spec.ts'

/** What a backend can keep on this host right now: measured by running something, never assumed. */
export type Probe =
  | { readonly available: true; readonly guarantees: readonly Guarantee[]; readonly startMs: number }
  | { readonly available: false; readonly reason: string; readonly fix: string }

export type OutputStream = 'stdout' | 'stderr'

/** Gets each chunk as it comes. While a promise that it returned is pending, the command is held back. */
export type OutputConsumer = (stream: OutputStream, chunk: Uint8Array) => unknown

export type ExecIo = {
  readonly stdin?: 'inherit' | Uint8Array | undefined
  /** `inherit` passes our own standard streams through; a function gets each chunk; otherwise output is collected. */
  readonly output?: 'inherit' | OutputConsumer | undefined
  readonly signal?: AbortSignal | undefined
  /** The command starts when this resolves, and never when it rejects; the place for it may be made ready meanwhile. */
  readonly permit?: Promise<unknown> | undefined
  /** Gets the means to pass signals on to the command's process group. */
  readonly onStarted?: ((send: (signal: NodeJS.Signals) => void) => void) | undefined
  /** Nothing comes after this command: the place may be made for it alone. */
  readonly last?: boolean | undefined
  /** For this command alone, on top of the plan's. */
  readonly limits?: Limits | undefined
}

export type TerminalSize = { readonly cols: number; readonly rows: number }

/** A command that is watched while it runs. */
export type StartIo = Omit<ExecIo, 'stdin' | 'last'> & {
  /** Keeps standard input open for `write`; otherwise it is empty. */
  readonly stdin?: boolean | undefined
  /** Gives the command a terminal of its own; everything it prints comes as `stdout`. */
  readonly terminal?: TerminalSize | undefined
}

export interface RunningCommand {
  /** The process number inside the sandbox. */
  readonly pid: number
  /** Resolves once the command has ended and all that it printed was handed over. */
  readonly result: Promise<ExecResult>
  /** Resolves when there is room for more; rejects when the command no longer reads. */
  write(data: Uint8Array): Promise<void>
  endInput(): void
  /** To the command's process group. */
  signal(signal: NodeJS.Signals): void
  resize(size: TerminalSize): void
}

export type FileKind = 'file' | 'dir' | 'link' | 'other'

export type FileInfo = {
  readonly name: string
  /** The full path inside the sandbox. */
  readonly path: string
  readonly kind: FileKind
  readonly size: number
  /** Permission bits alone. */
  readonly mode: number
  readonly uid: number
  readonly gid: number
  readonly modifiedMs: number
  /** Where a symbolic link points to. */
  readonly target?: string
}

export type FileChange = {
  readonly kind: 'create' | 'write' | 'remove' | 'rename' | 'chmod'
  /** Relative to the watched directory. */
  readonly name: string
}

/** Files as the sandbox sees them. Each operation runs behind the wall, so it can reach no more than a command. */
export interface GuestFiles {
  read(
    path: string,
    range?: { readonly offset?: number; readonly length?: number },
  ): AsyncIterable<Uint8Array>
  /** Replaces the file, creating missing parents. */
  write(path: string, data: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<void>
  /** `depth` 1 is the directory itself. */
  list(path: string, depth?: number): Promise<readonly FileInfo[]>
  /** Of the thing itself: links are not followed. */
  stat(path: string): Promise<FileInfo>
  makeDir(path: string): Promise<void>
  move(from: string, to: string): Promise<void>
  /** With everything below it. */
  remove(path: string): Promise<void>
  /** Ends when the signal is aborted. */
  watch(path: string, options: WatchOptions): Promise<void>
  /** The directory as a tar stream. */
  pack(path: string): AsyncIterable<Uint8Array>
  /** Unpacks a tar stream into the directory. */
  unpack(path: string, data: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<void>
}

export type WatchOptions = {
  readonly recursive?: boolean
  readonly signal: AbortSignal
  /** Called once the watch is in place. */
  readonly onReady?: () => void
  readonly onChange: (change: FileChange) => void
}

/** One way of isolating. Backends know plans; they know nothing of policy, HTTP or audit. */
export interface Backend {
  readonly name: string
  readonly level: Level
  /** Chosen only when it is asked for by name. */
  readonly byNameOnly: boolean
  readonly emulated: boolean
  /** Chosen only when an image, a level above the default or its name asks for it: commands mean the host's own tools. */
  readonly onRequest?: boolean
  /** Whether a plan may name an image as its root file system. */
  readonly runsImages?: boolean
  /** Whether it can keep what is written apart until a person has looked at it. */
  readonly reviews?: boolean
  probe(): Promise<Probe>
  /** What a probe's answer depends on; while it stays the same the answer may be remembered. */
  fingerprint?(): string
  /** Removes what earlier lives of this installation left behind; others' things are not touched. */
  reap?(): Promise<void>
  /** Brings a sandbox up. On failure it throws and leaves nothing behind. */
  open(plan: Plan, options?: OpenOptions): Promise<BackendSandbox>
}

export type OpenOptions = {
  readonly signal?: AbortSignal | undefined
  /** Whose sandbox it is. What was made beforehand for one owner is never another's. */
  readonly owner?: string | undefined
  /** In network mode `fetch`: takes over one connection that the sandbox made to its proxy. */
  readonly onTunnel?: ((stream: Duplex) => void) | undefined
}

export interface BackendSandbox {
  exec(command: Command, io?: ExecIo): Promise<ExecResult>
  start(command: Command, io?: StartIo): Promise<RunningCommand>
  readonly files: GuestFiles
  /** A byte stream to a TCP port on the sandbox's own loopback. */
  connect(port: number): Promise<Duplex>
  /** The fences that are really in place, as the kernel reports them. */
  layers(): Promise<readonly string[]>
  /** What its processes use right now; absent where that cannot be told. */
  usage?(): Usage | undefined
  /** Resolves when the sandbox ended, by `close` or by itself; the text says why. */
  readonly ended: Promise<string>
  /** Idempotent. When it resolves, nothing of the sandbox is left on the host. */
  close(): Promise<void>
}

export type Usage = { readonly memoryBytes: number; readonly cpuMs: number }

/** Optional powers of a sandbox. */
export interface Freezable {
  pause(): Promise<void>
  resume(): Promise<void>
}

export const canFreeze = (sandbox: BackendSandbox): sandbox is BackendSandbox & Freezable =>
  'pause' in sandbox

/** Commands stand still, but files can be read: what a snapshot needs. */
export interface Quiescable {
  still<T>(work: () => Promise<T>): Promise<T>
}

export const canQuiesce = (sandbox: BackendSandbox): sandbox is BackendSandbox & Quiescable =>
  'still' in sandbox

/** For callers that drive a process of their own: the command that puts another one behind the wall. */
export type Wrapped = {
  readonly command: string
  readonly args: readonly string[]
  readonly env: Readonly<Record<string, string>>
  readonly cwd: string
  readonly dispose: () => Promise<void>
}

/** An optional power: backends that are one process can be driven by the caller. */
export interface Wrapper {
  wrap(plan: Plan, command: Command): Promise<Wrapped>
}

export const canWrap = (backend: Backend): backend is Backend & Wrapper => 'wrap' in backend
