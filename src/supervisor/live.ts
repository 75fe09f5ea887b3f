import type { Duplex } from 'node:stream'
import type { Decision } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import type { Level } from '../model/guarantee.ts'
import type { Plan } from '../model/plan.ts'
import type { Limits } from '../model/spec.ts'
import type { Executed, Sandbox } from './sandbox.ts'

/**
 * What the supervisor needs of an open sandbox. `Sandbox` is made to fit by `liveOf`; the powers that a backend may lack
 * are optional here and answered with `unsupported` by the caller.
 */
export interface LiveSandbox {
  readonly id: string
  readonly backend: string
  readonly level: Level
  readonly plan: Plan
  spawn(command: string | readonly string[], options: SpawnOptions): Promise<RunningExec>
  readonly files: LiveFiles
  /** A byte stream to a TCP port inside. */
  connect(port: number): Promise<Duplex>
  layers(): Promise<readonly string[]>
  /** Resolves when it ended by itself; the text says why. */
  readonly ended: Promise<string>
  close(): Promise<void>
  /** Puts on record that it exists. */
  recorded(): Promise<void>
  pause?(): Promise<void>
  resume?(): Promise<void>
  setAllowHosts?(hosts: readonly string[]): Promise<void>
}

export type OutputStream = 'stdout' | 'stderr'
export type TerminalSize = { readonly cols: number; readonly rows: number }

export type SpawnOptions = {
  readonly cwd?: string | undefined
  readonly env?: Readonly<Record<string, string>> | undefined
  /** Keeps standard input open for `write`. */
  readonly stdin?: boolean | undefined
  /** All of standard input, known beforehand. */
  readonly input?: Uint8Array | undefined
  readonly terminal?: TerminalSize | undefined
  readonly output: (stream: OutputStream, chunk: Uint8Array) => void | Promise<void>
  readonly limits?: Limits | undefined
  readonly signal?: AbortSignal | undefined
  readonly approve?: ((decision: Decision) => boolean | Promise<boolean>) | undefined
}

export type RunningExec = {
  readonly execId: string
  readonly pid: number
  readonly decision: Decision
  readonly result: Promise<Executed>
  write(bytes: Uint8Array): Promise<void>
  endInput(): void
  signal(name: NodeJS.Signals): void
  resize(size: TerminalSize): void
}

export type FileKind = 'file' | 'dir' | 'link' | 'other'

export type FileInfo = {
  readonly name: string
  readonly path: string
  readonly kind: FileKind
  readonly size: number
  readonly mode: number
  readonly uid: number
  readonly gid: number
  readonly modifiedMs: number
  readonly target?: string
}

export type FileChange = {
  readonly kind: 'create' | 'write' | 'remove' | 'rename' | 'chmod'
  readonly name: string
}

export type WatchOptions = {
  readonly recursive?: boolean
  readonly signal: AbortSignal
  readonly onReady?: () => void
  readonly onChange: (change: FileChange) => void
}

export interface LiveFiles {
  readStream(
    path: string,
    range?: { readonly offset?: number; readonly length?: number },
  ): AsyncIterable<Uint8Array>
  write(path: string, data: AsyncIterable<Uint8Array>): Promise<void>
  entries(path: string, depth?: number): Promise<readonly FileInfo[]>
  stat(path: string): Promise<FileInfo>
  makeDir(path: string): Promise<void>
  move(from: string, to: string): Promise<void>
  remove(path: string): Promise<void>
  watch(path: string, options: WatchOptions): Promise<void>
}

const missing = (what: string, backend: string): SandboxError =>
  new SandboxError('unsupported', `${backend} cannot ${what}`)

/** STAND-IN until sandboxes stay alive between commands: what today's `exec` can do, and a plain refusal for the rest. */
export function liveOf(sandbox: Sandbox): LiveSandbox {
  const { backend } = sandbox
  const refuse = (what: string) => async (): Promise<never> => {
    throw missing(what, backend)
  }
  return {
    id: sandbox.id,
    backend,
    level: sandbox.level,
    plan: sandbox.plan,
    files: {
      async *readStream(path) {
        yield await sandbox.files.read(path)
      },
      async write(path, data) {
        const parts: Uint8Array[] = []
        for await (const part of data) parts.push(part)
        await sandbox.files.write(path, Buffer.concat(parts))
      },
      async entries(path) {
        const names = await sandbox.files.list(path)
        return Promise.all(names.map((name) => statOf(sandbox, `${path.replace(/\/$/, '')}/${name}`)))
      },
      stat: (path) => statOf(sandbox, path),
      makeDir: refuse('make directories'),
      move: refuse('move files'),
      remove: (path) => sandbox.files.remove(path),
      watch: refuse('watch files'),
    },
    spawn: (command, options) => spawnOver(sandbox, command, options),
    connect: refuse('reach ports'),
    layers: async () => [],
    ended: new Promise(() => {}),
    close: () => sandbox.close(),
    recorded: () => sandbox.recorded(),
  }
}

async function statOf(sandbox: Sandbox, path: string): Promise<FileInfo> {
  const { size, mode, kind, modifiedMs } = await sandbox.files.stat(path)
  const known: FileKind = /directory/.test(kind) ? 'dir' : /link/.test(kind) ? 'link' : 'file'
  const name = path.split('/').at(-1) ?? path
  return { name, path, kind: known, size, mode, uid: 0, gid: 0, modifiedMs }
}

function spawnOver(
  sandbox: Sandbox,
  command: string | readonly string[],
  options: SpawnOptions,
): Promise<RunningExec> {
  const stop = new AbortController()
  options.signal?.addEventListener('abort', () => stop.abort(), { once: true })
  const { cwd, env, input, approve } = options
  const result = sandbox.exec(command, {
    ...(cwd === undefined ? {} : { cwd }),
    ...(env === undefined ? {} : { env }),
    ...(input === undefined ? {} : { stdin: input }),
    ...(approve === undefined ? {} : { approve }),
    output: (stream, chunk) => void options.output(stream, chunk),
    signal: stop.signal,
  })
  const refuse = async (): Promise<never> => {
    throw missing('write to a running command', sandbox.backend)
  }
  // Known only at the end, here: whoever asks earlier gets what it has.
  return Promise.race([
    result.then((done) => done.execId),
    new Promise<string>((go) => setTimeout(go, 30, '')),
  ]).then((execId) => ({
    execId: execId || `ex_${sandbox.id.slice(3)}${Date.now().toString(36)}`,
    pid: 0,
    decision: { action: 'sandbox', reason: '', rules: [], commands: [] },
    result,
    write: refuse,
    endInput: () => {},
    signal: () => stop.abort(),
    resize: () => {},
  }))
}
