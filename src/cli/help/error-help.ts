import { errorReference } from '../../model/reference/errors.ts'
import { visibleJson } from '../../model/text/visible.ts'
import { out } from '../terminal/output.ts'

/** `ringfence help errors`: every error code, its exit code and what to do about it. */
export function errorHelp(json: boolean): number {
  const entries = errorReference()
  const wide = Math.max(...entries.map(({ code }) => code.length))
  const lines = entries.map(
    ({ code, exit_code, http_status, meaning, remedy }) =>
      `${code.padEnd(wide)}  exit ${String(exit_code).padEnd(3)}  HTTP ${http_status}\n  ${meaning} ${remedy}\n`,
  )
  out(json ? `${visibleJson({ errors: entries })}\n` : lines.join(''))
  return 0
}
