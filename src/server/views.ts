import type { Spec } from '../model/spec.ts'
import { isEnded } from '../supervisor/lifecycle.ts'
import type { SandboxView } from '../supervisor/provisioner.ts'
import type { Template } from '../supervisor/snapshots/templates.ts'

/** What callers get to see. */

const timeOf = (ms: number | null): string | null => (ms === null ? null : new Date(ms).toISOString())

/** What the caller said about it; names of ours stay out. */
export const callerMetadata = ({ metadata = {} }: Spec): Record<string, string> =>
  Object.fromEntries(Object.entries(metadata).filter(([name]) => !name.startsWith('ringfence.')))

export function sandboxJson({ row, live }: SandboxView) {
  const spec = JSON.parse(row.spec) as Spec
  const plan = live?.sandbox?.plan
  return {
    id: row.id,
    state: live?.shown ?? row.state,
    reason: row.reason,
    backend: row.backend,
    level: row.level,
    layers: row.layers === null ? [] : (JSON.parse(row.layers) as string[]),
    created_at: timeOf(row.createdAt),
    expires_at: isEnded(row.state) ? null : timeOf(row.expiresAt),
    ended_at: timeOf(row.endedAt),
    limits: plan?.limits ?? spec.limits ?? {},
    network: {
      mode: plan?.network.mode ?? spec.network?.mode ?? 'offline',
      allow_hosts: spec.network?.allowHosts ?? plan?.network.allowHosts ?? [],
    },
    metadata: callerMetadata(spec),
    public_ports: spec.publicPorts ?? false,
    review: spec.review ?? false,
    agent_id: row.agentId,
    tenant: row.tenant,
  }
}

export const snapshotJson = ({ id, name, sandboxId, backend, createdAt }: Template) => ({
  id,
  name,
  sandbox_id: sandboxId,
  backend,
  created_at: timeOf(createdAt),
})

const nullable = (type: string) => ({ type: [type, 'null'] })

export const sandboxSchema = {
  type: 'object',
  required: ['id', 'state', 'backend', 'level', 'created_at', 'expires_at', 'limits', 'network', 'metadata'],
  properties: {
    id: { type: 'string' },
    state: { type: 'string' },
    reason: nullable('string'),
    backend: nullable('string'),
    level: nullable('string'),
    layers: { type: 'array', items: { type: 'string' } },
    created_at: { type: 'string', format: 'date-time' },
    expires_at: nullable('string'),
    ended_at: nullable('string'),
    limits: { type: 'object' },
    network: { type: 'object' },
    metadata: { type: 'object' },
    public_ports: { type: 'boolean', description: 'ports can be reached without a key' },
    review: { type: 'boolean', description: 'what it writes waits for a person' },
    agent_id: nullable('string'),
    tenant: { type: 'string' },
    token: { type: 'string', description: 'opens this sandbox alone; shown once' },
  },
}

export const snapshotSchema = {
  type: 'object',
  required: ['id', 'name', 'sandbox_id', 'backend', 'created_at'],
  properties: {
    id: { type: 'string', description: 'what `template` takes when a sandbox is created' },
    name: nullable('string'),
    sandbox_id: nullable('string'),
    backend: { type: 'string' },
    created_at: { type: 'string', format: 'date-time' },
  },
}

export const execSchema = {
  type: 'object',
  required: ['sandbox_id', 'exec_id', 'outcome', 'stdout', 'stderr', 'truncated'],
  properties: {
    sandbox_id: { type: 'string' },
    exec_id: { type: 'string' },
    state: { enum: ['running', 'ended', 'failed'] },
    backend: { type: 'string' },
    level: { type: 'string' },
    layers: { type: 'array', items: { type: 'string' } },
    outcome: { type: ['object', 'null'] },
    stdout: { type: 'string' },
    stderr: { type: 'string' },
    truncated: { type: 'boolean' },
    duration_ms: { type: 'number' },
    violations: { type: 'array' },
    decision: { type: ['object', 'null'] },
    cut: { $ref: '#/components/schemas/Cut' },
  },
}

export const pageOf = (item: object) => ({
  type: 'object',
  required: ['items', 'next'],
  properties: { items: { type: 'array', items: item }, next: nullable('string') },
})

export const cursorOf = (row: { readonly createdAt: number; readonly id: string }): string =>
  Buffer.from(`${row.createdAt} ${row.id}`).toString('base64url')

export function cursorFrom(text: string): { readonly createdAt: number; readonly id: string } | undefined {
  const [, at, id] = /^(\d{1,15}) (\w{1,64})$/.exec(Buffer.from(text, 'base64url').toString()) ?? []
  return at && id ? { createdAt: Number(at), id } : undefined
}
