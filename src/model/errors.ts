/**
 * The one error class and its closed table of codes. A command's non-zero exit, a signal or a limit
 * reached are outcomes, not errors; an error means that a request was rejected or failed.
 */

/** Callers react differently to each: fix the request, ask the operator, choose another host, retry or report. */
export type ErrorFamily = 'invalid' | 'denied' | 'unsupported' | 'failed'

type Row = { readonly family: ErrorFamily; readonly status: number }

const row = (family: ErrorFamily, status: number): Row => ({ family, status })

/** Every error code with its family, HTTP status and exit code. */
export const ERRORS = {
  'invalid-input': row('invalid', 400),
  'invalid-config': row('invalid', 400),
  'path-not-absolute': row('invalid', 400),
  'no-command': row('invalid', 400),
  'already-wrapped': row('invalid', 409),
  'sandbox-not-found': row('invalid', 404),
  'file-not-found': row('invalid', 404),
  'file-exists': row('invalid', 409),
  'wrong-state': row('invalid', 409),
  unauthenticated: row('invalid', 401),
  forbidden: row('invalid', 403),
  'not-found': row('invalid', 404),
  'method-not-allowed': row('invalid', 405),
  conflict: row('invalid', 409),
  'too-large': row('invalid', 413),
  'wrong-host': row('invalid', 421),
  'headers-too-large': row('invalid', 431),
  'too-many-requests': row('invalid', 429),
  'forbidden-host-path': row('denied', 422),
  'path-traversal': row('denied', 422),
  'resource-limit-exceeded': row('denied', 422),
  'invalid-network-mode': row('denied', 422),
  'forbidden-command': row('denied', 422),
  'interactive-disabled': row('denied', 422),
  'ssrf-blocked': row('denied', 422),
  'capability-denied': row('denied', 422),
  'approval-required': row('denied', 422),
  'skill-changed': row('denied', 422),
  'skill-not-inspected': row('denied', 422),
  'skill-untrusted': row('denied', 422),
  'skill-not-found': row('invalid', 404),
  'missing-guarantee': row('unsupported', 501),
  'backend-unavailable': row('unsupported', 501),
  unsupported: row('unsupported', 501),
  'resource-exhausted': row('failed', 500),
  timeout: row('failed', 504),
  'fetch-failed': row('failed', 502),
  'launch-failed': row('failed', 500),
  'trail-unwritable': row('failed', 503),
  'store-unwritable': row('failed', 503),
  draining: row('failed', 503),
  unreachable: row('failed', 502),
  internal: row('failed', 500),
} as const satisfies Record<string, Row>

/** A code of the table. */
export type ErrorCode = keyof typeof ERRORS

const EXIT: Record<ErrorFamily, number> = { invalid: 2, denied: 126, unsupported: 125, failed: 125 }

/** What an error carries besides its code and message. */
export type ErrorDetail = {
  readonly hint?: string
  readonly cause?: unknown
  readonly reasons?: readonly string[]
  /** When trying again may help. */
  readonly retryAfterSecs?: number
}

/** Every error for callers: one line, lower case, no final period, user input in backticks, never a secret. */
export class SandboxError extends Error {
  readonly code: ErrorCode
  readonly hint: string | undefined
  readonly reasons: readonly string[]
  readonly retryAfterSecs: number | undefined

  constructor(code: ErrorCode, message: string, detail: ErrorDetail = {}) {
    super(message, detail.cause === undefined ? undefined : { cause: detail.cause })
    this.name = 'SandboxError'
    this.code = code
    this.hint = detail.hint
    this.reasons = detail.reasons ?? []
    this.retryAfterSecs = detail.retryAfterSecs
  }

  get family(): ErrorFamily {
    return ERRORS[this.code].family
  }

  get httpStatus(): number {
    return ERRORS[this.code].status
  }

  get exitCode(): number {
    return EXIT[this.family]
  }
}
