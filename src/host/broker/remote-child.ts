import { EventEmitter } from 'node:events'
import { constants } from 'node:os'
import { getSystemErrorName } from 'node:util'
import { signalName, signalNumber } from '../process/signals.ts'
import type { Child } from '../process/spawn.ts'
import type { LateStream } from './late-stream.ts'

/** Errors that Node reports with the name of the file. */
const WITH_FILE = ['EACCES', 'EAGAIN', 'EMFILE', 'ENFILE', 'ENOENT']

/** A process that the front has started, in the shape of a child process of Node. */
export class RemoteChild extends EventEmitter implements Child {
  readonly stdio: readonly (LateStream | null)[]
  pid: number | undefined
  exitCode: number | null = null
  signalCode: NodeJS.Signals | null = null
  readonly #file: string
  readonly #sendSignal: (number: number) => void
  #open: number
  #ended = false

  constructor(file: string, stdio: readonly (LateStream | null)[], sendSignal: (number: number) => void) {
    super()
    this.#file = file
    this.stdio = stdio
    this.#sendSignal = sendSignal
    const streams = stdio.filter((stream) => stream !== null)
    this.#open = streams.length
    for (const stream of streams)
      stream.once('close', () => {
        this.#open--
        this.#closeIfDone()
      })
  }

  get stdin(): LateStream | null {
    return this.stdio[0] ?? null
  }
  get stdout(): LateStream | null {
    return this.stdio[1] ?? null
  }
  get stderr(): LateStream | null {
    return this.stdio[2] ?? null
  }

  killGroup(signal: NodeJS.Signals): void {
    if (!this.#ended) this.#sendSignal(signalNumber(signal))
  }

  /** The front has started the process. */
  started(pid: number): void {
    this.pid = pid
    this.emit('spawn')
  }

  /** The front could not start the process. */
  failed(errno: number): void {
    const code = getSystemErrorName(-errno)
    const what = WITH_FILE.includes(code) ? `${this.#file} ${code}` : code
    const error = Object.assign(new Error(`spawn ${what}`), { code, syscall: 'spawn' })
    this.#ended = true
    for (const stream of this.stdio) stream?.destroy()
    this.emit('error', error)
  }

  /** The process has ended, with this status of wait(2). */
  exited(status: number): void {
    const signal = status & 0x7f
    if (signal === 0) this.#end((status >> 8) & 0xff, null)
    else this.#end(null, signalName(signal) as NodeJS.Signals)
  }

  /** The front has gone, and the kernel kills the process with it; its streams close when nothing of it is left. */
  lost(): void {
    for (const stream of this.stdio) stream?.abandon()
    if (!this.#ended) this.#end(null, signalName(constants.signals.SIGKILL) as NodeJS.Signals)
  }

  #end(code: number | null, signal: NodeJS.Signals | null): void {
    this.#ended = true
    this.exitCode = code
    this.signalCode = signal
    this.emit('exit', code, signal)
    this.#closeIfDone()
  }

  #closeIfDone(): void {
    const isKnown = this.exitCode !== null || this.signalCode !== null
    if (isKnown && this.#open === 0) this.emit('close', this.exitCode, this.signalCode)
  }
}
