import { basename } from 'node:path/posix'
import { SandboxError } from '../../model/errors.ts'
import {
  type FileChange,
  type FileInfo,
  type FileKind,
  type GuestFiles,
  refuseMetadata,
  type WatchOptions,
} from '../backend.ts'
import { reached, refusalOf } from './account.ts'
import { type Envd, stream, unary } from './envd.ts'

type Bytes = AsyncIterable<Uint8Array> | Iterable<Uint8Array>
/** Runs a remote program with its input and streams its output. */
export type RunThere = (argv: readonly string[], input?: Bytes) => AsyncIterable<Uint8Array>

/** Files of a sandbox at E2B, through its agent's API. */
export function envdFiles(envd: Envd, run: RunThere): GuestFiles {
  const ask = (method: string, message: unknown): Promise<unknown> =>
    unary(envd, `filesystem.Filesystem/${method}`, message)
  return {
    read: (path, { offset = 0, length } = {}) => part(download(envd, path), offset, length),
    async write(path, data, metadata) {
      refuseMetadata('e2b', metadata)
      await upload(envd, path, data)
    },
    list: async (path, depth = 1) =>
      entriesOf((await ask('ListDir', { path, depth })) as Entries).map(infoOf),
    stat: async (path) => infoOf(((await ask('Stat', { path })) as { entry?: Entry }).entry ?? {}),
    makeDir: async (path) => void (await ask('MakeDir', { path })),
    move: async (source, destination) => void (await ask('Move', { source, destination })),
    remove: async (path) => void (await ask('Remove', { path })),
    watch: (path, options) => watch(envd, path, options),
    pack: (path) => run(['tar', '-c', '-f', '-', '-C', path, '.']),
    async unpack(path, data) {
      for await (const _ of run(['tar', '-x', '-f', '-', '-C', path], data));
    },
  }
}

async function* download(envd: Envd, path: string): AsyncGenerator<Uint8Array> {
  const answer = await reached(`${envd.url}/files?path=${encodeURIComponent(path)}`, {
    headers: { ...envd.headers },
  })
  if (!answer.ok || !answer.body) throw await fileProblem(answer, path)
  yield* answer.body as AsyncIterable<Uint8Array>
}

/** The other side sends whole files; the rest is discarded here. */
async function* part(
  source: AsyncIterable<Uint8Array>,
  offset: number,
  length = Number.POSITIVE_INFINITY,
): AsyncGenerator<Uint8Array> {
  let skip = offset
  let left = length
  for await (const chunk of source) {
    const piece = chunk.subarray(Math.min(skip, chunk.length))
    skip -= chunk.length - piece.length
    if (piece.length === 0) continue
    yield piece.subarray(0, Math.min(piece.length, left))
    left -= piece.length
    if (left <= 0) return
  }
}

/** A multipart form with one file, streamed. */
async function upload(envd: Envd, path: string, data: Bytes): Promise<void> {
  const border = `ringfence-${crypto.randomUUID()}`
  const name = encodeURIComponent(basename(path))
  async function* form(): AsyncGenerator<Uint8Array> {
    yield Buffer.from(
      `--${border}\r\ncontent-disposition: form-data; name="file"; filename="${name}"\r\ncontent-type: application/octet-stream\r\n\r\n`,
    )
    for await (const chunk of data) yield chunk
    yield Buffer.from(`\r\n--${border}--\r\n`)
  }
  const answer = await reached(`${envd.url}/files?path=${encodeURIComponent(path)}`, {
    method: 'POST',
    headers: { ...envd.headers, 'content-type': `multipart/form-data; boundary=${border}` },
    body: ReadableStream.from(form()) as ReadableStream,
    duplex: 'half',
  })
  if (!answer.ok) throw await fileProblem(answer, path)
  await answer.body?.cancel()
}

async function fileProblem(answer: Response, path: string): Promise<SandboxError> {
  const text = await answer.text()
  if (answer.status === 404)
    return new SandboxError('file-not-found', `\`${path}\` does not exist in the sandbox`)
  return refusalOf(answer.status, text)
}

type Entry = {
  readonly path?: string
  readonly type?: string
  readonly size?: string | number
  readonly mode?: number
  readonly modifiedTime?: string
  readonly symlinkTarget?: string
}
type Entries = { readonly entries?: unknown }

const entriesOf = ({ entries }: Entries): readonly Entry[] => (Array.isArray(entries) ? entries : [])

const KINDS: Readonly<Record<string, FileKind>> = {
  FILE_TYPE_FILE: 'file',
  FILE_TYPE_DIRECTORY: 'dir',
  FILE_TYPE_SYMLINK: 'link',
}

/** The API returns names of owners; their numeric ids are not available. */
function infoOf(entry: Entry): FileInfo {
  const path = String(entry.path ?? '')
  const isLink = typeof entry.symlinkTarget === 'string' && entry.symlinkTarget !== ''
  return {
    name: basename(path),
    path,
    kind: isLink ? 'link' : (KINDS[String(entry.type)] ?? 'other'),
    size: Number(entry.size ?? 0),
    mode: Number(entry.mode ?? 0) & 0o7777,
    uid: 0,
    gid: 0,
    modifiedMs: Date.parse(String(entry.modifiedTime ?? '')) || 0,
    ...(isLink ? { target: String(entry.symlinkTarget) } : {}),
  }
}

const CHANGES: Readonly<Record<string, FileChange['kind']>> = {
  EVENT_TYPE_CREATE: 'create',
  EVENT_TYPE_WRITE: 'write',
  EVENT_TYPE_REMOVE: 'remove',
  EVENT_TYPE_RENAME: 'rename',
  EVENT_TYPE_CHMOD: 'chmod',
}

async function watch(envd: Envd, path: string, options: WatchOptions): Promise<void> {
  const message = { path, recursive: options.recursive ?? false }
  try {
    for await (const said of stream(envd, 'filesystem.Filesystem/WatchDir', message, options.signal)) {
      if (said.start) options.onReady?.()
      const { name, type } = (said.filesystem ?? {}) as { name?: unknown; type?: unknown }
      const kind = CHANGES[String(type)]
      if (kind) options.onChange({ kind, name: String(name ?? '') })
    }
  } catch (error) {
    if (!options.signal.aborted) throw error
  }
}
