import { randomBytes } from 'node:crypto'
import { object, text } from '../../../model/shape.ts'
import type { LiveSandbox } from '../../../supervisor/lifecycle/live-sandbox.ts'
import type { OpenSandbox } from '../../../supervisor/open-sandbox.ts'
import { EventQueue } from '../../streams/event-queue.ts'
import { ConnectError } from '../errors.ts'
import type { SandboxRequest } from '../sandbox-request.ts'
import { type WatchEvent, watch, watchShape } from './filesystem.ts'

/** Watches that are asked for their events now and then, for clients that cannot hold a stream. */

type Watcher = { readonly events: EventQueue<WatchEvent>; readonly stop: AbortController }

const WATCHERS = new WeakMap<OpenSandbox, Map<string, Watcher>>()
const MOST = 64

const idShape = object({ watcherId: text({ max: 64 }) })

function watchersOf(entry: LiveSandbox): Map<string, Watcher> {
  const sandbox = entry.ready()
  const known = WATCHERS.get(sandbox)
  if (known) return known
  const made = new Map<string, Watcher>()
  WATCHERS.set(sandbox, made)
  return made
}

function watcher({ live }: SandboxRequest, message: unknown): readonly [string, Watcher] {
  const { watcherId } = idShape.parse(message, '')
  const found = watchersOf(live).get(watcherId)
  if (!found) throw new ConnectError('not_found', 'there is no such watcher')
  live.touch()
  return [watcherId, found]
}

/** The methods for watches that are polled. */
export const UNARY: Readonly<Record<string, (guest: SandboxRequest, message: unknown) => Promise<unknown>>> =
  {
    async CreateWatcher(guest, message) {
      const all = watchersOf(guest.live)
      if (all.size >= MOST)
        throw new ConnectError('resource_exhausted', `this sandbox already has ${MOST} watchers`)
      const made: Watcher = { events: new EventQueue(), stop: new AbortController() }
      const signal = AbortSignal.any([made.stop.signal, guest.live.abort.signal])
      const take = (event: WatchEvent): void => {
        made.events.add(event)
      }
      const asked = watchShape.parse(message, '')
      const watcherId = randomBytes(12).toString('hex')
      // Counted before it is in place, so that a burst of requests counts too.
      all.set(watcherId, made)
      try {
        const { over } = await watch(guest.sandbox, asked, take, signal)
        over.catch(() => {})
        return { watcherId }
      } catch (error) {
        all.delete(watcherId)
        throw error
      }
    },
    async GetWatcherEvents(guest, message) {
      return { events: watcher(guest, message)[1].events.all() }
    },
    async RemoveWatcher(guest, message) {
      const [id, found] = watcher(guest, message)
      found.stop.abort()
      watchersOf(guest.live).delete(id)
      return {}
    },
  }
