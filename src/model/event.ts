/** The content of an audit record, before it is added to the hash chain. */
export const EVENT_NAMES = [
  'PolicyDecision',
  'SandboxState',
  'Exec',
  'SandboxViolation',
  'Connection',
  'Approval',
  'Review',
  'SkillRun',
  'McpCall',
  'Secret',
  'Volume',
  'Node',
  'Pruning',
  'Checkpoint',
] as const
/** The kind of an audit record. */
export type EventName = (typeof EVENT_NAMES)[number]

/** A JSON value. */
export type Json = string | number | boolean | null | readonly Json[] | { readonly [key: string]: Json }

/** Additional fields are allowed; the audit log rejects the names that it sets itself (`seq`, `time`, `prev_hash`, `hash`). */
export type Event = {
  readonly event: EventName
  readonly agent_id?: string
  readonly sandbox_id?: string
  readonly exec_id?: string
  readonly [field: string]: Json | undefined
}

/** Violation types, as older programs expect them. */
export const VIOLATION_TYPE: Readonly<Record<string, string>> = {
  'fs.read': 'PathTraversal',
  'fs.write': 'PathTraversal',
  'fs.protect': 'PathTraversal',
  'net.offline': 'SsrfBlocked',
  'net.loopback': 'SsrfBlocked',
  'net.fetch': 'SsrfBlocked',
  'kernel.filtered': 'CapabilityDenied',
  'limit.wall': 'Timeout',
  'limit.idle': 'Timeout',
  'limit.memory': 'ResourceExhausted',
  'limit.pids': 'ResourceExhausted',
  'limit.disk': 'ResourceExhausted',
  'limit.output': 'ResourceExhausted',
  'limit.cpu': 'ResourceExhausted',
  'limit.fuel': 'ResourceExhausted',
}

/** How many times what a record says has happened: repeated violations share a record, which then has a `count`. */
export const timesOf = ({ event, count }: Readonly<Record<string, unknown>>): number =>
  event === 'SandboxViolation' && typeof count === 'number' ? count : 1

/** `soon`: no caller waits for this record, so it may share a disk sync with others. */
export type Pace = 'now' | 'soon'

/** Records events in order. A failed write throws, which stops the recorded action. */
export interface EventSink {
  append(event: Event, pace?: Pace): Promise<void>
}
