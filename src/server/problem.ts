import { SandboxError } from '../model/errors.ts'

/** The one place where errors become answers. What we do not know leaks nothing but an id to look for in the log. */
export function problem(error: unknown, requestId: string, log: (line: string) => void = () => {}): Response {
  if (!(error instanceof SandboxError)) {
    log(`request ${requestId}: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`)
    return answer({ code: 'internal', message: 'internal error', request_id: requestId }, 500, requestId)
  }
  const { code, message, hint, reasons, httpStatus, retryAfterSecs } = error
  if (httpStatus >= 500 && error.cause !== undefined)
    log(`request ${requestId}: ${code}: ${(error.cause as Error)?.message ?? error.cause}`)
  const body = {
    code,
    message: message.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]/g, '\ufffd'),
    ...(hint === undefined ? {} : { hint }),
    ...(reasons.length === 0 ? {} : { reasons }),
    request_id: requestId,
  }
  return answer(body, httpStatus, requestId, retryAfterSecs)
}

function answer(body: unknown, status: number, requestId: string, retryAfterSecs?: number): Response {
  return Response.json(body, {
    status,
    headers: {
      'x-request-id': requestId,
      ...(retryAfterSecs === undefined ? {} : { 'retry-after': String(retryAfterSecs) }),
      ...(status === 401 ? { 'www-authenticate': 'Bearer' } : {}),
    },
  })
}
