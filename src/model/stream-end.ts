import type { ErrorCode } from './errors.ts'

/**
 * Why the server ends a stream or a socket that is open: the code of the WebSocket's close, the words, what it is as an
 * error, and whether coming back makes sense.
 */
const row = (close: number, says: string, error: ErrorCode, comesBack = false) => ({
  close,
  says,
  error,
  comesBack,
})

/** Every reason with its WebSocket close code, message and error code. */
export const STREAM_ENDS = {
  revoked: row(1008, 'the key was revoked', 'unauthenticated'),
  'signed-out': row(1008, 'signed out elsewhere', 'unauthenticated'),
  expired: row(1008, 'the session has expired', 'unauthenticated'),
  'sandbox-ended': row(1000, 'the sandbox has ended', 'wrong-state'),
  // Of E2B's streams alone: their clients expect to come back after a pause. Ours stay open.
  paused: row(1013, 'the sandbox is paused', 'wrong-state'),
  shutdown: row(1001, 'the server is shutting down', 'draining', true),
  unsure: row(1013, 'the server cannot tell right now whether this may go on', 'unreachable', true),
  behind: row(1013, 'what is to be read fell too far behind', 'unreachable', true),
} as const

/** A reason of the table. */
export type StreamEndReason = keyof typeof STREAM_ENDS
/** All of them. */
export const STREAM_END_REASONS = Object.keys(STREAM_ENDS) as readonly StreamEndReason[]

/** As it goes over the wire: the event `cut`, the field `cut` of an `end`, a socket's close. */
export type StreamEnd = { readonly reason: StreamEndReason; readonly message: string }

/** The reason with its words. */
export const streamEndOf = (reason: StreamEndReason, detail?: string): StreamEnd => ({
  reason,
  message: detail ? `${STREAM_ENDS[reason].says} (${detail})` : STREAM_ENDS[reason].says,
})

/** Of whatever hung on a sandbox that ended. Only the word is told: what was said may be an agent's. */
export const streamEndOfSandbox = (why: string): StreamEnd =>
  why === 'drained' ? streamEndOf('shutdown') : streamEndOf('sandbox-ended', why.split(':')[0])

/** Whoever comes back would not be let in. */
export const isAuthenticationLost = ({ reason }: StreamEnd): boolean =>
  STREAM_ENDS[reason]?.error === 'unauthenticated'
