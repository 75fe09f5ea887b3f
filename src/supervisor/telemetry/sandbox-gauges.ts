import type { LiveSandbox } from '../lifecycle/live-sandbox.ts'
import type { Metrics } from './metrics.ts'

type SandboxCounts = {
  readonly entries: Iterable<LiveSandbox>
  readonly waitingCreates: number
  readonly waitingExecs: number
  readonly backgroundExecs: number
  readonly keptOutputBytes: number
  readonly pooled: number
}

const STATES = ['provisioning', 'ready', 'executing', 'paused', 'destroying']

/** What the sandboxes of this server are doing now. */
export function gaugeSandboxes(metrics: Metrics, counts: SandboxCounts): void {
  const states = new Map<string, number>()
  for (const { shown } of counts.entries) states.set(shown, (states.get(shown) ?? 0) + 1)
  for (const state of STATES)
    metrics.gauge('ringfence_sandboxes', 'Sandboxes by state.', { state }, states.get(state) ?? 0)
  const gauge = (name: string, help: string, value: number): void => metrics.gauge(name, help, {}, value)
  gauge('ringfence_creates_waiting', 'Creates waiting in the queue.', counts.waitingCreates)
  gauge('ringfence_execs_waiting', 'Commands waiting in the queue.', counts.waitingExecs)
  gauge(
    'ringfence_background_execs',
    'Commands running in the background or in a terminal.',
    counts.backgroundExecs,
  )
  gauge('ringfence_kept_output_bytes', 'Command output kept in memory.', counts.keptOutputBytes)
  gauge('ringfence_pool_ready', 'Pooled sandboxes that are ready.', counts.pooled)
}
