import { closeSync, fsyncSync, mkdirSync, openSync, readFileSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { boolean, type Infer, number, object, optional, text } from '../model/shape.ts'

/** What the runs of one skill have used. */
export type SkillUsage = {
  readonly skill: string
  readonly runs: number
  readonly fuel: number
  readonly duration_ms: number
  readonly violations: number
}

const amount = () => number({ min: 0 })
const runShape = object({
  skill: text({ max: 64 }),
  fuel: amount(),
  duration_ms: amount(),
  violations: amount(),
  ok: boolean(),
  /** Who ran it. */
  agent: optional(text({ max: 256 })),
})
/** One run. */
export type UsageRun = Infer<typeof runShape>

/**
 * One line a run, only ever appended: writers need no lock, and a crash costs at most the line that was being
 * written.
 */
export class UsageLog {
  readonly #dir: string
  readonly #file: string

  constructor(stateDir: string) {
    this.#dir = join(stateDir, 'skills')
    this.#file = join(this.#dir, 'usage.jsonl')
  }

  add(run: UsageRun): void {
    mkdirSync(this.#dir, { recursive: true, mode: 0o700 })
    const fd = openSync(this.#file, 'a', 0o600)
    try {
      // A line that a crash has cut must not swallow this one.
      writeSync(fd, `\n${JSON.stringify(runShape.parse(run, 'usage'))}\n`)
      fsyncSync(fd)
    } finally {
      closeSync(fd)
    }
  }

  /** The sums for each skill, by name; of one agent's runs, or of all. */
  read(agent?: string): readonly SkillUsage[] {
    const sums = new Map<string, SkillUsage>()
    for (const run of this.#lines()) {
      if (agent !== undefined && run.agent !== agent) continue
      const sum = sums.get(run.skill) ?? { skill: run.skill, runs: 0, fuel: 0, duration_ms: 0, violations: 0 }
      sums.set(run.skill, {
        skill: run.skill,
        runs: sum.runs + 1,
        fuel: sum.fuel + run.fuel,
        duration_ms: Math.round((sum.duration_ms + run.duration_ms) * 1000) / 1000,
        violations: sum.violations + run.violations,
      })
    }
    return [...sums.values()].sort((a, b) => (a.skill < b.skill ? -1 : 1))
  }

  #lines(): readonly UsageRun[] {
    let source: string
    try {
      source = readFileSync(this.#file, 'utf8')
    } catch {
      return []
    }
    return source.split('\n').flatMap((line) => {
      try {
        return line === '' ? [] : [runShape.parse(JSON.parse(line), 'usage')]
      } catch {
        return []
      }
    })
  }
}
