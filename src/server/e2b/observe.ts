import { SandboxError } from '../../model/errors.ts'
import { aliveOf, type RestCall } from './control.ts'
import { fromE2bId } from './ids.ts'

/** What a sandbox uses, and what is on record about it. */

/** Empty while nothing was measured: no figure is better than a wrong one. */
export async function metricsOf(call: RestCall): Promise<Response> {
  await aliveOf(call)
  return Response.json([])
}

const LIMIT = 1000
const LEVELS: Readonly<Record<string, string>> = { SandboxViolation: 'warn' }

/** The trail's records as lines; those of a sandbox that has ended too. */
export async function logsOf({ surface, principal, params, query }: RestCall): Promise<Response> {
  const id = fromE2bId(params.id ?? '')
  if (!id) throw new SandboxError('sandbox-not-found', 'there is no such sandbox')
  const { row } = await surface.parts.supervisor.get(principal, id)
  const limit = Math.min(Number(query.get('limit') ?? LIMIT) || LIMIT, LIMIT)
  const records = await surface.parts.trail.query({ sandboxId: row.id, limit })
  const start = Number(query.get('cursor') ?? query.get('start') ?? 0) || 0
  const entries = records
    .filter(({ time }) => Date.parse(time) >= start)
    .map(({ time, event, hash: _hash, prev_hash: _before, ...rest }) => ({
      timestamp: time,
      level: LEVELS[event] ?? 'info',
      message: event,
      fields: Object.fromEntries(Object.entries(rest).map(([name, value]) => [name, wordOf(value)])),
    }))
  const logs = entries.map(({ timestamp, level, message, fields }) => ({
    timestamp,
    line: JSON.stringify({ ...fields, timestamp, level, logger: 'ringfence', message }),
  }))
  return Response.json({ logs, logEntries: entries })
}

const wordOf = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value))
