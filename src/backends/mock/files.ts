import { basename, dirname } from 'node:path/posix'
import { SandboxError } from '../../model/errors.ts'
import { type FileInfo, type GuestFiles, refuseMetadata } from '../backend.ts'

/** Files in a map; a directory exists while it contains something. */
export function mockFiles(alive: () => void): GuestFiles {
  const files = new Map<string, Uint8Array>()
  const get = (path: string): Uint8Array => {
    alive()
    const data = files.get(path)
    if (!data) throw new SandboxError('file-not-found', `\`${path}\` does not exist in the sandbox`)
    return data
  }
  const unsupported = (what: string): never => {
    throw new SandboxError('unsupported', `mock does not support ${what}`)
  }
  return {
    async *read(path, { offset = 0, length } = {}) {
      yield get(path).subarray(offset, length === undefined ? undefined : offset + length)
    },
    async write(path, data, metadata) {
      alive()
      refuseMetadata('mock', metadata)
      const chunks: Uint8Array[] = []
      for await (const chunk of data) chunks.push(chunk)
      files.set(path, Uint8Array.from(Buffer.concat(chunks)))
    },
    async list(path) {
      alive()
      return [...files.keys()].filter((name) => dirname(name) === path).map((name) => infoOf(name, get(name)))
    },
    stat: async (path) => infoOf(path, get(path)),
    makeDir: async () => alive(),
    async move(from, to) {
      files.set(to, get(from))
      files.delete(from)
    },
    async remove(path) {
      get(path)
      files.delete(path)
    },
    watch: async () => unsupported('watch'),
    pack: () => unsupported('pack'),
    unpack: async () => unsupported('unpack'),
  }
}

const infoOf = (path: string, data: Uint8Array): FileInfo => ({
  name: basename(path),
  path,
  kind: 'file',
  size: data.length,
  mode: 0o644,
  uid: 0,
  gid: 0,
  modifiedMs: 0,
})
