import type { Duplex } from 'node:stream'
import type { HostNote } from '../host/diagnose.ts'
import type { TunnelTaker } from '../host/guest/session.ts'
import type { Command, ExecResult } from '../model/command.ts'
import { SandboxError } from '../model/errors.ts'
import type { Guarantee, Level } from '../model/guarantee.ts'
import type { Plan } from '../model/plan.ts'
import type { Limits } from '../model/spec.ts'

/** What a backend can provide on this host right now: measured by running something, never assumed. */
export type Probe =
  | {
      readonly available: true
      readonly guarantees: readonly Guarantee[]
      /** What the operator lets sandboxes do without on this backend; it is never claimed. */
      readonly waived?: readonly Guarantee[]
      readonly startMs: number
    }
  | { readonly available: false; readonly reason: string; readonly fix: string }

/** A standard output stream of a command. */
export type OutputStream = 'stdout' | 'stderr'

/** Receives each chunk as it arrives. While a promise that it returned is pending, the command is blocked. */
export type OutputConsumer = (stream: OutputStream, chunk: Uint8Array) => unknown

/** The input, output, limits and cancellation of a command that runs to its end. */
export type ExecIo = {
  readonly stdin?: 'inherit' | Uint8Array | undefined
  /** `inherit` passes our standard streams through; a function receives each chunk; otherwise output is collected. */
  readonly output?: 'inherit' | OutputConsumer | undefined
  readonly signal?: AbortSignal | undefined
  /** The command starts when this resolves, and never if it rejects; the sandbox may be prepared meanwhile. */
  readonly permit?: Promise<unknown> | undefined
  /** Called with a function that sends signals to the command's process group. */
  readonly onStarted?: ((send: (signal: NodeJS.Signals) => void) => void) | undefined
  /** The last command: the sandbox may be created for it alone. */
  readonly last?: boolean | undefined
  /** For this command only, in addition to the plan's limits. */
  readonly limits?: Limits | undefined
  /** Called before `sudo` inside the command starts something; it starts when this resolves. Absent: refused. */
  readonly onSudo?: ((command: RaisedCommand) => Promise<void>) | undefined
}

/** The size of a terminal in characters. */
export type TerminalSize = { readonly cols: number; readonly rows: number }

/** Options of a command that the caller controls while it runs. */
export type StartIo = Omit<ExecIo, 'stdin' | 'last'> & {
  /** Keeps standard input open for `write`; otherwise it is empty. */
  readonly stdin?: boolean | undefined
  /** Gives the command its own terminal; all its output arrives as `stdout`. */
  readonly terminal?: TerminalSize | undefined
}

/** A command that `sudo` inside a command asks to start as another user of the sandbox. */
type RaisedCommand = { readonly user: string; readonly argv: readonly string[] }

/** A command that runs; the caller writes to it, signals it and waits for its result. */
export interface RunningCommand {
  /** The pid inside the sandbox. */
  readonly pid: number
  /** Resolves once the command has ended and all its output was delivered. */
  readonly result: Promise<ExecResult>
  /** Resolves when more can be written; rejects if the command has closed its standard input. */
  write(data: Uint8Array): Promise<void>
  endInput(): void
  /** Sends a signal to the command's process group. */
  signal(signal: NodeJS.Signals): void
  resize(size: TerminalSize): void
}

/** The kind of a file in a sandbox. */
export type FileKind = 'file' | 'dir' | 'link' | 'other'

/** One file or directory in a sandbox. */
export type FileInfo = {
  readonly name: string
  /** The full path inside the sandbox. */
  readonly path: string
  readonly kind: FileKind
  readonly size: number
  /** Permission bits only. */
  readonly mode: number
  readonly uid: number
  readonly gid: number
  readonly modifiedMs: number
  /** The target of a symbolic link. */
  readonly target?: string
  /** The names and values that a client gave a file; kept as extended attributes `user.e2b.*`. */
  readonly metadata?: FileMetadata
}

/** Names and values that a client gave a file. */
export type FileMetadata = Readonly<Record<string, string>>

/** For backends that keep no metadata. */
export function refuseMetadata(backend: string, metadata: FileMetadata | undefined): void {
  if (metadata === undefined) return
  throw new SandboxError('unsupported', `${backend} cannot keep the metadata of files`, {
    hint: 'leave `metadata` out, or choose another backend',
  })
}

/** One change that a watch reports. */
export type FileChange = {
  readonly kind: 'create' | 'write' | 'remove' | 'rename' | 'chmod'
  /** Relative to the watched directory. */
  readonly name: string
}

/** Files as the sandbox sees them. Each operation runs inside the sandbox, so it can reach no more than a command. */
export interface GuestFiles {
  /** The same files; what is created belongs to this user. Absent: the sandbox has one user. */
  readonly ownedBy?: (user: string) => GuestFiles
  read(
    path: string,
    range?: { readonly offset?: number; readonly length?: number },
  ): AsyncIterable<Uint8Array>
  /** Replaces the file with its metadata, and creates missing parent directories. */
  write(
    path: string,
    data: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
    metadata?: FileMetadata,
  ): Promise<void>
  /** `depth` 1 lists the directory itself. */
  list(path: string, depth?: number): Promise<readonly FileInfo[]>
  /** Does not follow symbolic links. */
  stat(path: string): Promise<FileInfo>
  makeDir(path: string): Promise<void>
  move(from: string, to: string): Promise<void>
  /** Removes a file, or a directory with everything below it. */
  remove(path: string): Promise<void>
  /** Reports changes until the signal aborts. */
  watch(path: string, options: WatchOptions): Promise<void>
  /** Reads the directory as a tar stream. */
  pack(path: string, options?: PackOptions): AsyncIterable<Uint8Array>
  /** Unpacks a tar stream into the directory. */
  unpack(path: string, data: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<void>
}

/** How a directory is packed. */
export type PackOptions = {
  /** Fails at a file that cannot be read; otherwise it is left out. */
  readonly whole?: boolean
}

/** What a watch reports, and until when. */
export type WatchOptions = {
  readonly recursive?: boolean
  readonly signal: AbortSignal
  /** Called once the watch is active. */
  readonly onReady?: () => void
  readonly onChange: (change: FileChange) => void
}

/** One isolation technology. Backends know plans; they know nothing about policy, HTTP or the audit log. */
export interface Backend {
  readonly name: string
  readonly level: Level
  /** Used only if the spec names it. */
  readonly byNameOnly: boolean
  readonly emulated: boolean
  /** Used only if an image, a level above the default or its name asks for it: by default commands use the host's tools. */
  readonly onRequest?: boolean
  /** Whether a plan may name an image as its root file system. */
  readonly runsImages?: boolean
  /** Whether it can hold writes back for review. */
  readonly reviews?: boolean
  /** Whether it can mount one directory of the server in several sandboxes at once. */
  readonly mountsVolumes?: boolean
  /** Whether it can give a sandbox a writable root with a root user. */
  readonly writableRoots?: boolean
  probe(): Promise<Probe>
  /** Findings for the administrator, beside the probe. */
  notes?(): Promise<readonly HostNote[]>
  /** What the probe's result depends on; the result may be cached while this stays the same. */
  fingerprint?(): string
  /** Removes what earlier runs of this installation left behind, and nothing of others. */
  reap?(): Promise<void>
  /** Starts a sandbox. On failure it throws and leaves nothing behind. */
  open(plan: Plan, options?: OpenOptions): Promise<BackendSandbox>
}

/** Who opens a sandbox, its proxy and its cancellation. */
export type OpenOptions = {
  readonly signal?: AbortSignal | undefined
  /** The tenant of the sandbox. A sandbox prepared for one owner is never given to another. */
  readonly owner?: string | undefined
  /** In network mode `fetch`: receives each connection that the sandbox makes to its proxy. */
  readonly onTunnel?: TunnelTaker | undefined
  /** The sandbox's id, by which a server that takes it over finds it. */
  readonly id?: string | undefined
  /** Grows each time another server takes the sandbox over; default: 1. */
  readonly generation?: number | undefined
  /** Goes on with the sandbox that another server left. Rejects with `not-found` if it does not exist any more. */
  readonly takesOver?: boolean | undefined
}

/** An open sandbox of a backend. */
export interface BackendSandbox {
  exec(command: Command, io?: ExecIo): Promise<ExecResult>
  start(command: Command, io?: StartIo): Promise<RunningCommand>
  /** The first process of the sandbox that the host sees, if it sees any. */
  hostPid?(): number | undefined
  readonly files: GuestFiles
  /** Opens a byte stream to a TCP port on the sandbox's own loopback. */
  connect(port: number): Promise<Duplex>
  /** The isolation layers that are really active, as the kernel reports them. */
  layers(): Promise<readonly string[]>
  /** The limits that hold where they are not the plan's: those of the plan protect this host, and the sandbox may be elsewhere. */
  readonly ownLimits?: Pick<Limits, 'cpus' | 'memoryMb' | 'diskMb'>
  /** The current resource usage; absent if the backend cannot tell. */
  usage?(): Usage | undefined
  /** Resolves with the reason when the sandbox has ended, by `close` or by itself. */
  readonly ended: Promise<string>
  /** Idempotent. When it resolves, nothing of the sandbox is left on the host. */
  close(): Promise<void>
}

/** Memory and CPU time that a sandbox uses. */
export type Usage = {
  readonly memoryBytes: number
  readonly cpuMs: number
  /** What is used of the disk of a sandbox that has one of its own. */
  readonly diskBytes?: number | undefined
}

/** Optional: a sandbox with a disk of its own. */
export interface DiskOwner {
  /** Copies the disk as it is now to this file, while all commands stand still. */
  copyDisk(to: string): Promise<void>
}

/** Whether the disk of a sandbox can be copied. */
export const ownsDisk = (sandbox: BackendSandbox): sandbox is BackendSandbox & DiskOwner =>
  'copyDisk' in sandbox

/** Optional: a sandbox that can be paused. */
export interface Freezable {
  pause(): Promise<void>
  resume(): Promise<void>
}

/** Whether a sandbox can be paused. */
export const canFreeze = (sandbox: BackendSandbox): sandbox is BackendSandbox & Freezable =>
  'pause' in sandbox

/** Optional: commands are frozen while files can still be read, as snapshots require. */
export interface Quiescable {
  still<T>(work: () => Promise<T>): Promise<T>
}

/** Whether the commands of a sandbox can be stopped while its files are read. */
export const canQuiesce = (sandbox: BackendSandbox): sandbox is BackendSandbox & Quiescable =>
  'still' in sandbox

/** Optional: a sandbox that ends by itself when nobody renews its lease. */
export interface Leasable {
  /** It ends after this time unless this is called again; 0: without end. */
  lease(ms: number): void
}

/** Whether a sandbox can hold a lease itself. */
export const canLease = (sandbox: BackendSandbox): sandbox is BackendSandbox & Leasable => 'lease' in sandbox

/** Optional: a sandbox that can outlive its server. */
export interface Detachable {
  /** Whether another server could go on with this one. */
  readonly outlives: boolean
  /** Leaves it to another server: its processes end, its files stay. */
  detach(): Promise<void>
}

/** Whether another server could go on with a sandbox. */
export const canDetach = (sandbox: BackendSandbox): sandbox is BackendSandbox & Detachable =>
  'detach' in sandbox && (sandbox as BackendSandbox & Detachable).outlives

/** For callers that start the process themselves: the command line that runs another command in a sandbox. */
export type Wrapped = {
  readonly command: string
  readonly args: readonly string[]
  readonly env: Readonly<Record<string, string>>
  readonly cwd: string
  readonly dispose: () => Promise<void>
}

/** Optional: a backend whose sandbox is one process, which the caller can start itself. */
export interface Wrapper {
  wrap(plan: Plan, command: Command): Promise<Wrapped>
}

/** Whether a backend can wrap a command that the caller starts. */
export const canWrap = (backend: Backend): backend is Backend & Wrapper => 'wrap' in backend
