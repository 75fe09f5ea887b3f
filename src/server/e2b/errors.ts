import { type ErrorCode, SandboxError } from '../../model/errors.ts'
import { isAuthenticationLost, type StreamEnd } from '../../model/stream-end.ts'
import { noRoomHeader } from '../problem.ts'
import { toE2bId } from './ids.ts'

/** How errors look to E2B's clients: numbers on their REST routes, words in their RPC. */

/** The sandbox that a request is for is not there to take it: E2B's clients tell that by the status alone. */
export class NotRunning extends Error {
  readonly id: string
  constructor(id: string) {
    super(`the sandbox ${id} is not running`)
    this.id = id
  }
}

const STATUS = {
  invalid_argument: 400,
  unauthenticated: 401,
  permission_denied: 403,
  not_found: 404,
  already_exists: 409,
  failed_precondition: 412,
  resource_exhausted: 429,
  unimplemented: 501,
  unavailable: 503,
  deadline_exceeded: 504,
  internal: 500,
} as const
/** An error code of the Connect protocol. */
export type ConnectCode = keyof typeof STATUS
/** An error of the Connect protocol. */
export type ConnectProblem = { readonly code: ConnectCode; readonly message: string }

/** An error whose name in the RPC is known where it is thrown. */
export class ConnectError extends Error {
  readonly code: ConnectCode
  constructor(code: ConnectCode, message: string) {
    super(message)
    this.code = code
  }
}

/** E2B's own phrase; programs look for it in the message of a command that lost its sandbox. */
const END_OF_LIFE = 'the sandbox was killed or reached its end of life'

/**
 * The reason why a stream was ended from here. PLATFORM: for `unavailable` E2B's clients raise the error with which they
 * report a sandbox that is gone, and show our words first.
 */
export function streamEndError(end: StreamEnd): ConnectError {
  if (isAuthenticationLost(end)) return new ConnectError('unauthenticated', end.message)
  const message = end.reason === 'sandbox-ended' ? `${end.message}: ${END_OF_LIFE}` : end.message
  return new ConnectError('unavailable', message)
}

const CODES: Partial<Record<ErrorCode, ConnectCode>> = {
  'file-not-found': 'not_found',
  'not-found': 'not_found',
  'sandbox-not-found': 'not_found',
  'file-exists': 'already_exists',
  conflict: 'already_exists',
  'wrong-state': 'failed_precondition',
  unauthenticated: 'unauthenticated',
  'too-many-requests': 'resource_exhausted',
  'too-large': 'resource_exhausted',
  'resource-exhausted': 'resource_exhausted',
  timeout: 'deadline_exceeded',
  draining: 'unavailable',
  'trail-unwritable': 'unavailable',
  'store-unwritable': 'unavailable',
  forbidden: 'permission_denied',
}
const FAMILIES: Readonly<Record<SandboxError['family'], ConnectCode>> = {
  invalid: 'invalid_argument',
  denied: 'permission_denied',
  unsupported: 'unimplemented',
  failed: 'internal',
}

/** One line for people: what is wrong, and what to do about it. */
const lineOf = ({ message, hint }: SandboxError): string =>
  `${message}${hint ? ` (${hint})` : ''}`.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]/g, '\ufffd')

/** Writes a line to the server's log. */
export type Log = (line: string) => void

/** The Connect error for a thrown value. */
export function connectProblem(error: unknown, log: Log): ConnectProblem {
  if (error instanceof ConnectError) return { code: error.code, message: error.message }
  if (error instanceof NotRunning) return { code: 'unavailable', message: error.message }
  if (error instanceof SandboxError)
    return { code: CODES[error.code] ?? FAMILIES[error.family], message: lineOf(error) }
  log(`e2b: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`)
  return { code: 'internal', message: 'internal error' }
}

/** The response for a Connect error. */
export const connectAnswer = (problem: ConnectProblem): Response =>
  Response.json(problem, { status: STATUS[problem.code] })

/** The sandbox is gone or asleep: whatever was asked of it. */
export const notRunning = (id: string): Response =>
  Response.json({ sandboxId: toE2bId(id), message: 'The sandbox was not found', code: 502 }, { status: 502 })

/** INVARIANT: E2B's clients look at the number in the body, not at the status. */
export function restProblem(error: unknown, log: Log): Response {
  if (error instanceof NotRunning) return notRunning(error.id)
  const { code, message } = restError(error, log)
  if (!(error instanceof SandboxError)) return numbered(code, message)
  const retry = error.retryAfterSecs === undefined ? {} : { 'retry-after': String(error.retryAfterSecs) }
  return numbered(code, message, { ...retry, ...noRoomHeader(error) })
}

/** The number and the text of an error. SECURITY: an unexpected error goes to the log, not to the caller. */
export function restError(error: unknown, log: Log): { readonly code: number; readonly message: string } {
  if (error instanceof ConnectError) return { code: STATUS[error.code], message: error.message }
  if (!(error instanceof SandboxError)) {
    log(`e2b: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`)
    return { code: 500, message: 'internal error' }
  }
  // E2B's clients take 507 for a disk that has no space left.
  return { code: error.code === 'resource-exhausted' ? 507 : error.httpStatus, message: lineOf(error) }
}

const numbered = (code: number, message: string, headers: Record<string, string> = {}): Response =>
  Response.json({ code, message }, { status: code, headers })
