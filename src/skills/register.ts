import { mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { writeAtomically } from '../host/files/atomic-file.ts'
import { SandboxError } from '../model/errors.ts'
import { type Infer, object, record, text } from '../model/shape.ts'
import type { SkillPackage } from './package.ts'

const entryShape = object({ dir: text(), hash: text({ max: 64 }), inspected_at: text({ max: 64 }) })
const registerShape = record(entryShape)
/** The directory and the hash of a skill at the time of its inspection. */
export type Inspected = Infer<typeof entryShape>

/** The inspected skills, by name. */
export class SkillRegister {
  readonly #file: string
  readonly #dir: string

  constructor(stateDir: string) {
    this.#dir = join(stateDir, 'skills')
    this.#file = join(this.#dir, 'inspected.json')
  }

  all(): Readonly<Record<string, Inspected>> {
    let source: string
    try {
      source = readFileSync(this.#file, 'utf8')
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return {}
      throw error
    }
    // SECURITY: a register that cannot be parsed is an error; otherwise a changed skill would go unnoticed.
    try {
      return registerShape.parse(JSON.parse(source), 'inspected.json')
    } catch (cause) {
      throw new SandboxError('invalid-config', `${this.#file} is broken`, {
        cause,
        hint: 'remove the file and inspect the skills again',
      })
    }
  }

  add({ manifest, dir, hash }: SkillPackage): void {
    mkdirSync(this.#dir, { recursive: true, mode: 0o700 })
    const entry: Inspected = { dir, hash, inspected_at: new Date().toISOString() }
    const all = { ...this.all(), [manifest.skill.name]: entry }
    writeAtomically(this.#file, `${JSON.stringify(all, null, 2)}\n`)
  }

  /** The entry for the skill in this directory. */
  of({ dir }: SkillPackage): Inspected | undefined {
    return Object.values(this.all()).find((entry) => entry.dir === dir)
  }
}
