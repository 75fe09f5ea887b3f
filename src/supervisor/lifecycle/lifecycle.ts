import type { SandboxState, STATES } from '../../model/api/sandboxes.ts'
import { SandboxError } from '../../model/errors.ts'

/** The state machine of a sandbox; every transition goes through `move`. */

/** A state of a sandbox. */
export type State = (typeof STATES)[number]

/** A state as callers see it. */
export type ShownState = SandboxState

/** The states that may follow each state. */
export const NEXT: Readonly<Record<State, readonly State[]>> = {
  requested: ['provisioning', 'destroyed', 'failed'],
  provisioning: ['ready', 'destroying', 'failed'],
  ready: ['paused', 'destroying', 'failed'],
  paused: ['ready', 'destroying', 'failed'],
  destroying: ['destroyed', 'failed'],
  destroyed: [],
  failed: [],
}

/** Final states: nothing of the sandbox is left. */
export const ENDED: readonly State[] = ['destroyed', 'failed']

/** Whether a state is final. */
export const isEnded = (state: string): boolean => ENDED.includes(state as State)

/** Why a sandbox ended, in one word; `failed` may be followed by a message. */
const END_REASONS = [
  'killed',
  'timeout',
  'idle',
  'oom',
  'crashed',
  'drained',
  'failed',
  'volume-full',
  'node-lost',
  'evicted',
  'preempted',
] as const
/** Why a sandbox ended. */
export type EndReason = (typeof END_REASONS)[number]

/** Why a sandbox ended by itself, from the words of its backend. */
export function endReasonOf(why: string): EndReason {
  if (why.startsWith('node lost')) return 'node-lost'
  if (why.startsWith('evicted')) return 'evicted'
  if (why.startsWith('preempted')) return 'preempted'
  return /memory|oom/i.test(why) ? 'oom' : 'crashed'
}

/** Nobody asked for these ends. */
export const isFailure = (reason: EndReason): boolean =>
  ['crashed', 'oom', 'node-lost', 'evicted', 'preempted'].includes(reason)

/** Whether a transition is allowed. */
export const mayMove = (from: State, to: State): boolean => NEXT[from].includes(to)

/** Returns the next state, or throws if the transition is not allowed. */
export function move(id: string, from: State, to: State): State {
  if (mayMove(from, to)) return to
  throw new SandboxError('wrong-state', `sandbox ${id} is ${from}, so it cannot become ${to}`)
}

/** The state as callers see it. */
export const shown = (state: State, running: number): ShownState =>
  state === 'ready' && running > 0 ? 'executing' : state
