import { closeSync, fstatSync, fsyncSync, mkdirSync, openSync, readFileSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { createLock, type Lock } from '../audit/lock.ts'
import { writeAtomically } from '../host/files/atomic-file.ts'
import type { SkillUsage } from '../model/api/skills.ts'
import { boolean, type Infer, number, object, optional, text } from '../model/shape.ts'

/** Resource usage per skill. */

const amount = () => number({ min: 0 })
const used = {
  skill: text({ max: 64 }),
  fuel: amount(),
  duration_ms: amount(),
  violations: amount(),
  /** The agent that ran it. */
  agent: optional(text({ max: 256 })),
}
const runShape = object({ ...used, ok: boolean() })
/** The sum of several runs. */
const sumShape = object({ ...used, runs: number({ integer: true, min: 1 }) })
/** One run. */
export type UsageRun = Infer<typeof runShape>
type UsageSum = Infer<typeof sumShape>

/** Above this size, the lines are compacted to sums. */
const MOST_BYTES = 256 * 1024
const TURN_MS = 2000

/**
 * One line per run, compacted to one line per skill and agent when the file grows. Readers need no lock: the file is only
 * appended to or replaced atomically, and a crash loses at most the line that was being written.
 */
export class UsageLog {
  readonly #dir: string
  readonly #file: string
  readonly #mostBytes: number
  #lock: Lock | undefined
  /** The size after the last compaction; the file must double before the next one. */
  #least = 0

  constructor(stateDir: string, { mostBytes = MOST_BYTES }: { readonly mostBytes?: number } = {}) {
    this.#dir = join(stateDir, 'skills')
    this.#file = join(this.#dir, 'usage.jsonl')
    this.#mostBytes = mostBytes
  }

  add(run: UsageRun): void {
    const line = JSON.stringify(runShape.parse(run, 'usage'))
    mkdirSync(this.#dir, { recursive: true, mode: 0o700 })
    const release = this.#turn()
    try {
      const size = this.#append(line)
      // INVARIANT: only the holder of the lock replaces the file; otherwise another process's line could be lost.
      if (release && size > Math.max(this.#mostBytes, 2 * this.#least)) this.#compact()
    } finally {
      release?.()
    }
  }

  /** The sums per skill name, for one agent or for all. */
  read(agent?: string): readonly SkillUsage[] {
    const lines = this.#lines().filter((line) => agent === undefined || line.agent === agent)
    return summed(lines, ({ skill }) => skill)
      .map(({ agent: _, ...sum }) => sum)
      .sort((a, b) => (a.skill < b.skill ? -1 : 1))
  }

  /** Appends one line and returns the new size of the file. */
  #append(line: string): number {
    const fd = openSync(this.#file, 'a', 0o600)
    try {
      // Start a new line after a line that a crash truncated.
      writeSync(fd, `\n${line}\n`)
      fsyncSync(fd)
      return fstatSync(fd).size
    } finally {
      closeSync(fd)
    }
  }

  #compact(): void {
    const sums = summed(this.#lines(), ({ skill, agent }) => JSON.stringify([skill, agent]))
    const content = sums.map((sum) => `${JSON.stringify(sum)}\n`).join('')
    writeAtomically(this.#file, content)
    this.#least = content.length
  }

  /** Waits for the lock between processes; after a timeout the line is appended without compaction. */
  #turn(): (() => void) | undefined {
    this.#lock ??= createLock(`${this.#file}.lock`)
    const lock = this.#lock
    for (const until = Date.now() + TURN_MS; ; ) {
      if (lock.tryAcquire() !== undefined) return () => lock.release()
      if (Date.now() > until) return undefined
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1 + Math.random() * 2)
    }
  }

  #lines(): readonly UsageSum[] {
    let source: string
    try {
      source = readFileSync(this.#file, 'utf8')
    } catch {
      return []
    }
    return source.split('\n').flatMap((line) => {
      try {
        return line === '' ? [] : [parseLine(JSON.parse(line))]
      } catch {
        return []
      }
    })
  }
}

function parseLine(value: unknown): UsageSum {
  if (typeof value === 'object' && value !== null && 'runs' in value) return sumShape.parse(value, 'usage')
  const { ok: _, ...run } = runShape.parse(value, 'usage')
  return { ...run, runs: 1 }
}

/** Sums lines by name. Durations are added in whole microseconds, so that the order of additions does not matter. */
function summed(lines: readonly UsageSum[], nameOf: (line: UsageSum) => string): readonly UsageSum[] {
  const sums = new Map<string, UsageSum>()
  for (const line of lines) {
    const sum = sums.get(nameOf(line)) ?? { ...line, runs: 0, fuel: 0, duration_ms: 0, violations: 0 }
    sums.set(nameOf(line), {
      ...sum,
      runs: sum.runs + line.runs,
      fuel: sum.fuel + line.fuel,
      duration_ms: (Math.round(sum.duration_ms * 1000) + Math.round(line.duration_ms * 1000)) / 1000,
      violations: sum.violations + line.violations,
    })
  }
  return [...sums.values()]
}
