import type { ErrorCode } from './errors.ts'

/**
 * Why the server ends an open stream or socket: the WebSocket close code, the message, the error code, and whether the
 * client should reconnect.
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
  // Only for E2B's streams, whose clients reconnect after a pause. Ours stay open.
  paused: row(1013, 'the sandbox is paused', 'wrong-state'),
  shutdown: row(1001, 'the server is shutting down', 'draining', true),
  unsure: row(1013, 'the server cannot tell right now whether this may go on', 'unreachable', true),
  behind: row(1013, 'what is to be read fell too far behind', 'unreachable', true),
} as const

/** A reason of the table. */
export type StreamEndReason = keyof typeof STREAM_ENDS
/** All of them. */
export const STREAM_END_REASONS = Object.keys(STREAM_ENDS) as readonly StreamEndReason[]

/** Wire format: the event `cut`, the field `cut` of an `end`, a socket's close. */
export type StreamEnd = { readonly reason: StreamEndReason; readonly message: string }

/** A reason with its message. */
export const streamEndOf = (reason: StreamEndReason, detail?: string): StreamEnd => ({
  reason,
  message: detail ? `${STREAM_ENDS[reason].says} (${detail})` : STREAM_ENDS[reason].says,
})

/** The end of streams of an ended sandbox. Sends only the reason code, because the text may come from an agent. */
export const streamEndOfSandbox = (why: string): StreamEnd =>
  why === 'drained' ? streamEndOf('shutdown') : streamEndOf('sandbox-ended', why.split(':')[0])

/** Whether the stream ended because its credentials are no longer valid. */
export const isAuthenticationLost = ({ reason }: StreamEnd): boolean =>
  STREAM_ENDS[reason]?.error === 'unauthenticated'
