import { RingfenceClient } from '../../client/client.ts'
import { environment } from '../../compose/compose.ts'
import { SandboxError } from '../../model/errors.ts'
import { visible, visibleJson } from '../../model/text/visible.ts'
import { out } from '../terminal/output.ts'
import { type Context, currentContext } from './contexts.ts'

/** The server at `RINGFENCE_URL`; undefined if it is not set. */
export function namedServer(): RingfenceClient | undefined {
  const named = namedAddress()
  return named && new RingfenceClient(named)
}

function namedAddress(): Context | undefined {
  const { RINGFENCE_URL, RINGFENCE_API_KEY } = environment()
  if (!RINGFENCE_URL) return undefined
  if (!RINGFENCE_API_KEY)
    throw new SandboxError('unauthenticated', 'RINGFENCE_API_KEY is not set', {
      hint: 'create a key on the server with `ringfence key create`',
    })
  return { url: RINGFENCE_URL.replace(/\/+$/, ''), apiKey: RINGFENCE_API_KEY }
}

/** The server to use: `RINGFENCE_URL`, the one of `ringfence login`, or the default address of `serve`. */
export function address(): Context {
  const named = namedAddress()
  if (named) return named
  const { RINGFENCE_API_KEY } = environment()
  const stored = RINGFENCE_API_KEY ? undefined : currentContext()
  if (stored) return stored
  if (!RINGFENCE_API_KEY)
    throw new SandboxError('unauthenticated', 'no server is chosen and RINGFENCE_API_KEY is not set', {
      hint: 'store a server with `ringfence login`, or create a key with `ringfence key create` and set RINGFENCE_API_KEY',
    })
  return { url: 'http://127.0.0.1:4200', apiKey: RINGFENCE_API_KEY }
}

/** A client for the server to use. */
export const server = (): RingfenceClient => new RingfenceClient(address())

/** Prints data as JSON, or as text for people. */
export function print(json: boolean | undefined, value: unknown, text: () => string): void {
  out(json ? `${visibleJson(value)}\n` : text())
}

/** Formats rows as aligned columns. */
export function table(rows: readonly (readonly string[])[]): string {
  const widths = (rows[0] ?? []).map((_, at) => Math.max(...rows.map((row) => visible(row[at] ?? '').length)))
  return rows
    .map(
      (row) =>
        `${row
          .map((cell, at) => visible(cell).padEnd(widths[at] ?? 0))
          .join('  ')
          .trimEnd()}\n`,
    )
    .join('')
}
