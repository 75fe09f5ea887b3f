/** Who uses the terminal: the command that runs in it, or a question to the person who sits there. */

/** Takes the terminal from the command, and gives it back. */
export type TerminalUser = { readonly release: () => void; readonly take: () => void }

/** Keys that were meant for the command must not answer a question that appears while somebody types. */
const SETTLE_MS = 400

/** Questions get the terminal one after the other; meanwhile the command gets no keys, and its output waits. */
export class TerminalLease {
  #user: TerminalUser | undefined
  #questions: Promise<unknown> = Promise.resolve()
  #held: Promise<unknown> | undefined

  /** The command that has the terminal between questions. */
  set user(user: TerminalUser | undefined) {
    this.#user = user
  }

  /** Resolves when the command may write. SECURITY: a program must not draw over the question that it caused. */
  get free(): Promise<unknown> | undefined {
    return this.#held
  }

  /** Runs the question with the terminal; the next question waits for it. */
  ask<T>(question: () => Promise<T>): Promise<T> {
    const asked = this.#questions.then(() => this.#withTerminal(question))
    this.#questions = asked.catch(() => {})
    return asked
  }

  async #withTerminal<T>(question: () => Promise<T>): Promise<T> {
    let giveBack = (): void => {}
    this.#held = new Promise<void>((resolve) => {
      giveBack = resolve
    })
    this.#user?.release()
    try {
      await swallowKeys(SETTLE_MS)
      return await question()
    } finally {
      this.#user?.take()
      this.#held = undefined
      giveBack()
    }
  }
}

/** Reads and drops what is typed for a short time. */
async function swallowKeys(ms: number): Promise<void> {
  const drop = (): void => {}
  process.stdin.setRawMode(true)
  process.stdin.on('data', drop)
  await new Promise((resolve) => setTimeout(resolve, ms))
  process.stdin.off('data', drop)
  process.stdin.setRawMode(false)
}
