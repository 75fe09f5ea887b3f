import { constants, createReadStream } from 'node:fs'
import { lstat, mkdir, open, readdir, stat } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { RemoteSandbox } from '../../client/sandbox.ts'
import { SandboxError } from '../../model/errors.ts'
import { visible } from '../../model/text/visible.ts'
import { usage } from '../options/options.ts'
import { err } from '../terminal/output.ts'
import { find } from './find.ts'

/** `sandbox cp`: files and, with `-r`, directories, in both directions. */
export async function copy(recursive: boolean, [from, to, ...rest]: readonly string[]): Promise<number> {
  const source = remotePathOf(from)
  const target = remotePathOf(to)
  if (!from || !to || rest.length > 0 || (source === undefined) === (target === undefined))
    throw usage('sandbox', 'use one local path and one path in a sandbox: `sandbox cp FILE ID:/path`')
  if (source) await download(await find(source.id), source.path, to, recursive)
  else if (target) await upload(from, await find(target.id), target.path, recursive)
  return 0
}

/** `ID:/path` or `NAME:/path` is a path in the sandbox, anything else a local path. */
function remotePathOf(word: string | undefined): { readonly id: string; readonly path: string } | undefined {
  const [, id, path] = /^([A-Za-z0-9][\w.-]*):(\/.*)$/.exec(word ?? '') ?? []
  return id === undefined || path === undefined ? undefined : { id, path }
}

async function upload(from: string, target: RemoteSandbox, to: string, recursive: boolean): Promise<void> {
  const info = await stat(from).catch(() => {
    throw new SandboxError('not-found', `\`${from}\` does not exist on this machine`)
  })
  if (!info.isDirectory()) return uploadFile(from, target, to.endsWith('/') ? `${to}${basename(from)}` : to)
  if (!recursive) throw isDirectory(from)
  for (const entry of await readdir(from, { withFileTypes: true })) {
    const [local, remote] = [join(from, entry.name), `${to.replace(/\/+$/, '')}/${entry.name}`]
    if (entry.isDirectory()) await upload(local, target, remote, true)
    else if (entry.isFile()) await uploadFile(local, target, remote)
    else err(`ringfence: skipped ${visible(local)}: neither a file nor a directory\n`)
  }
}

async function uploadFile(from: string, target: RemoteSandbox, to: string): Promise<void> {
  const stream = Readable.toWeb(createReadStream(from)) as unknown as ReadableStream<Uint8Array>
  await target.files.write(to, stream)
}

async function download(source: RemoteSandbox, from: string, to: string, recursive: boolean): Promise<void> {
  const { kind } = await source.files.stat(from)
  const isDir = (await stat(to).catch(() => undefined))?.isDirectory() ?? false
  if (kind !== 'dir') return downloadFile(source, from, isDir ? join(to, basename(from)) : to)
  if (!recursive) throw isDirectory(from)
  await downloadDirectory(source, from, to)
}

async function downloadDirectory(source: RemoteSandbox, from: string, to: string): Promise<void> {
  await makeDirectory(to)
  for (const { name, kind } of await source.files.list(from)) {
    // SECURITY: the names come from the sandbox; one of them must not lead out of the target directory.
    if (name === '' || name === '.' || name === '..' || /[/\0]/.test(name))
      throw new SandboxError('path-traversal', `the sandbox lists a file with the name \`${visible(name)}\``)
    const [remote, local] = [`${from.replace(/\/+$/, '')}/${name}`, join(to, name)]
    if (kind === 'dir') await downloadDirectory(source, remote, local)
    else if (kind === 'file') await downloadFile(source, remote, local)
    else err(`ringfence: skipped ${visible(remote)}: neither a file nor a directory\n`)
  }
}

async function downloadFile(source: RemoteSandbox, from: string, to: string): Promise<void> {
  const stream = await source.files.readStream(from)
  // SECURITY: never through a link that lies in the target directory.
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_TRUNC | constants.O_NOFOLLOW
  const file = await open(to, flags, 0o666).catch((cause: NodeJS.ErrnoException) => {
    throw new SandboxError('invalid-input', `cannot write \`${to}\`: ${cause.code}`, {
      hint:
        cause.code === 'ENOENT' ? `create the directory \`${dirname(to)}\` first` : 'choose another target',
    })
  })
  await pipeline(Readable.fromWeb(stream as Parameters<typeof Readable.fromWeb>[0]), file.createWriteStream())
}

async function makeDirectory(path: string): Promise<void> {
  const there = await lstat(path).catch(() => undefined)
  if (there === undefined) await mkdir(path)
  else if (!there.isDirectory())
    throw new SandboxError('invalid-input', `\`${path}\` is not a directory`, {
      hint: 'choose another target',
    })
}

const isDirectory = (path: string): SandboxError =>
  new SandboxError('invalid-input', `\`${path}\` is a directory`, { hint: 'copy directories with -r' })
