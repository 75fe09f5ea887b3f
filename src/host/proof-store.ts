import { mkdirSync, readFileSync, rmSync } from 'node:fs'
import { release } from 'node:os'
import { join } from 'node:path'
import { SandboxError } from '../model/errors.ts'
import type { Guarantee } from '../model/guarantee.ts'
import { writeAtomically } from './files/atomic-file.ts'

/** What `ringfence prove` found out about a backend on this host. */
export type StoredProof = {
  readonly backend: string
  readonly time: string
  /** How many attacks were tried: one for each guarantee, all, or all as root of a writable root too. */
  readonly mode: 'quick' | 'standard' | 'full'
  readonly proven: readonly Guarantee[]
  /** Guarantees that the backend claims and that an attack broke. */
  readonly broken: readonly Guarantee[]
}

type Stored = StoredProof & { readonly valid_for: string }

/** Keeps results in the state directory. A result counts for this kernel, this user and this version of ringfence. */
export class ProofStore {
  readonly #dir: string
  readonly #host: string

  constructor(stateDir: string, version: string) {
    this.#dir = join(stateDir, 'proofs')
    this.#host = [release(), String(process.getuid?.() ?? -1), version].join(' ')
  }

  load(backend: string): StoredProof | undefined {
    const text = textOf(this.#file(backend))
    if (text === undefined) return undefined
    const stored = parsed(text, this.#file(backend))
    return stored.valid_for === this.#host ? stored : undefined
  }

  save(proof: StoredProof): void {
    mkdirSync(this.#dir, { recursive: true, mode: 0o700 })
    writeAtomically(this.#file(proof.backend), `${JSON.stringify({ ...proof, valid_for: this.#host })}\n`)
  }

  forget(backend: string): void {
    rmSync(this.#file(backend), { force: true })
  }

  #file(backend: string): string {
    return join(this.#dir, `${backend}.json`)
  }
}

function textOf(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}

/** SECURITY: what cannot be read may say that a guarantee is broken, so it is not passed over. */
function parsed(text: string, file: string): Stored {
  try {
    const stored = JSON.parse(text) as Stored
    if (Array.isArray(stored.broken) && typeof stored.valid_for === 'string') return stored
  } catch {
    // Reported below.
  }
  throw new SandboxError('invalid-config', `${file} is damaged`, {
    hint: 'run `ringfence prove` again, or remove the file',
  })
}
