import { close, constants, fstat, type PathLike, read, readdir, write } from 'node:fs'
import { promisify } from 'node:util'
import { observePath, type PathObservation } from '../../host/files/walk.ts'
import { countNamesInside } from '../../host/files/walk-names.ts'
import { openChecked } from '../../host/files/walk-open.ts'
import type { Json } from '../../model/event.ts'
import { isWithin } from '../../model/files/path.ts'
import {
  type FileKind,
  type FileLocation,
  fixedPart,
  grantsFile,
  grantsName,
} from '../../policy/grants/capability.ts'
import {
  type AllowedRoot,
  DEFAULT_BLOCKED,
  DEFAULT_PROTECTED,
  judgePath,
  type PathOp,
  type PathPolicy,
  screenPath,
} from '../../policy/paths/paths.ts'
import { denied, type HostParts, HostRefusal, notHere, type Params, textParam } from './host-parts.ts'

/** File functions: check the grant for the requested path, resolve it, check the grant for the real path, open it. */

const MAX_FILE = 1024 * 1024
const MAX_ENTRIES = 1000
const { O_CREAT, O_DIRECTORY, O_RDONLY, O_TRUNC, O_WRONLY } = constants

type FileHandler = (params: Params) => Promise<Json>
/** The kind of access that is requested for a path. */
export type FileUse = { readonly kind: FileKind; readonly tool: string; readonly op: PathOp }

/** Reading a file. */
export const READ: FileUse = { kind: 'FileRead', tool: 'file_read', op: 'read' }
/** Listing a directory. */
export const LIST: FileUse = { kind: 'FileRead', tool: 'file_list', op: 'read' }
/** Writing a file. */
export const WRITE: FileUse = { kind: 'FileWrite', tool: 'file_write', op: 'write' }

const closeFile = promisify(close)
const statFile = promisify(fstat)
const listDirectory = promisify<PathLike, { withFileTypes: true }, import('node:fs').Dirent[]>(readdir)

/** One request: the access, the path as the guest wrote it, and the configuration of the run. */
export type Asked = { readonly parts: HostParts; readonly use: FileUse; readonly path: string }

/** The three file functions for one run. */
export function createHostFiles(parts: HostParts): Readonly<Record<string, FileHandler>> {
  const asked = (use: FileUse, params: Params): Asked => ({ parts, use, path: textParam(params, 'path') })
  return {
    file_read: async (params) => withFile(asked(READ, params), O_RDONLY, readAll),
    file_list: async (params) => withFile(asked(LIST, params), O_RDONLY | O_DIRECTORY, entriesOf),
    file_write: async (params) => {
      const content = textParam(params, 'content')
      if (content.length > MAX_FILE)
        throw new HostRefusal('resource-exhausted', `a file has at most ${MAX_FILE} characters`)
      return withFile(asked(WRITE, params), O_WRONLY | O_CREAT | O_TRUNC, (fd) => writeAll(fd, content))
    },
  }
}

/** Opens the checked path, runs the action and closes the file. */
async function withFile(asked: Asked, flags: number, action: (fd: number) => Promise<Json>): Promise<Json> {
  const observation = judged(asked)
  let fd: number
  try {
    fd = openChecked(observation, flags)
  } catch {
    throw notHere(asked.path)
  }
  try {
    return await action(fd)
  } finally {
    await closeFile(fd)
  }
}

/** The reason for a path that resolves to a place without a grant. */
export const OUTSIDE = 'the path leads outside the workspace'

function judged(asked: Asked): PathObservation {
  const { parts, path } = asked
  if (parts.workspace === undefined && !path.startsWith('/')) throw refusedAccess(asked)
  return judgedAt(asked, path.startsWith('/') ? path : `${parts.workspace}/${path}`)
}

/** Resolves an absolute path; throws unless the run's grants and the path checks allow this access. */
export function judgedAt(asked: Asked, absolute: string): PathObservation {
  const { parts, path } = asked
  const roots = rootsOf(parts)
  const access = accessOf(asked, roots)
  // SECURITY: a path whose text is not granted is never resolved: not even an error may disclose whether it exists.
  if (access(absolute) === 'denied') throw refusedAccess(asked)
  const screened = screenPath(absolute)
  if (screened.kind === 'refused') throw traversal(asked, screened.reason)
  if (access(screened.path) === 'outside') throw traversal(asked, OUTSIDE)
  const observation = observePath(screened.path)
  const real = realOf(observation)
  if (real === undefined && observation.symlinks.length === 0) throw notHere(path)
  // SECURITY: check the grant again on the resolved path: a symlink inside a granted directory may lead outside.
  if (real === undefined || access(real) !== 'granted') throw traversal(asked, OUTSIDE)
  if (isAllowed(asked.use, screened.path, observation, roots)) return observation
  const absent = observation.state !== 'exists' && asked.use.op === 'read'
  throw absent ? notHere(path) : refusedAccess(asked)
}

/** Records the missing capability and returns the refusal. */
export const refusedAccess = ({ parts, use, path }: Asked): HostRefusal => denied(parts, use.tool, path)

/** What the grants say about one absolute path. */
export type Access = 'granted' | 'outside' | 'denied'

/** INVARIANT: a tool grant opens the workspace, a file grant opens the paths it names; grants only add access. */
export function accessOf(
  { parts, use }: Pick<Asked, 'parts' | 'use'>,
  roots: readonly Root[],
): (absolute: string) => Access {
  const { grants, workspace } = parts
  const { kind, tool } = use
  const own = roots.filter((root) => root.path === workspace).flatMap(({ path, real }) => [path, real])
  const wholeWorkspace = grantsName(grants, 'ToolInvoke', tool)
  return (absolute: string): Access => {
    const base = own.find((root) => isWithin(absolute, root))
    const location: FileLocation = {
      absolute,
      inWorkspace: base === undefined ? undefined : absolute.slice(base.length + 1),
    }
    if (grantsFile(grants, kind, location) || (wholeWorkspace && base !== undefined)) return 'granted'
    return wholeWorkspace ? 'outside' : 'denied'
  }
}

/** A directory that grants can name, as it was observed. */
export type Root = AllowedRoot & { readonly observed: PathObservation; readonly real: string }

/** The workspace, and the fixed prefix of every absolute file grant. */
export function rootsOf({ workspace, grants }: HostParts): readonly Root[] {
  const roots: AllowedRoot[] = workspace === undefined ? [] : [{ path: workspace, mode: 'rw' }]
  for (const grant of grants) {
    if (!('root' in grant) || grant.root !== 'absolute') continue
    const fixed = fixedPart(grant)
    // The grants already decide about writing; a stricter mode here could revoke access that another grant gives.
    if (fixed !== undefined) roots.push({ path: fixed, mode: 'rw' })
  }
  return roots.flatMap((root) => {
    const observed = observePath(root.path)
    const real = realOf(observed)
    return real === undefined ? [] : [{ ...root, observed, real }]
  })
}

/** The path policy of a run: the names that are blocked and protected everywhere. */
export const policyOf = (roots: readonly Root[]): PathPolicy => ({
  allowed: roots,
  blocked: DEFAULT_BLOCKED,
  protected: DEFAULT_PROTECTED,
})

/** The checks that apply to every other path too: blocked and protected names, links, file types. */
function isAllowed(
  use: FileUse,
  path: string,
  observation: PathObservation,
  roots: readonly Root[],
): boolean {
  const policy = policyOf(roots)
  const observed = roots.map((root) => root.observed)
  const namesInside = countNamesInside(observation, observed)
  const op: PathOp = use.op === 'write' && observation.state === 'missing' ? 'create' : use.op
  const facts = { path: observation, roots: observed, ...(namesInside === undefined ? {} : { namesInside }) }
  return judgePath(policy, { path, op }, facts).verdict === 'allow'
}

/** Records the attempt to leave the granted paths and returns the refusal. */
export function traversal({ parts, path }: Asked, reason: string): HostRefusal {
  parts.onViolation({ violationType: 'PathTraversal', details: path.slice(0, 200) })
  return new HostRefusal('path-traversal', reason)
}

/** The real path that an observation resolved to. */
export function realOf(observation: PathObservation): string | undefined {
  if (observation.state === 'exists') return observation.real
  if (observation.state === 'unreadable') return undefined
  return `${observation.ancestor === '/' ? '' : observation.ancestor}/${observation.missing.join('/')}`
}

const ioRead = promisify<number, Uint8Array, number, number, number | null, number>(
  (
    fd: number,
    buffer: Uint8Array,
    offset: number,
    length: number,
    at: number | null,
    done: (error: Error | null, count: number) => void,
  ) => read(fd, buffer, offset, length, at, done),
)
const ioWrite = promisify<number, Uint8Array, number, number, number>(
  (
    fd: number,
    buffer: Uint8Array,
    offset: number,
    length: number,
    done: (error: Error | null, count: number) => void,
  ) => write(fd, buffer, offset, length, null, done),
)

async function readAll(fd: number): Promise<Json> {
  const { size } = await statFile(fd)
  if (size > MAX_FILE)
    throw new HostRefusal('resource-exhausted', `the file is larger than ${MAX_FILE} bytes`)
  const buffer = new Uint8Array(MAX_FILE + 1)
  let filled = 0
  for (let count = -1; count !== 0 && filled < buffer.length; filled += count) {
    count = await ioRead(fd, buffer, filled, buffer.length - filled, null)
  }
  if (filled > MAX_FILE)
    throw new HostRefusal('resource-exhausted', `the file is larger than ${MAX_FILE} bytes`)
  return new TextDecoder().decode(buffer.subarray(0, filled))
}

async function writeAll(fd: number, content: string): Promise<Json> {
  const bytes = new TextEncoder().encode(content)
  for (let done = 0; done < bytes.length; ) done += await ioWrite(fd, bytes, done, bytes.length - done)
  return bytes.length
}

/** PLATFORM: the open directory, through its descriptor; only Linux has such a path. */
async function entriesOf(fd: number): Promise<Json> {
  if (process.platform !== 'linux')
    throw new HostRefusal('unsupported', 'listing is not supported on this system')
  const entries = await listDirectory(`/proc/self/fd/${fd}`, { withFileTypes: true })
  return entries
    .slice(0, MAX_ENTRIES)
    .map((entry) => ({
      name: entry.name,
      kind: entry.isDirectory() ? 'dir' : entry.isFile() ? 'file' : 'other',
    }))
    .sort((a, b) => (a.name < b.name ? -1 : 1))
}
