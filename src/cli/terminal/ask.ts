import type { Decision } from '../../model/decision.ts'
import { visible } from '../../model/visible.ts'

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
