import type { Duplex } from 'node:stream'
import { monotonicMs } from '../../../host/clock.ts'
import { SandboxError } from '../../../model/errors.ts'

const MAX_LINE = 1 << 20
const CALL_MS = 15_000
/** A state of several gigabytes takes minutes on a slow disk. */
const MIGRATION_MS = 15 * 60_000

type Answer = { readonly resolve: (value: unknown) => void; readonly reject: (error: Error) => void }

/**
 * QEMU's monitor (QMP).
 * SECURITY: only we connect to it, and its responses are used only as a state or an error text.
 */
export class Monitor {
  readonly #stream: Duplex
  readonly #waiting: Answer[] = []
  #rest = ''
  #over: string | undefined

  constructor(stream: Duplex) {
    this.#stream = stream
    stream.on('data', (chunk: Buffer) => this.#hear(chunk.toString('utf8')))
    stream.on('error', () => this.#end('the monitor connection failed'))
    stream.on('close', () => this.#end('the machine ended'))
  }

  /** Runs one command; rejects with QEMU's error message. */
  call(execute: string, args?: Record<string, unknown>): Promise<unknown> {
    return new Promise((resolve, reject) => {
      if (this.#over !== undefined) return reject(gone(this.#over))
      const timer = setTimeout(() => this.#end(`QEMU did not answer ${execute} in time`), CALL_MS)
      const done = (): void => clearTimeout(timer)
      this.#waiting.push({
        resolve: (value) => {
          done()
          resolve(value)
        },
        reject: (error) => {
          done()
          reject(error)
        },
      })
      this.#stream.write(`${JSON.stringify({ execute, ...(args ? { arguments: args } : {}) })}\n`)
    })
  }

  /** Resolves when a migration, which saves or loads a state, has completed. */
  async migrated(): Promise<void> {
    const deadline = monotonicMs() + MIGRATION_MS
    for (let wait = 1; monotonicMs() < deadline; wait = Math.min(wait * 2, 20)) {
      const { status, 'error-desc': why } = objectOf(await this.call('query-migrate')) ?? {}
      if (status === 'completed') return
      if (status === 'failed' || status === 'cancelled')
        throw new SandboxError(
          'launch-failed',
          `the machine's state could not be saved or loaded: ${why ?? status}`,
        )
      await new Promise((resolve) => setTimeout(resolve, wait))
    }
    throw gone(`the machine's state was not saved or loaded within ${MIGRATION_MS / 60_000} minutes`)
  }

  #hear(text: string): void {
    this.#rest += text
    if (this.#rest.length > MAX_LINE) {
      this.#end('the monitor sent too much data')
      return
    }
    if (!text.includes('\n')) return
    const lines = this.#rest.split('\n')
    this.#rest = lines.pop() ?? ''
    for (const line of lines) this.#take(line)
  }

  #take(line: string): void {
    const said = parsed(line)
    if (!said) return void this.#end('the monitor sent something else than an object of JSON')
    if (typeof said.event === 'string') return
    if ('return' in said) this.#waiting.shift()?.resolve(said.return)
    else if ('error' in said) this.#waiting.shift()?.reject(gone(String(objectOf(said.error)?.desc)))
  }

  #end(why: string): void {
    if (this.#over !== undefined) return
    this.#over = why
    this.#stream.destroy()
    for (const { reject } of this.#waiting.splice(0)) reject(gone(why))
  }
}

const gone = (why: string): SandboxError => new SandboxError('launch-failed', `qemu: ${why}`)

/** SECURITY: an exception in a handler of data would end the server. */
function parsed(line: string): Record<string, unknown> | undefined {
  try {
    return objectOf(JSON.parse(line))
  } catch {
    return undefined
  }
}

const objectOf = (value: unknown): Record<string, unknown> | undefined =>
  typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined
