import { err } from './output.ts'

/** Reads one line: at a terminal without showing it, otherwise from standard input. */
export async function readSecret(prompt: string): Promise<string> {
  if (!process.stdin.isTTY) return firstLine(process.stdin)
  err(prompt)
  process.stdin.setRawMode(true)
  try {
    return await typedLine()
  } finally {
    process.stdin.setRawMode(false)
    process.stdin.pause()
    err('\n')
  }
}

async function firstLine(stream: AsyncIterable<unknown>): Promise<string> {
  let text = ''
  for await (const chunk of stream) {
    text += String(chunk)
    if (text.includes('\n')) break
  }
  return (text.split('\n')[0] ?? '').trim()
}

const [ENTER, NEWLINE, CTRL_C, CTRL_D, BACKSPACE, DELETE] = ['\r', '\n', '\x03', '\x04', '\b', '\x7f']

function typedLine(): Promise<string> {
  let text = ''
  return new Promise((resolve) => {
    const onData = (chunk: Uint8Array): void => {
      for (const key of Buffer.from(chunk).toString('utf8')) {
        if (key === CTRL_C) process.exit(130)
        if (key === ENTER || key === NEWLINE || key === CTRL_D) {
          process.stdin.off('data', onData)
          resolve(text.trim())
          return
        }
        text = key === BACKSPACE || key === DELETE ? text.slice(0, -1) : text + key
      }
    }
    process.stdin.on('data', onData).resume()
  })
}
