import { SandboxError } from '../model/errors.ts'
import { hashSecret } from '../supervisor/keys.ts'
import { secretIn } from './auth.ts'
import { cookieIn } from './console-auth.ts'

/** For what happens without our knowledge: another process revokes a key, a session grows too old. */
const LOOK_MS = 2000
/** The answer that tells somebody that they are out is let through. */
const LEAVE_MS = 100
/** So long a store may be silent about somebody before that counts as a no. */
const SILENCE_MS = 30_000

const NO: readonly string[] = ['unauthenticated', 'forbidden']

/** An answer or a socket that is open. */
export type Open = {
  readonly destroyed: boolean
  once(event: 'close', listener: () => void): unknown
  destroy(): unknown
}

type Guest = { readonly ask: () => Promise<unknown>; readonly open: Set<Open>; answeredAt: number }

/** What somebody came in with; the secret itself is not kept as a name. */
const nameOf = (headers: Headers, sandboxId: string | undefined): string =>
  `${hashSecret(cookieIn(headers) ?? '')} ${hashSecret(secretIn(headers) ?? '')} ${sandboxId ?? ''}`

/**
 * Who is in: every open answer and socket beside what let it in. SECURITY: a stream may outlive the key that opened it by
 * hours; whoever would not be let in any more is shown out, from all of them.
 */
export class Presence {
  readonly #guests = new Map<string, Guest>()
  #timer: NodeJS.Timeout | undefined
  #looking: Promise<void> | undefined
  #again = false

  /** Somebody was let in. `ask` does it again: it throws when they would not be now. */
  enter(
    headers: Headers,
    sandboxId: string | undefined,
    ask: () => Promise<unknown>,
    open: Open | undefined,
  ): void {
    if (!open || open.destroyed) return
    const name = nameOf(headers, sandboxId)
    const guest = this.#guests.get(name) ?? { ask, open: new Set<Open>(), answeredAt: Date.now() }
    this.#guests.set(name, guest)
    guest.open.add(open)
    open.once('close', () => {
      guest.open.delete(open)
      if (guest.open.size === 0 && this.#guests.get(name) === guest) this.#guests.delete(name)
    })
    this.#timer ??= setInterval(() => void this.look(), LOOK_MS).unref()
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
      for (const guest of [...this.#guests.values()]) if (!(await isWelcome(guest))) showOut(guest)
    }
    if (this.#guests.size > 0) return
    clearInterval(this.#timer)
    this.#timer = undefined
  }

  close(): void {
    clearInterval(this.#timer)
  }
}

async function isWelcome(guest: Guest): Promise<boolean> {
  try {
    await guest.ask()
    guest.answeredAt = Date.now()
    return true
  } catch (error) {
    // Whatever else goes wrong says nothing about them.
    if (error instanceof SandboxError && NO.includes(error.code)) return false
    return Date.now() - guest.answeredAt < SILENCE_MS
  }
}

function showOut({ open }: Guest): void {
  const leaving = [...open]
  setTimeout(() => {
    for (const one of leaving) one.destroy()
  }, LEAVE_MS)
}
