import type { Decision } from '../../model/decision.ts'
import { visible } from '../../model/text/visible.ts'
import { isTerminalStream } from './output.ts'

/** Asks the user at the terminal for approval. Without a terminal the answer is no. */
export async function askPerson(decision: Decision, json: boolean): Promise<boolean> {
  const answer = await ask(
    `ringfence: approval needed: ${visible(decision.reason)}\nrun it in the sandbox? [y/N] `,
    json,
  )
  return /^y(es)?$/i.test(answer ?? '')
}

/** Asks a yes/no question. Without a terminal the answer is no. */
export const askYes = async (question: string, json: boolean): Promise<boolean> =>
  /^y(es)?$/i.test((await ask(question, json)) ?? '')

/** Asks what to do with the changes. Without a terminal they wait. */
export async function askReview(json: boolean): Promise<'apply' | 'drop' | 'wait'> {
  const answer = await ask('apply these changes? [a]pply, [d]rop, [w]ait ', json)
  if (/^a(pply)?$/i.test(answer ?? '')) return 'apply'
  return /^d(rop)?$/i.test(answer ?? '') ? 'drop' : 'wait'
}

const ask = async (question: string, json: boolean): Promise<string | undefined> =>
  json || !isTerminalStream('stdin') || !isTerminalStream('stderr') ? undefined : askLine(question)

/** Reads one line at the terminal; undefined after Ctrl-C or Ctrl-D, or when the signal is aborted. */
export async function askLine(question: string, signal?: AbortSignal): Promise<string | undefined> {
  const { createInterface } = await import('node:readline/promises')
  const lines = createInterface({ input: process.stdin, output: process.stderr })
  const closed = new Promise<undefined>((resolve) => lines.once('close', () => resolve(undefined)))
  try {
    const answered = lines.question(question, signal ? { signal } : {})
    answered.catch(() => {})
    return (await Promise.race([answered, closed]))?.trim()
  } catch (error) {
    if (signal?.aborted) return undefined
    throw error
  } finally {
    lines.close()
  }
}
