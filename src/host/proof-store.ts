import { mkdirSync, readFileSync, rmSync, statSync } from 'node:fs'
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

/** The programs of others that a backend is made of. */
const PROGRAMS: Readonly<Record<string, readonly string[]>> = {
  bubblewrap: ['bwrap'],
  docker: ['dockerd', 'containerd', 'podman', 'runc', 'crun'],
  gvisor: ['runsc'],
  microvm: ['qemu-system-x86_64', 'qemu-system-aarch64'],
  seatbelt: ['sandbox-exec'],
}
const DIRECTORIES = ['/usr/local/sbin', '/usr/local/bin', '/usr/sbin', '/usr/bin']

/** Which builds of a backend's programs are installed. Read from the files: asking a program for its version takes longer. */
const buildOf = (backend: string, directories: readonly string[]): readonly string[] =>
  (PROGRAMS[backend] ?? []).flatMap((name) =>
    directories.flatMap((dir) => {
      const found = statSync(join(dir, name), { throwIfNoEntry: false })
      return found ? [`${name}:${found.size}:${found.mtimeMs}`] : []
    }),
  )

/**
 * Keeps results in the state directory. A result counts for this kernel, this user, this version of ringfence and these
 * builds of the backend's programs.
 */
export class ProofStore {
  readonly #dir: string
  readonly #host: string
  readonly #programs: readonly string[]

  /** `programs`: the directories in which the backends' programs are. */
  constructor(stateDir: string, version: string, programs: readonly string[] = DIRECTORIES) {
    this.#dir = join(stateDir, 'proofs')
    this.#programs = programs
    this.#host = [release(), String(process.getuid?.() ?? -1), version].join(' ')
  }

  load(backend: string): StoredProof | undefined {
    const text = textOf(this.#file(backend))
    if (text === undefined) return undefined
    const stored = parsed(text, this.#file(backend))
    return stored.valid_for === this.#validFor(backend) ? stored : undefined
  }

  save(proof: StoredProof): void {
    mkdirSync(this.#dir, { recursive: true, mode: 0o700 })
    const stored: Stored = { ...proof, valid_for: this.#validFor(proof.backend) }
    writeAtomically(this.#file(proof.backend), `${JSON.stringify(stored)}\n`)
  }

  forget(backend: string): void {
    rmSync(this.#file(backend), { force: true })
  }

  #validFor(backend: string): string {
    return [this.#host, ...buildOf(backend, this.#programs)].join(' ')
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
