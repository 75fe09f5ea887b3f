import { describe, expect, test } from 'vitest'
import { ERRORS, type ErrorCode, type ErrorFamily, SandboxError } from './errors.ts'

type Line = readonly [code: ErrorCode, family: ErrorFamily, status: number, exit: number]

/** The documented exit codes and HTTP statuses, written down a second time on purpose. */
const TABLE: readonly Line[] = [
  ['invalid-input', 'invalid', 400, 2],
  ['invalid-config', 'invalid', 400, 2],
  ['path-not-absolute', 'invalid', 400, 2],
  ['no-command', 'invalid', 400, 2],
  ['already-wrapped', 'invalid', 409, 2],
  ['sandbox-not-found', 'invalid', 404, 2],
  ['skill-not-found', 'invalid', 404, 2],
  ['file-not-found', 'invalid', 404, 2],
  ['file-exists', 'invalid', 409, 2],
  ['wrong-state', 'invalid', 409, 2],
  ['unauthenticated', 'invalid', 401, 2],
  ['forbidden', 'invalid', 403, 2],
  ['not-found', 'invalid', 404, 2],
  ['method-not-allowed', 'invalid', 405, 2],
  ['conflict', 'invalid', 409, 2],
  ['too-large', 'invalid', 413, 2],
  ['wrong-host', 'invalid', 421, 2],
  ['headers-too-large', 'invalid', 431, 2],
  ['too-many-requests', 'invalid', 429, 2],
  ['forbidden-host-path', 'denied', 422, 126],
  ['path-traversal', 'denied', 422, 126],
  ['resource-limit-exceeded', 'denied', 422, 126],
  ['invalid-network-mode', 'denied', 422, 126],
  ['forbidden-command', 'denied', 422, 126],
  ['interactive-disabled', 'denied', 422, 126],
  ['ssrf-blocked', 'denied', 422, 126],
  ['capability-denied', 'denied', 422, 126],
  ['approval-required', 'denied', 422, 126],
  ['skill-changed', 'denied', 422, 126],
  ['skill-not-inspected', 'denied', 422, 126],
  ['skill-untrusted', 'denied', 422, 126],
  ['missing-guarantee', 'unsupported', 501, 125],
  ['backend-unavailable', 'unsupported', 501, 125],
  ['unsupported', 'unsupported', 501, 125],
  ['resource-exhausted', 'failed', 500, 125],
  ['timeout', 'failed', 504, 125],
  ['fetch-failed', 'failed', 502, 125],
  ['launch-failed', 'failed', 500, 125],
  ['trail-unwritable', 'failed', 503, 125],
  ['store-unwritable', 'failed', 503, 125],
  ['draining', 'failed', 503, 125],
  ['unreachable', 'failed', 502, 125],
  ['internal', 'failed', 500, 125],
]

/** The error codes that are part of the public contract. */
const PROMISED =
  `path-not-absolute forbidden-host-path path-traversal resource-limit-exceeded invalid-network-mode
  forbidden-command interactive-disabled no-command resource-exhausted timeout ssrf-blocked capability-denied
  missing-guarantee backend-unavailable approval-required already-wrapped sandbox-not-found wrong-state`
    .trim()
    .split(/\s+/)

const EXIT_OF: Readonly<Record<ErrorFamily, number>> = {
  invalid: 2,
  denied: 126,
  unsupported: 125,
  failed: 125,
}
const STATUS_OF: Readonly<Record<ErrorFamily, (status: number) => boolean>> = {
  invalid: (status) => [400, 401, 403, 404, 405, 409, 413, 421, 429, 431].includes(status),
  denied: (status) => status === 422,
  unsupported: (status) => status === 501,
  failed: (status) => status >= 500 && status !== 501,
}

describe('the table of codes', () => {
  test('has exactly the rows that are written here', () => {
    expect(Object.keys(ERRORS).sort()).toEqual(TABLE.map(([code]) => code).sort())
  })

  test.each(TABLE)('%s is %s, status %i, exit %i', (code, family, status, exit) => {
    const error = new SandboxError(code, 'a message')
    expect([error.family, error.httpStatus, error.exitCode]).toEqual([family, status, exit])
    expect(error.exitCode).toBe(EXIT_OF[error.family])
    expect(STATUS_OF[error.family](error.httpStatus)).toBe(true)
  })

  test('has the names of the public contract, in kebab case', () => {
    for (const name of PROMISED) expect(Object.keys(ERRORS)).toContain(name)
    for (const code of Object.keys(ERRORS)) expect(code).toMatch(/^[a-z]+(-[a-z]+)*$/)
  })

  test('no exit code collides with those of limits or decisions', () => {
    for (const [, , , exit] of TABLE) expect([0, 1, 3, 4, 124]).not.toContain(exit)
  })
})

describe('an error', () => {
  test('has the given fields', () => {
    const cause = new Error('below')
    const error = new SandboxError('internal', 'text', { hint: 'do this', cause, reasons: ['a', 'b'] })
    expect(error).toBeInstanceOf(Error)
    expect(error).toMatchObject({
      name: 'SandboxError',
      code: 'internal',
      message: 'text',
      hint: 'do this',
      cause,
    })
    expect(error.reasons).toEqual(['a', 'b'])
  })

  test('has no default cause, hint or reasons', () => {
    const error = new SandboxError('internal', 'text')
    expect('cause' in error).toBe(false)
    expect([error.hint, error.reasons]).toEqual([undefined, []])
  })
})
