import { NoRoom } from '../cluster/reservations.ts'
import type { Problem } from '../model/api/problem.ts'
import { SandboxError } from '../model/errors.ts'

/** The answer to a request that was refused or failed. */
export function problem(error: unknown, requestId: string, log: (line: string) => void = () => {}): Response {
  const known = error instanceof SandboxError ? error : undefined
  const status = known?.httpStatus ?? 500
  return Response.json(problemOf(error, requestId, log), {
    status,
    headers: {
      'x-request-id': requestId,
      ...(known?.retryAfterSecs === undefined ? {} : { 'retry-after': String(known.retryAfterSecs) }),
      ...noRoomHeader(error),
      ...(status === 401 ? { 'www-authenticate': 'Bearer' } : {}),
    },
  })
}

/** Says between nodes that one has no room, and of what; another one may have. */
export const NO_ROOM = 'ringfence-no-room'

/** The header of an answer that another node may answer better. */
export const noRoomHeader = (error: unknown): Readonly<Record<string, string>> =>
  error instanceof NoRoom ? { [NO_ROOM]: error.refusal } : {}

/** The only code that turns errors into JSON. SECURITY: an unexpected error reveals nothing but the id of its line in the log. */
export function problemOf(
  error: unknown,
  requestId: string,
  log: (line: string) => void = () => {},
): Problem {
  if (!(error instanceof SandboxError)) {
    log(`request ${requestId}: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`)
    return { code: 'internal', message: 'internal error', request_id: requestId }
  }
  const { code, message, hint, reasons, httpStatus } = error
  if (httpStatus >= 500 && error.cause !== undefined)
    log(`request ${requestId}: ${code}: ${(error.cause as Error)?.message ?? error.cause}`)
  return {
    code,
    message: message.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]/g, '\ufffd'),
    ...(hint === undefined ? {} : { hint }),
    ...(reasons.length === 0 ? {} : { reasons }),
    request_id: requestId,
  }
}
