import type { ConsoleSandbox, ExecView } from '../../../../../src/client/console-types.ts'
import type { Approval, TrailRecord } from '../../../../../src/client/types.ts'
import { recordSummary } from '../../../audit/record-summary.ts'
import { formatMillis, formatTime, safeLine } from '../../../format.ts'

/** What happened in a sandbox, by subject, with the time of each event. */

/** Something that lasted, or happened at one time; in milliseconds since 1970. */
export type Mark = {
  readonly key: string
  readonly from: number
  readonly to: number
  readonly tone: 'accent' | 'good' | 'warn' | 'bad' | 'dim'
  readonly text: string
}
export type Lane = { readonly name: string; readonly marks: readonly Mark[] }
export type Period = { readonly from: number; readonly to: number }

/** A sandbox that just started is drawn on a scale of seconds. */
const SHORTEST_MS = 10_000

/** From the creation of the sandbox until now, or until its end. */
export function periodOf({ created_at, ended_at }: ConsoleSandbox, now: number): Period {
  const from = Date.parse(created_at)
  return { from, to: Math.max(from + SHORTEST_MS, ended_at ? Date.parse(ended_at) : now) }
}

export function lanesOf(
  execs: readonly ExecView[],
  records: readonly TrailRecord[],
  pending: readonly Approval[],
  now: number,
): readonly Lane[] {
  return [
    { name: 'Commands', marks: execs.filter(({ state }) => state !== 'refused').map(commandMark(now)) },
    { name: 'Approvals', marks: [...approvalMarks(records, now), ...pending.map(pendingMark(now))] },
    {
      name: 'Blocked',
      marks: records.filter((one) => isBlocked(one) && !isEgress(one)).map(momentMark('bad')),
    },
    { name: 'Egress', marks: records.filter(isEgress).map(egressMark) },
  ]
}

const isBlocked = ({ event, action }: TrailRecord): boolean =>
  event === 'SandboxViolation' || (event === 'PolicyDecision' && action === 'deny')

const commandMark =
  (now: number) =>
  ({ exec_id, command, started_at, duration_ms, outcome, state }: ExecView): Mark => {
    const from = Date.parse(started_at)
    const isSuccess = outcome?.kind === 'exited' && outcome.code === 0
    return {
      key: exec_id,
      from,
      to: state === 'running' ? now : from + (duration_ms ?? 0),
      tone: state === 'running' ? 'accent' : isSuccess ? 'good' : 'bad',
      text: `${formatTime(from)} ${safeLine(command)} (${state === 'running' ? 'running' : formatMillis(duration_ms)})`,
    }
  }

/** From the question to its answer. */
function approvalMarks(records: readonly TrailRecord[], now: number): readonly Mark[] {
  const byId = new Map<string, readonly TrailRecord[]>()
  for (const record of records.filter(({ event }) => event === 'Approval')) {
    const id = String(record.approval_id ?? record.seq)
    byId.set(id, [...(byId.get(id) ?? []), record])
  }
  return [...byId].map(([key, steps]) => {
    const [first, last] = [steps[0] as TrailRecord, steps.at(-1) as TrailRecord]
    const isOpen = last.state === 'pending'
    return {
      key,
      from: Date.parse(first.time),
      to: isOpen ? now : Date.parse(last.time),
      tone: isOpen ? 'warn' : last.state === 'approved' || last.approved === true ? 'good' : 'bad',
      text: `${formatTime(first.time)} ${safeLine(recordSummary(last))}`,
    }
  })
}

const pendingMark =
  (now: number) =>
  ({ id, asked_at, command }: Approval): Mark => ({
    key: id,
    from: Date.parse(asked_at),
    to: now,
    tone: 'warn',
    text: `${formatTime(asked_at)} ${safeLine(command)} (waiting)`,
  })

const momentMark =
  (tone: Mark['tone']) =>
  (record: TrailRecord): Mark => {
    const at = Date.parse(record.time)
    const text = `${formatTime(at)} ${safeLine(recordSummary(record))}`
    return { key: String(record.seq), from: at, to: at, tone, text }
  }

/** An allowed connection, or a blocked one, which is on record as a violation of the network's guarantee. */
const isEgress = ({ event, guarantee }: TrailRecord): boolean =>
  event === 'Connection' || (event === 'SandboxViolation' && String(guarantee).startsWith('net.'))

const egressMark = (record: TrailRecord): Mark =>
  momentMark(isBlocked(record) || record.verdict === 'deny' ? 'bad' : 'good')(record)
