import type { Decision } from '../model/decision.ts'

/** Asks the person at the terminal. Where there is none the answer is no. */
export async function askPerson(decision: Decision, json: boolean): Promise<boolean> {
  if (json || !process.stdin.isTTY || !process.stderr.isTTY) return false
  const { createInterface } = await import('node:readline/promises')
  const lines = createInterface({ input: process.stdin, output: process.stderr })
  try {
    const answer = await lines.question(`ringfence asks: ${decision.reason}\nrun it in the sandbox? [y/N] `)
    return /^y(es)?$/i.test(answer.trim())
  } finally {
    lines.close()
  }
}
