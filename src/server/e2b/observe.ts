import { SandboxError } from '../../model/errors.ts'
import { fromE2bId } from './ids.ts'
import { aliveOf, type RestCall } from './rest.ts'
import { infoOf } from './views.ts'

/** What a sandbox uses, and what is on record about it. */

const MB = 1024 * 1024
const ROUNDED_MS = 500
const INTERVAL_MS = 5000

/**
 * The samples of a period, by default from the start until now. Empty where the backend cannot measure: no figure is
 * better than a wrong one.
 */
export async function metricsOf(call: RestCall): Promise<Response> {
  const seen = await aliveOf(call)
  if (!seen.live) return Response.json([])
  // Clients round to seconds and samples are seconds apart, so the period is a little wider than it was asked for.
  const from = secondsOf(call.query, 'start', 0) * 1000 - ROUNDED_MS
  const to = secondsOf(call.query, 'end', Number.POSITIVE_INFINITY) * 1000 + INTERVAL_MS
  const { cpuCount, memoryMB, diskSizeMB } = infoOf(seen)
  const samples = await call.surface.e2b.usage.of(seen.live, from, to)
  return Response.json(
    samples.map(({ at, cpus, memoryBytes, diskBytes }) => ({
      timestamp: new Date(at).toISOString(),
      timestampUnix: Math.floor(at / 1000),
      cpuCount,
      cpuUsedPct: Math.round(Math.min(1, cpus / cpuCount) * 10_000) / 100,
      memUsed: memoryBytes,
      memTotal: memoryMB * MB,
      memCache: 0,
      diskUsed: diskBytes,
      diskTotal: diskSizeMB * MB,
    })),
  )
}

function secondsOf(query: URLSearchParams, name: string, otherwise: number): number {
  const text = query.get(name)
  if (text === null) return otherwise
  if (!/^\d{1,12}$/.test(text))
    throw new SandboxError('invalid-input', `${name}: not a time in whole seconds since 1970`)
  return Number(text)
}

const LIMIT = 1000
const LEVELS: Readonly<Record<string, string>> = { SandboxViolation: 'warn' }

/** The trail's records as lines; those of a sandbox that has ended too. */
export async function logsOf({ surface, principal, params, query }: RestCall): Promise<Response> {
  const id = fromE2bId(params.id ?? '')
  if (!id) throw new SandboxError('sandbox-not-found', 'there is no such sandbox')
  const { row } = await surface.parts.supervisor.get(principal, id)
  const asked = Number(query.get('limit') ?? LIMIT)
  if (!Number.isInteger(asked) || asked < 0) throw new SandboxError('invalid-input', 'limit: not a number')
  const limit = Math.min(asked || LIMIT, LIMIT)
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
