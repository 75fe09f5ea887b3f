import { SandboxError } from '../../model/errors.ts'
import type { LiveSandbox } from '../../supervisor/live-sandbox.ts'
import { fromE2bId } from './ids.ts'
import { aliveOf, type RestCall } from './rest.ts'
import { infoOf } from './views.ts'

/** What a sandbox uses, and what is on record about it. */

type Sample = { readonly at: number; readonly cpuMs: number }
const LAST = new WeakMap<LiveSandbox, Sample>()
const MB = 1024 * 1024

/**
 * One figure: now. The processor's share counts from the last time that somebody asked. Empty where nothing can be
 * measured: no figure is better than a wrong one.
 */
export async function metricsOf(call: RestCall): Promise<Response> {
  const seen = await aliveOf(call)
  const entry = seen.live
  const usage = entry?.sandbox?.usage()
  if (!entry || !usage) return Response.json([])
  const at = Date.now()
  const before = LAST.get(entry) ?? { at: seen.row.createdAt, cpuMs: 0 }
  LAST.set(entry, { at, cpuMs: usage.cpuMs })
  const { cpuCount, memoryMB, diskSizeMB } = infoOf(seen)
  const share = (usage.cpuMs - before.cpuMs) / (Math.max(1, at - before.at) * cpuCount)
  return Response.json([
    {
      timestamp: new Date(at).toISOString(),
      timestampUnix: Math.floor(at / 1000),
      cpuCount,
      cpuUsedPct: Math.round(Math.min(1, Math.max(0, share)) * 10_000) / 100,
      memUsed: usage.memoryBytes,
      memTotal: memoryMB * MB,
      memCache: 0,
      diskUsed: 0,
      diskTotal: diskSizeMB * MB,
    },
  ])
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
