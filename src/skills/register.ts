import { mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { writeAtomically } from '../host/files/atomic-file.ts'
import { SandboxError } from '../model/errors.ts'
import { type Infer, list, object, optional, record, text } from '../model/shape.ts'
import { asksOf } from './manifest.ts'
import type { SkillPackage } from './package.ts'

const entryShape = object({
  dir: text(),
  hash: text({ max: 64 }),
  inspected_at: text({ max: 64 }),
  version: optional(text({ max: 64 })),
  /** The requested capabilities; absent in entries of older versions. */
  requests: optional(list(text({ max: 2048 }), 4096)),
})
const registerShape = record(entryShape)
/** The directory and the hash of a skill at the time of its inspection. */
export type Inspected = Infer<typeof entryShape>

/** The requested capabilities of a manifest, one text each: `network: api.example.com:443`. */
const requestsOf = (manifest: SkillPackage['manifest']): string[] =>
  asksOf(manifest).map(({ kind, value }) => `${kind}: ${value}`)

/** What a skill requests more and less than when it was inspected. */
export function requestChanges(
  before: Inspected | undefined,
  { manifest }: SkillPackage,
): { readonly added: readonly string[]; readonly removed: readonly string[] } {
  const now = requestsOf(manifest)
  const known = before?.requests ?? (before === undefined ? now : [])
  return {
    added: now.filter((request) => !known.includes(request)),
    removed: known.filter((request) => !now.includes(request)),
  }
}

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
    const { version } = manifest.skill
    const entry: Inspected = {
      dir,
      hash,
      inspected_at: new Date().toISOString(),
      ...(version !== undefined && { version }),
      requests: requestsOf(manifest),
    }
    const all = { ...this.all(), [manifest.skill.name]: entry }
    writeAtomically(this.#file, `${JSON.stringify(all, null, 2)}\n`)
  }

  /** The entry for the skill in this directory. */
  of({ dir }: SkillPackage): Inspected | undefined {
    return Object.values(this.all()).find((entry) => entry.dir === dir)
  }
}
