import { type FileInfo, filePage, fileShape, watchEvents } from '../../model/api/files.ts'
import { SandboxError } from '../../model/errors.ts'
import { timeText } from '../../model/text/time-text.ts'
import type { LiveSandbox } from '../../supervisor/lifecycle/live-sandbox.ts'
import type { OpenSandbox } from '../../supervisor/open-sandbox.ts'

import { bytesOf } from '../body.ts'
import type { Call, EventOf, Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { filesQuery, pathQuery, readQuery, watchQuery } from '../shapes.ts'
import { EventQueue } from '../streams/event-queue.ts'
import { sse } from '../streams/sse.ts'
import { endStreamSoon } from '../streams/stream-end.ts'

type Found = Awaited<ReturnType<OpenSandbox['files']['stat']>>

/** A file as the API shows it. */
export const fileJson = (info: Found): FileInfo => ({
  name: info.name,
  path: info.path,
  kind: info.kind,
  size: info.size,
  mode: info.mode,
  uid: info.uid,
  gid: info.gid,
  modified_at: timeText(info.modifiedMs),
  ...(info.target === undefined ? {} : { target: info.target }),
})

/** Files as the sandbox sees them. The work counts as use of the sandbox. */
async function within<T>(
  call: Call<'id'>,
  path: string,
  work: (live: OpenSandbox, entry: LiveSandbox) => Promise<T>,
): Promise<T> {
  if (!path.startsWith('/'))
    throw new SandboxError('path-not-absolute', `\`${path}\` is not an absolute path`)
  const entry = await call.parts.supervisor.use(call.principal, call.params.id)
  const live = entry.ready()
  const end = entry.begin()
  try {
    return await work(live, entry)
  } finally {
    end()
  }
}

type WatchEvent = EventOf<typeof watchEvents>

const base = { sandboxToken: true } as const

/** Routes of files in a sandbox. */
export const fileRoutes: readonly Route[] = [
  route({
    ...base,
    method: 'GET',
    path: '/v1/sandboxes/:id/files',
    summary: 'Read a file, as a stream',
    scope: 'read',
    query: readQuery,
    answers: { 200: { description: 'the bytes of the file', type: 'application/octet-stream' } },
    handle: (call) => readFile(call, call.query),
  }),
  route({
    ...base,
    method: 'PUT',
    path: '/v1/sandboxes/:id/files',
    summary: 'Write a file from the body, as a stream',
    scope: 'exec',
    query: pathQuery,
    stream: true,
    answers: { 200: { description: 'the file', shape: fileShape } },
    handle: (call) =>
      within(call, call.query.path, async (live) => {
        const body = call.request.body
        await live.files.write(call.query.path, body ? bytesOf(body) : empty())
        return reply(200, fileJson(await live.files.stat(call.query.path)))
      }),
  }),
  route({
    ...base,
    method: 'DELETE',
    path: '/v1/sandboxes/:id/files',
    summary: 'Delete a file, or a directory with everything in it',
    scope: 'exec',
    query: pathQuery,
    answers: { 204: { description: 'deleted' } },
    handle: (call) =>
      within(call, call.query.path, async (live) => {
        await live.files.remove(call.query.path)
        return reply(204)
      }),
  }),
  route({
    ...base,
    method: 'GET',
    path: '/v1/sandboxes/:id/files/list',
    summary: 'List a directory',
    scope: 'read',
    query: filesQuery,
    answers: { 200: { description: 'the entries', shape: filePage } },
    handle: (call) =>
      within(call, call.query.path, async (live) => {
        const found = await live.files.entries(call.query.path, call.query.depth)
        return reply(200, { items: found.map(fileJson), next: null })
      }),
  }),
  route({
    ...base,
    method: 'GET',
    path: '/v1/sandboxes/:id/files/stat',
    summary: 'Get the type, size and mode of a path; links are not followed',
    scope: 'read',
    query: pathQuery,
    answers: { 200: { description: 'the file', shape: fileShape } },
    handle: (call) =>
      within(call, call.query.path, async (live) =>
        reply(200, fileJson(await live.files.stat(call.query.path))),
      ),
  }),
  route({
    ...base,
    method: 'GET',
    path: '/v1/sandboxes/:id/files/watch',
    summary: 'Watch a directory, as a stream of events',
    scope: 'read',
    query: watchQuery,
    answers: {
      200: {
        description: 'one event per change; `cut` says why the stream ends',
        type: 'text/event-stream',
        events: watchEvents,
      },
    },
    handle: (call) =>
      within(call, call.query.path, (_, entry) =>
        watched(call, entry, call.query.path, call.query.recursive ?? false),
      ),
  }),
]

async function* empty(): AsyncGenerator<Uint8Array, void> {}

async function readFile(
  call: Call<'id'>,
  { path, offset, length }: { readonly path: string; readonly offset?: number; readonly length?: number },
): Promise<Response> {
  return within(call, path, async (live) => {
    const range = { ...(offset === undefined ? {} : { offset }), ...(length === undefined ? {} : { length }) }
    return attachment(live.files.readStream(path, range))
  })
}

/** The bytes of a file that a sandbox wrote. */
export async function attachment(bytes: AsyncIterable<Uint8Array>): Promise<Response> {
  const source = bytes[Symbol.asyncIterator]()
  // The first piece is awaited, so that a missing file is an answer and not a broken stream.
  const first = await source.next()
  const stream = new ReadableStream<Uint8Array>({
    start(controller) {
      if (first.done) controller.close()
      else controller.enqueue(first.value)
    },
    async pull(controller) {
      const { done, value } = await source.next()
      if (done) controller.close()
      else controller.enqueue(value)
    },
    async cancel() {
      await source.return?.(undefined)
    },
  })
  return new Response(stream, {
    headers: {
      'content-type': 'application/octet-stream',
      // SECURITY: what a sandbox wrote is never shown as a page of ours.
      'content-disposition': 'attachment',
      'x-content-type-options': 'nosniff',
    },
  })
}

/** Resolves once the watch is in place. */
async function watched(
  call: Call<'id'>,
  entry: LiveSandbox,
  path: string,
  recursive: boolean,
): Promise<Response> {
  const queue = new EventQueue<WatchEvent>()
  const stop = new AbortController()
  let wake: () => void = () => {}
  let over = false
  const add = (event: WatchEvent): void => {
    queue.add(event)
    wake()
  }
  await new Promise<void>((resolve, reject) => {
    entry
      .ready()
      .files.watch(path, {
        recursive,
        signal: stop.signal,
        onReady: () => {
          add({ event: 'ready', data: { path } })
          resolve()
        },
        onChange: (change) => add({ event: 'change', data: change }),
      })
      .catch(reject)
      .finally(() => {
        over = true
        wake()
      })
  })
  async function* events(signal: AbortSignal): AsyncGenerator<WatchEvent, void> {
    signal.addEventListener('abort', () => wake(), { once: true })
    try {
      while (!signal.aborted && !(over && queue.isEmpty)) {
        const next = queue.next()
        if (next) yield next
        else
          await new Promise<void>((resolve) => {
            wake = resolve
          })
      }
      const cut = signal.aborted ? undefined : await endStreamSoon(entry)
      if (cut) yield { event: 'cut', data: cut }
    } finally {
      stop.abort()
    }
  }
  return sse(call, events)
}
