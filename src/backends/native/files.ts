import { createReadStream, createWriteStream, type Stats, watch as watchDirectory } from 'node:fs'
import { lstat, mkdir, readdir, readlink, rename, rm } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { RunIo, RunResult } from '../../host/process/run.ts'
import { type ErrorCode, SandboxError } from '../../model/errors.ts'
import { type FileInfo, type GuestFiles, refuseMetadata, type WatchOptions } from '../backend.ts'

type Run = (argv: readonly [string, ...string[]], io: RunIo) => Promise<RunResult>

/** The host's own files, without isolation. */
export function nativeFiles(run: Run): GuestFiles {
  return {
    read: (path, { offset = 0, length } = {}) => read(path, offset, length),
    write: (path, data, metadata) =>
      named(path, async () => {
        refuseMetadata('native', metadata)
        await mkdir(dirname(path), { recursive: true })
        await pipeline(Readable.from(data), createWriteStream(path))
      }),
    list: (path, depth = 1) => named(path, () => listed(path, depth)),
    stat: (path) => named(path, () => infoOf(path)),
    makeDir: (path) =>
      named(path, async () => {
        await mkdir(dirname(path), { recursive: true })
        await mkdir(path)
      }),
    move: (from, to) => named(from, () => rename(from, to)),
    remove: (path) => named(path, () => rm(path, { recursive: true })),
    watch: (path, options) => named(path, () => watch(path, options)),
    pack: (path) => packed(run, path),
    unpack: async (path, data) => {
      const chunks: Uint8Array[] = []
      for await (const chunk of data) chunks.push(chunk)
      await mkdir(path, { recursive: true })
      await run(['tar', '-x', '-C', path], { stdin: Buffer.concat(chunks) })
    },
  }
}

const CODES: Readonly<Record<string, ErrorCode>> = { ENOENT: 'file-not-found', EEXIST: 'file-exists' }

async function named<T>(path: string, action: () => Promise<T>): Promise<T> {
  try {
    return await action()
  } catch (error) {
    const { code = 'EIO' } = error as NodeJS.ErrnoException
    throw new SandboxError(CODES[code] ?? 'invalid-input', `cannot reach \`${path}\`: ${code}`)
  }
}

async function* read(path: string, offset: number, length?: number): AsyncGenerator<Uint8Array> {
  if (length === 0) return
  const end = length === undefined ? undefined : offset + length - 1
  const stream = createReadStream(path, { start: offset, ...(end === undefined ? {} : { end }) })
  try {
    for await (const chunk of stream) yield chunk as Uint8Array
  } catch (error) {
    await named(path, () => Promise.reject(error))
  }
}

async function* packed(run: Run, path: string): AsyncGenerator<Uint8Array> {
  yield (await run(['tar', '-c', '-C', path, '.'], {})).stdout
}

const kindOf = (stats: Stats): FileInfo['kind'] =>
  stats.isFile() ? 'file' : stats.isDirectory() ? 'dir' : stats.isSymbolicLink() ? 'link' : 'other'

async function infoOf(path: string): Promise<FileInfo> {
  const stats = await lstat(path)
  const { size, mode, uid, gid, mtimeMs } = stats
  const target = stats.isSymbolicLink() ? { target: await readlink(path) } : {}
  const name = basename(path)
  return {
    name,
    path,
    kind: kindOf(stats),
    size,
    mode: mode & 0o7777,
    uid,
    gid,
    modifiedMs: mtimeMs,
    ...target,
  }
}

async function listed(path: string, depth: number): Promise<readonly FileInfo[]> {
  const infos: FileInfo[] = []
  for (const name of await readdir(path)) {
    const info = await infoOf(join(path, name))
    infos.push(info)
    if (info.kind === 'dir' && depth > 1) infos.push(...(await listed(info.path, depth - 1)))
  }
  return infos
}

function watch(path: string, options: WatchOptions): Promise<void> {
  const { recursive = false, signal, onReady, onChange } = options
  return new Promise((resolve) => {
    const watcher = watchDirectory(path, { recursive, signal }, (event, name) =>
      onChange({ kind: event === 'change' ? 'write' : 'rename', name: name ?? '' }),
    )
    watcher.on('close', () => resolve())
    watcher.on('error', () => resolve())
    onReady?.()
  })
}
