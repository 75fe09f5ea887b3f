import { spawn } from 'node:child_process'

/** A program on a real pseudo-terminal (`script` of util-linux), with an answer to its prompt. */

export type Conversation = { readonly status: number | null; readonly screen: string }

const quoted = (word: string): string => `'${word.replaceAll("'", "'\\''")}'`

/** Types `answer` and Enter as soon as `question` is on the screen. */
export function answering(
  argv: readonly string[],
  question: string,
  answer: string,
  options: { readonly cwd: string; readonly env: NodeJS.ProcessEnv },
): Promise<Conversation> {
  return new Promise((resolve, reject) => {
    const child = spawn('script', ['-qec', argv.map(quoted).join(' '), '/dev/null'], {
      ...options,
      stdio: 'pipe',
    })
    let screen = ''
    let asked = false
    const onText = (chunk: Buffer): void => {
      screen += chunk.toString('utf8')
      if (asked || !screen.includes(question)) return
      asked = true
      child.stdin.write(`${answer}\r`)
    }
    child.stdout.on('data', onText)
    child.stderr.on('data', onText)
    child.stdin.on('error', () => {})
    child.on('error', reject)
    child.on('close', (status) => resolve({ status, screen }))
  })
}
