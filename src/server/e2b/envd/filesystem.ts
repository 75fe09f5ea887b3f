import { posix } from 'node:path'
import { SandboxError } from '../../../model/errors.ts'
import { boolean, number, object, optional, text } from '../../../model/shape.ts'
import { timeText } from '../../../model/text/time-text.ts'
import type { OpenSandbox } from '../../../supervisor/open-sandbox.ts'
import { EventQueue } from '../../streams/event-queue.ts'
import { endStreamSoon } from '../../streams/stream-end.ts'
import { ConnectError, streamEndError } from '../errors.ts'
import { ownerOf } from '../owners.ts'
import { filesOf, pathOf, type SandboxRequest, within } from '../sandbox-request.ts'
import { onlyMessage, type Stream } from './connect.ts'

/** `filesystem.Filesystem`: files as the sandbox sees them. */

type FileInfo = Awaited<ReturnType<OpenSandbox['files']['stat']>>

const path = () => text({ empty: true, max: 4096 })
const pathShape = object({ path: optional(path()) })
const listShape = object({
  path: optional(path()),
  depth: optional(number({ integer: true, min: 0, max: 64 })),
})
const moveShape = object({ source: path(), destination: path() })
/** A request to watch a directory. */
export const watchShape = object({
  path: optional(path()),
  recursive: optional(boolean()),
  includeEntry: optional(boolean()),
  allowNetworkMounts: optional(boolean()),
})

const TYPES = { file: 'FILE_TYPE_FILE', dir: 'FILE_TYPE_DIRECTORY', link: 'FILE_TYPE_SYMLINK' } as const
const LINKS = 16
const AT_ONCE = 32

/** SECURITY: outside of what a sandbox was given, absent and denied read the same; here both are absent. */
export async function reading<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (error instanceof SandboxError && error.code === 'path-traversal')
      throw new ConnectError('not_found', error.message)
    throw error
  }
}

const permissions = (kind: FileInfo['kind'], mode: number): string => {
  const letters = [...'rwxrwxrwx'].map((letter, index) => (mode & (0o400 >> index) ? letter : '-'))
  return `${kind === 'dir' ? 'd' : kind === 'link' ? 'L' : '-'}${letters.join('')}`
}

/** What a link leads to; nothing when it leads nowhere. */
async function behind(live: OpenSandbox, info: FileInfo): Promise<FileInfo | undefined> {
  let at: FileInfo = info
  for (let step = 0; at.kind === 'link' && at.target !== undefined; step++) {
    if (step === LINKS) return undefined
    const next = posix.resolve(posix.dirname(at.path), at.target)
    const found = await live.files.stat(next).catch(() => undefined)
    if (!found) return undefined
    at = found
  }
  return at
}

async function entryOf(live: OpenSandbox, info: FileInfo): Promise<unknown> {
  const real = info.kind === 'link' ? await behind(live, info) : info
  const kind = real?.kind ?? info.kind
  return {
    name: info.name,
    type: kind in TYPES ? TYPES[kind as keyof typeof TYPES] : 'FILE_TYPE_UNSPECIFIED',
    path: info.path,
    size: String(info.size),
    mode: info.mode,
    permissions: permissions(info.kind, info.mode),
    ...(await ownerOf(live, info)),
    modifiedTime: timeText(info.modifiedMs),
    ...(info.metadata ? { metadata: info.metadata } : {}),
    ...(info.target === undefined
      ? {}
      : { symlinkTarget: real?.path ?? posix.resolve(posix.dirname(info.path), info.target) }),
  }
}

/** With missing parents, as E2B's clients expect; an existing directory is their `false`. */
async function makeDir(files: OpenSandbox['files'], target: string): Promise<void> {
  try {
    await files.makeDir(target)
  } catch (error) {
    if (!(error instanceof SandboxError) || error.code !== 'file-not-found' || target === '/') throw error
    await makeDir(files, posix.dirname(target))
    await files.makeDir(target)
  }
}

async function asDirectory(live: OpenSandbox, target: string): Promise<void> {
  const info = await behind(live, await live.files.stat(target))
  if (info?.kind !== 'dir') throw new ConnectError('invalid_argument', `\`${target}\` is not a directory`)
}

type Handler = (guest: SandboxRequest, message: unknown) => Promise<unknown>

const HANDLERS: Readonly<Record<string, Handler>> = {
  async Stat({ sandbox, request }, message) {
    const { home } = filesOf({ sandbox, request })
    const target = pathOf(pathShape.parse(message, '').path, home)
    return reading(async () => ({ entry: await entryOf(sandbox, await sandbox.files.stat(target)) }))
  },
  async ListDir({ sandbox, request }, message) {
    const { path: asked, depth } = listShape.parse(message, '')
    const target = pathOf(asked, filesOf({ sandbox, request }).home)
    return reading(async () => {
      await asDirectory(sandbox, target)
      const found = [...(await sandbox.files.entries(target, Math.max(depth ?? 1, 1)))]
      found.sort((a, b) => (a.path < b.path ? -1 : 1))
      const entries: unknown[] = []
      // Looking at what links lead to is an operation each, so not all at once.
      for (let at = 0; at < found.length; at += AT_ONCE)
        entries.push(
          ...(await Promise.all(found.slice(at, at + AT_ONCE).map((info) => entryOf(sandbox, info)))),
        )
      return { entries }
    })
  },
  async MakeDir({ sandbox, request }, message) {
    const { files, home } = filesOf({ sandbox, request })
    const target = pathOf(pathShape.parse(message, '').path, home)
    await makeDir(files, target)
    return { entry: await entryOf(sandbox, await sandbox.files.stat(target)) }
  },
  async Move({ sandbox, request }, message) {
    const { source, destination } = moveShape.parse(message, '')
    const { files, home } = filesOf({ sandbox, request })
    const to = pathOf(destination, home)
    await files.move(pathOf(source, home), to)
    return { entry: await entryOf(sandbox, await sandbox.files.stat(to)) }
  },
  async Remove({ sandbox, request }, message) {
    const { files, home } = filesOf({ sandbox, request })
    const target = pathOf(pathShape.parse(message, '').path, home)
    await files.remove(target).catch((error: unknown) => {
      // Gone is gone.
      if (!(error instanceof SandboxError) || error.code !== 'file-not-found') throw error
    })
    return {}
  },
}

/** The methods of the file service that have one answer. */
export const UNARY: Readonly<Record<string, Handler>> = Object.fromEntries(
  Object.entries(HANDLERS).map(([name, handle]) => [
    name,
    (guest: SandboxRequest, message: unknown) => within(guest, () => handle(guest, message)),
  ]),
)

const EVENTS = {
  create: 'EVENT_TYPE_CREATE',
  write: 'EVENT_TYPE_WRITE',
  remove: 'EVENT_TYPE_REMOVE',
  rename: 'EVENT_TYPE_RENAME',
  chmod: 'EVENT_TYPE_CHMOD',
} as const

/** One event of a watch. */
export type WatchEvent = { readonly name: string; readonly type: string; readonly entry?: unknown }
/** A parsed request to watch a directory. */
export type Watch = ReturnType<typeof watchShape.parse>

type Change = { readonly kind: keyof typeof EVENTS; readonly name: string }

const entryAt = (live: OpenSandbox, target: string): Promise<unknown> =>
  live.files
    .stat(target)
    .then((info) => entryOf(live, info))
    .catch(() => undefined)

/** Resolves once the watch is in place; ends with the signal. */
export function watch(
  live: OpenSandbox,
  { path: asked, recursive, includeEntry }: Watch,
  take: (event: WatchEvent) => void,
  signal: AbortSignal,
): Promise<{ readonly over: Promise<void> }> {
  const base = pathOf(asked)
  const changes = new EventQueue<Change>()
  let isLooking = false
  // One after the other, so that looking at a file cannot put its event behind a later one.
  const look = async (): Promise<void> => {
    isLooking = true
    for (let change = changes.next(); change && !signal.aborted; change = changes.next()) {
      const { kind, name } = change
      const entry =
        includeEntry && kind !== 'remove' ? await entryAt(live, posix.join(base, name)) : undefined
      take({ name, type: EVENTS[kind], ...(entry ? { entry } : {}) })
    }
    isLooking = false
  }
  const onChange = (change: Change): void => {
    changes.add(change)
    if (!isLooking) void look()
  }
  return reading(async () => {
    await asDirectory(live, base)
    return new Promise((resolve, reject) => {
      const over = live.files.watch(base, {
        recursive: recursive ?? false,
        signal,
        onReady: () => resolve({ over }),
        onChange,
      })
      over.catch(reject)
    })
  })
}

/** The message that keeps a silent watch open. */
export const WATCH_KEEPALIVE = { keepalive: {} }

/** Streams the changes of a directory. */
export async function* watchDir(guest: SandboxRequest, gone: AbortSignal): Stream {
  const asked = watchShape.parse(await onlyMessage(guest.request), '')
  const queue = new EventQueue<WatchEvent>()
  let wake: () => void = () => {}
  let ended = false
  const signal = AbortSignal.any([gone, guest.live.abort.signal])
  const { over } = await watch(
    guest.sandbox,
    asked,
    (event) => {
      queue.add(event)
      wake()
    },
    signal,
  )
  const stop = (): void => {
    ended = true
    wake()
  }
  over.then(stop, stop)
  signal.addEventListener('abort', stop, { once: true })
  yield { start: {} }
  while (!gone.aborted && !(ended && queue.isEmpty)) {
    const next = queue.next()
    if (next) yield { filesystem: next }
    else
      await new Promise<void>((resolve) => {
        wake = resolve
        if (ended) resolve()
      })
  }
  if (gone.aborted) return
  const cut = await endStreamSoon(guest.live)
  throw cut ? streamEndError(cut) : new ConnectError('unavailable', 'the sandbox was ended')
}
