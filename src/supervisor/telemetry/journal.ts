import type { StoreTrail } from '../../audit/store-trail.ts'

/** One answered request. */
type RequestEntry = {
  readonly request_id: string
  readonly method: string
  /** The pattern of the route, never the path itself: paths can contain tokens and names of files. */
  readonly route: string | null
  readonly status: number
  /** Until the answer began. */
  readonly duration_ms: number
  readonly tenant: string | null
  readonly key_id: string | null
}

/** The log of a server for programs: one JSON line for each request, record of the audit log and message. */
export type Journal = {
  readonly message: (text: string) => void
  readonly request: (entry: RequestEntry) => void
  /** Writes a line for each record of the audit log, once it is stored. */
  readonly follow: (trail: Pick<StoreTrail, 'onCommitted'>) => void
}

/** SECURITY: fields whose values are ours. Commands, reasons, hosts and names of agents stay in the audit log. */
const FIELDS = ['tenant', 'sandbox_id', 'exec_id', 'action', 'state', 'verdict', 'guarantee', 'duration_ms']

/** Writes the lines with `write`, which gets each with its newline. */
export function jsonJournal(write: (line: string) => void): Journal {
  const put = (entry: Readonly<Record<string, unknown>>): void =>
    write(`${JSON.stringify({ time: new Date().toISOString(), ...entry })}\n`)
  return {
    message: (text) => put({ type: 'message', message: text }),
    request: (entry) => put({ type: 'request', ...entry }),
    follow: (trail) =>
      void trail.onCommitted((rows) => {
        for (const { seq, time, event, line } of rows)
          put({ time, type: 'event', event, seq, ...shownOf(line) })
      }),
  }
}

function shownOf(line: string): Record<string, unknown> {
  const record = JSON.parse(line) as Record<string, unknown>
  return Object.fromEntries(FIELDS.flatMap((name) => (name in record ? [[name, record[name]]] : [])))
}
