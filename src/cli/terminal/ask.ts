import type { Decision } from '../../model/decision.ts'
import { visible } from '../../model/visible.ts'

/** Asks the person at the terminal. Where there is none the answer is no. */
export async function askPerson(decision: Decision, json: boolean): Promise<boolean> {
  const answer = await ask(`ringfence asks: ${visible(decision.reason)}\nrun it in the sandbox? [y/N] `, json)
  return /^y(es)?$/i.test(answer ?? '')
}

/** A plain yes or no; where there is nobody, no. */
export const askYes = async (question: string, json: boolean): Promise<boolean> =>
  /^y(es)?$/i.test((await ask(question, json)) ?? '')

/** What becomes of the changes. Where nobody can say, they wait. */
export async function askReview(json: boolean): Promise<'apply' | 'drop' | 'wait'> {
  const answer = await ask('apply these changes? [a]pply, [d]rop, [w]ait ', json)
  if (/^a(pply)?$/i.test(answer ?? '')) return 'apply'
  return /^d(rop)?$/i.test(answer ?? '') ? 'drop' : 'wait'
}

async function ask(question: string, json: boolean): Promise<string | undefined> {
  if (json || !process.stdin.isTTY || !process.stderr.isTTY) return undefined
  const { createInterface } = await import('node:readline/promises')
  const lines = createInterface({ input: process.stdin, output: process.stderr })
  try {
    return (await lines.question(question)).trim()
  } finally {
    lines.close()
  }
}
