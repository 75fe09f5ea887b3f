import { basename } from 'node:path/posix'
import { FILE_CHANGES, FILE_KINDS } from '../host/guest/protocol.ts'
import { type ErrorCode, SandboxError } from '../model/errors.ts'
import { assertEntries, wholeOf } from '../model/files/whole.ts'
import type {
  FileChange,
  FileInfo,
  FileKind,
  FileMetadata,
  GuestFiles,
  OutputConsumer,
  WatchOptions,
} from './backend.ts'

/** Runs one of the agent's own file operations; resolves with its exit code. */
export type RunBuiltin = (
  argv: readonly [string, ...string[]],
  io: {
    readonly input?: AsyncIterable<Uint8Array> | Iterable<Uint8Array>
    readonly output: OutputConsumer
    readonly signal?: AbortSignal
  },
) => Promise<number>

type Run = { readonly builtin: RunBuiltin; readonly isGranted: (path: string) => boolean }

type Bytes = AsyncIterable<Uint8Array> | Iterable<Uint8Array>

/** File operations for hosts that gave the guest copies. */
export type SharedFiles = GuestFiles & {
  /** The same files; what is created belongs to this user, where the sandbox has a root user. */
  readonly ownedBy: (user: string) => SharedFiles
  /** The directory as a tar stream, in which files unchanged since then (in nanoseconds) are only named. */
  changes(path: string, since: string): AsyncIterable<Uint8Array>
  /** Writes what the file system of this path has in memory to its disk. */
  sync(path: string): Promise<void>
}

/** Files through the agent: every operation is a process inside the sandbox, so it can reach no more than a command. */
export function guestFiles(
  builtin: RunBuiltin,
  isGranted: (path: string) => boolean,
  ownedBy: (user: string) => SharedFiles = () => guestFiles(builtin, isGranted),
): SharedFiles {
  const run: Run = { builtin, isGranted }
  const infos = (argv: readonly [string, string, ...string[]]): Promise<readonly FileInfo[]> =>
    readInfos(run, argv)
  const done = (argv: readonly [string, ...string[]], input?: Bytes): Promise<void> =>
    checked(run, argv, () => undefined, input)
  return {
    read: (path, { offset = 0, length } = {}) =>
      streamed(run, ['read', path, String(offset), length === undefined ? '' : String(length)]),
    write: (path, data, metadata) => done(['write', path, attributesOf(metadata)], data),
    list: (path, depth = 1) => infos(['list', path, String(depth)]),
    stat: async (path) => (await infos(['stat', path]))[0] as FileInfo,
    makeDir: (path) => done(['mkdir', path]),
    move: (from, to) => done(['move', from, to]),
    remove: (path) => done(['remove', path]),
    watch: (path, options) => watch(run, path, options),
    pack: (path, { whole = false } = {}) => streamed(run, [whole ? 'pack-whole' : 'pack', path]),
    changes: (path, since) => streamed(run, ['changes', path, since]),
    unpack: (path, data) => done(['unpack', path], data),
    sync: (path) => done(['sync', path]),
    ownedBy,
  }
}

async function readInfos(
  run: Run,
  argv: readonly [string, string, ...string[]],
): Promise<readonly FileInfo[]> {
  const pieces = countedEntries(argv[1], streamed(run, argv))
  const listing = await wholeOf(`the listing of \`${argv[1]}\``, pieces)
  return infosOf(Buffer.from(listing.buffer, listing.byteOffset, listing.length).toString('utf8'))
}

/** Ends a listing that is too long as soon as it is: it is not read to its end, and nothing of it is parsed. */
async function* countedEntries(path: string, pieces: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  let ends = 0
  for await (const piece of pieces) {
    for (let at = piece.indexOf(0); at !== -1; at = piece.indexOf(0, at + 1)) ends++
    assertEntries(path, Math.floor(ends / ENTRY_FIELDS))
    yield piece
  }
}

async function checked(
  { builtin, isGranted }: Run,
  argv: readonly [string, ...string[]],
  onData: (chunk: Uint8Array) => unknown,
  input?: Bytes,
  signal?: AbortSignal,
): Promise<void> {
  let said = ''
  const code = await builtin(argv, {
    ...(input === undefined ? {} : { input }),
    ...(signal === undefined ? {} : { signal }),
    output: (stream, chunk) => {
      if (stream === 'stdout') return onData(chunk)
      if (said.length < 4096) said += Buffer.from(chunk).toString('utf8')
      return undefined
    },
  })
  if (code !== 0 && !signal?.aborted) throw fileError(said, argv[1] ?? '', isGranted)
}

const CODES: Readonly<Record<string, { readonly code: ErrorCode; readonly text: string }>> = {
  ENOENT: { code: 'file-not-found', text: 'does not exist in the sandbox' },
  ENOTDIR: { code: 'invalid-input', text: 'is not a directory' },
  EISDIR: { code: 'invalid-input', text: 'is a directory' },
  EEXIST: { code: 'file-exists', text: 'exists already' },
  EINVAL: { code: 'invalid-input', text: 'is not a regular file' },
  ENOSPC: { code: 'resource-exhausted', text: 'cannot be written: the disk is full' },
  EOPNOTSUPP: {
    code: 'unsupported',
    text: 'does not support this: its file system or the backend cannot do it',
  },
  UNREADABLE: {
    code: 'wrong-state',
    text: 'contains files that cannot be read here: private files of another user, or paths that are too long',
  },
  EFBIG: { code: 'resource-exhausted', text: 'is larger than the disk limit' },
}

/** SECURITY: outside the mounts, absent and denied paths give the same error. */
function fileError(said: string, path: string, isGranted: (path: string) => boolean): SandboxError {
  const name = said.split(' ')[0] ?? ''
  const known = Object.hasOwn(CODES, name) ? CODES[name] : undefined
  if (known && isGranted(path)) return new SandboxError(known.code, `\`${path}\` ${known.text}`)
  if (['EPERM', 'EACCES', 'EROFS'].includes(name) && isGranted(path))
    return new SandboxError('path-traversal', `\`${path}\` is a protected name or read-only`, {
      hint: 'programs outside the sandbox run or load protected names; show the change to the user instead',
    })
  return new SandboxError('path-traversal', `cannot reach \`${path}\` in the sandbox`, {
    hint: 'mount the path, or choose one that is writable and not protected',
  })
}

/** Streams an operation's output; a reader that stops early ends the operation. */
async function* streamed(run: Run, argv: readonly [string, ...string[]]): AsyncGenerator<Uint8Array> {
  const abort = new AbortController()
  const queue: Uint8Array[] = []
  let wake = (): void => {}
  // Several chunks may arrive at once; each blocks the following ones until it is consumed.
  const held: (() => void)[] = []
  const release = (): void => held.shift()?.()
  let over = false
  const finished = checked(
    run,
    argv,
    (chunk) => {
      queue.push(Uint8Array.from(chunk))
      wake()
      return new Promise<void>((resolve) => {
        held.push(resolve)
      })
    },
    undefined,
    abort.signal,
  ).finally(() => {
    over = true
    wake()
  })
  finished.catch(() => {})
  try {
    for (;;) {
      while (queue.length > 0) {
        yield queue.shift() as Uint8Array
        release()
      }
      if (over) break
      await new Promise<void>((resolve) => {
        wake = resolve
        if (over || queue.length > 0) resolve()
      })
    }
    await finished
  } finally {
    for (const resolve of held) resolve()
    abort.abort()
  }
}

const KINDS: Readonly<Record<string, FileKind>> = FILE_KINDS

/** Ends each name and each value of a file's metadata (guest/agent/files/attributes.h). */
const ATTRIBUTE_END = '\u0001'

function attributesOf(metadata: FileMetadata = {}): string {
  const texts = Object.entries(metadata).flat()
  const isPlain = texts.every((text, index) => (index % 2 ? /^[\x20-\x7e]*$/ : /^[\x21-\x7e]+$/).test(text))
  if (!isPlain) throw new SandboxError('invalid-input', 'metadata is not plain ASCII')
  return texts.map((text) => `${text}${ATTRIBUTE_END}`).join('')
}

function metadataOf(text: string): FileMetadata | undefined {
  const texts = text.split(ATTRIBUTE_END)
  const pairs = Array.from({ length: Math.floor(texts.length / 2) }, (_, index) => [
    texts[2 * index] as string,
    texts[2 * index + 1] as string,
  ])
  return pairs.length === 0 ? undefined : Object.fromEntries(pairs)
}

const ENTRY_FIELDS = 4

/**
 * Parses records of `kind mode uid gid size mtime NUL path NUL target NUL attributes NUL`
 * (guest/agent/files/file_operations.c).
 */
function infosOf(text: string): readonly FileInfo[] {
  const parts = text.split('\0')
  const infos: FileInfo[] = []
  for (let i = 0; i + 3 < parts.length; i += ENTRY_FIELDS) {
    const [kind = '', mode = '0', uid = '0', gid = '0', size = '0', modified = '0'] = (parts[i] ?? '').split(
      ' ',
    )
    const path = parts[i + 1] ?? ''
    const target = parts[i + 2] ?? ''
    const metadata = metadataOf(parts[i + 3] ?? '')
    infos.push({
      name: basename(path),
      path,
      kind: KINDS[kind] ?? 'other',
      size: Number(size),
      mode: Number.parseInt(mode, 8),
      uid: Number(uid),
      gid: Number(gid),
      modifiedMs: Number(modified),
      ...(target === '' ? {} : { target }),
      ...(metadata === undefined ? {} : { metadata }),
    })
  }
  return infos
}

const CHANGES: Readonly<Record<string, FileChange['kind']>> = FILE_CHANGES
/** A letter and a path. */
const MAX_CHANGE = 8192

async function watch(run: Run, path: string, options: WatchOptions): Promise<void> {
  let rest = ''
  const hear = (chunk: Uint8Array): void => {
    const parts = (rest + Buffer.from(chunk).toString('utf8')).split('\0')
    rest = (parts.pop() ?? '').slice(-MAX_CHANGE)
    for (const part of parts) {
      const kind = CHANGES[part[0] ?? '']
      if (part === '!') options.onReady?.()
      else if (kind) options.onChange({ kind, name: part.slice(1) })
    }
  }
  await checked(run, ['watch', path, options.recursive ? '1' : '0'], hear, undefined, options.signal)
}
