import { RingfenceClient } from '../client/client.ts'
import { environment } from '../compose/compose.ts'
import { SandboxError } from '../model/errors.ts'
import { visible, visibleJson } from '../model/visible.ts'
import { out } from './terminal/output.ts'

/** A client for the server at `RINGFENCE_URL`; undefined if it is not set. */
export function namedServer(): RingfenceClient | undefined {
  const { RINGFENCE_URL, RINGFENCE_API_KEY } = environment()
  if (!RINGFENCE_URL) return undefined
  if (!RINGFENCE_API_KEY)
    throw new SandboxError('unauthenticated', 'RINGFENCE_API_KEY is not set', {
      hint: 'create a key on the server with `ringfence key create`',
    })
  return new RingfenceClient({ url: RINGFENCE_URL, apiKey: RINGFENCE_API_KEY })
}

/** A client for the server at `RINGFENCE_URL`, or at the default address of `serve`. */
export function server(): RingfenceClient {
  const { RINGFENCE_API_KEY } = environment()
  const named = namedServer()
  if (named) return named
  if (!RINGFENCE_API_KEY)
    throw new SandboxError('unauthenticated', 'RINGFENCE_API_KEY is not set', {
      hint: 'create a key with `ringfence key create`; set RINGFENCE_URL if the server is not on 127.0.0.1:4200',
    })
  return new RingfenceClient({ url: 'http://127.0.0.1:4200', apiKey: RINGFENCE_API_KEY })
}

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
