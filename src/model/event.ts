/** One audit record's content, before the trail gives it its place in the chain. */
export const EVENT_NAMES = [
  'PolicyDecision',
  'SandboxState',
  'Exec',
  'SandboxViolation',
  'Connection',
  'Approval',
  'Review',
  'SkillRun',
  'Secret',
  'Pruning',
  'Checkpoint',
] as const
/** The kind of an audit record. */
export type EventName = (typeof EVENT_NAMES)[number]

/** A JSON value. */
export type Json = string | number | boolean | null | readonly Json[] | { readonly [key: string]: Json }

/** Free fields stand beside the fixed ones; the trail refuses the names it owns (`seq`, `time`, `prev_hash`, `hash`). */
export type Event = {
  readonly event: EventName
  readonly agent_id?: string
  readonly sandbox_id?: string
  readonly exec_id?: string
  readonly [field: string]: Json | undefined
}

/** The seeds' names for what a guarantee stopped. */
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

/** `soon`: nobody waits for this one, so that it may share its sync of the disk with others. */
export type Pace = 'now' | 'soon'

/** Where events go, in the order in which they come. A write that fails throws, and so stops the action that it records. */
export interface EventSink {
  append(event: Event, pace?: Pace): Promise<void>
}
