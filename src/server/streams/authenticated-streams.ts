import { randomUUID } from 'node:crypto'
import { SandboxError } from '../../model/errors.ts'
import { type StreamEnd, type StreamEndReason, streamEndOf } from '../../model/stream-end.ts'
import { hashSecret } from '../../supervisor/access/keys.ts'
import { secretIn } from '../auth.ts'
import { cookieIn } from '../console/auth.ts'

/** For what happens without our knowledge: another process revokes a key, a session grows too old. */
const LOOK_MS = 2000
/** The answer that tells somebody that they are out is let through. */
const LEAVE_MS = 100
/** So long a server that goes waits at most for its last words to be read; they mostly are at once. */
const GOODBYE_MS = 1000
/** So long a store may be silent about somebody before that counts as a no. */
const SILENCE_MS = 30_000

const NO: readonly string[] = ['unauthenticated', 'forbidden']

/** An answer or a socket that is open. */
export type Open = {
  readonly destroyed: boolean
  once(event: 'close', listener: () => void): unknown
  destroy(): unknown
}

type OpenConnection = {
  readonly ask: () => Promise<unknown>
  readonly why: () => Promise<StreamEndReason>
  readonly open: Set<Open>
  answeredAt: number
}

/** What let somebody in: a session of the console, a key or a sandbox's token, the traffic token of a sandbox. */
export type Credential = 'session' | 'secret' | 'traffic'

/**
 * What somebody came in with; the secret itself is not kept as a name. SECURITY: headers may hold more than the credential that
 * counted; without its kind a stream would be asked for by another credential that was sent along, and outlive its own.
 */
function nameOf(by: Credential, headers: Headers, sandboxId: string | undefined): string {
  const [cookie, secret] = [cookieIn(headers), secretIn(headers)]
  // SECURITY: what has no name is never the same as something else without one. A traffic token is named by its sandbox.
  const isNamed =
    cookie !== undefined || secret !== undefined || (by === 'traffic' && sandboxId !== undefined)
  const unique = isNamed ? '' : randomUUID()
  return `${by} ${hashSecret(cookie ?? '')} ${hashSecret(secret ?? '')} ${sandboxId ?? ''} ${unique}`
}

/**
 * Who is in: every open answer and socket beside what let it in. SECURITY: a stream may outlive the key that opened it by
 * hours; connections whose credentials are no longer valid are closed, on all streams.
 */
export class AuthenticatedStreams {
  readonly #guests = new Map<string, OpenConnection>()
  readonly #partings = new WeakMap<Open, (cut: StreamEnd) => void>()
  readonly #why: (headers: Headers) => Promise<StreamEndReason>
  #timer: NodeJS.Timeout | undefined
  #looking: Promise<void> | undefined
  #again = false

  /** `why` tells why the credentials in these headers are no longer valid. */
  constructor(why: (headers: Headers) => Promise<StreamEndReason>) {
    this.#why = why
  }

  /** Somebody was let in. `ask` does it again: it throws when they would not be now. */
  enter(
    by: Credential,
    headers: Headers,
    sandboxId: string | undefined,
    ask: () => Promise<unknown>,
    open: Open | undefined,
  ): void {
    if (!open || open.destroyed) return
    const name = nameOf(by, headers, sandboxId)
    const why = (): Promise<StreamEndReason> => this.#why(headers)
    const guest = this.#guests.get(name) ?? { ask, why, open: new Set<Open>(), answeredAt: Date.now() }
    this.#guests.set(name, guest)
    guest.open.add(open)
    open.once('close', () => {
      guest.open.delete(open)
      if (guest.open.size === 0 && this.#guests.get(name) === guest) this.#guests.delete(name)
    })
    this.#timer ??= setInterval(() => void this.look(), LOOK_MS).unref()
  }

  /** Says the reason before it is closed; what has no way to say one is just closed. */
  onEnd(open: Open | undefined, say: (cut: StreamEnd) => void): void {
    if (open) this.#partings.set(open, say)
  }

  /** Tells everybody that the server goes, and waits a moment for the words to be on their way. */
  async leave(): Promise<void> {
    clearInterval(this.#timer)
    const open = [...this.#guests.values()].flatMap((guest) => [...guest.open])
    const told = open.filter((one) => this.#tell(one, streamEndOf('shutdown')))
    const closed = told.map((one) => new Promise<void>((resolve) => one.once('close', resolve)))
    const late = new Promise<void>((resolve) => setTimeout(resolve, GOODBYE_MS).unref())
    if (told.length > 0) await Promise.race([Promise.all(closed), late])
  }

  #tell(open: Open, cut: StreamEnd): boolean {
    const say = this.#partings.get(open)
    if (!say || open.destroyed) return false
    this.#partings.delete(open)
    say(cut)
    return true
  }

  /** Asks for everybody who is in whether they still may. Whatever changes while it asks is asked for again. */
  look(): Promise<void> {
    this.#again = true
    this.#looking ??= this.#lookAll().finally(() => {
      this.#looking = undefined
    })
    return this.#looking
  }

  async #lookAll(): Promise<void> {
    while (this.#again) {
      this.#again = false
      for (const guest of [...this.#guests.values()]) await this.#lookAt(guest)
    }
    if (this.#guests.size > 0) return
    clearInterval(this.#timer)
    this.#timer = undefined
  }

  async #lookAt(guest: OpenConnection): Promise<void> {
    const reason = await whyOut(guest)
    if (reason === undefined) return
    const leaving = [...guest.open]
    for (const one of leaving) this.#tell(one, streamEndOf(reason))
    setTimeout(() => {
      for (const one of leaving) one.destroy()
    }, LEAVE_MS)
  }

  close(): void {
    clearInterval(this.#timer)
  }
}

/** Undefined while the credentials are valid. */
async function whyOut(guest: OpenConnection): Promise<StreamEndReason | undefined> {
  try {
    await guest.ask()
    guest.answeredAt = Date.now()
    return undefined
  } catch (error) {
    // SECURITY: that it is not known why is no reason to let them stay.
    if (error instanceof SandboxError && NO.includes(error.code))
      return guest.why().catch(() => 'revoked' as const)
    // Whatever else goes wrong says nothing about them.
    return Date.now() - guest.answeredAt < SILENCE_MS ? undefined : 'unsure'
  }
}
