import { constants } from 'node:os'
import { type RawData, WebSocket } from 'ws'
import { fromProblem } from '../../client/transport.ts'
import { exitCodeOf, type Outcome } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { shellQuote } from '../../model/text/shell-quote.ts'
import { visible } from '../../model/text/visible.ts'
import { address } from '../server/remote.ts'
import { err, passBytes } from '../terminal/output.ts'
import { isTerminal } from '../terminal/terminal.ts'

/** A terminal in a sandbox on a server, joined with this one. Without a command: a login shell. */
export async function terminalIn(id: string, command: string | undefined, cwd?: string): Promise<number> {
  if (!isTerminal())
    throw new SandboxError('invalid-input', 'standard input and output are not a terminal', {
      hint: 'use `ringfence sandbox exec ID` without -t',
    })
  const socket = socketTo(id, command, cwd)
  // Listens before the connection is open: the first output can arrive together with the answer to the upgrade.
  const ended = conversation(socket)
  await opened(socket)
  const onInput = (chunk: Uint8Array): void => socket.send(chunk, { binary: true })
  const onResize = (): void => socket.send(JSON.stringify({ resize: sizeOfOurs() }))
  process.stdin.setRawMode(true)
  process.stdin.on('data', onInput).resume()
  process.stdout.on('resize', onResize)
  try {
    return await ended
  } finally {
    process.stdin.setRawMode(false)
    process.stdin.off('data', onInput).pause()
    process.stdout.off('resize', onResize)
  }
}

function socketTo(id: string, command: string | undefined, cwd: string | undefined): WebSocket {
  const { url, apiKey } = address()
  const { cols, rows } = sizeOfOurs()
  const query = new URLSearchParams({ cols: String(cols), rows: String(rows) })
  if (command !== undefined) query.set('command', command)
  if (cwd !== undefined) query.set('cwd', cwd)
  return new WebSocket(`${url.replace(/^http/, 'ws')}/v1/sandboxes/${id}/pty?${query}`, {
    headers: { authorization: `Bearer ${apiKey}` },
  })
}

function opened(socket: WebSocket): Promise<void> {
  return new Promise((resolve, reject) => {
    socket.once('open', () => resolve())
    socket.once('error', (cause) =>
      reject(new SandboxError('unreachable', `the server at ${address().url} does not answer`, { cause })),
    )
    socket.once('unexpected-response', (_request, response) => {
      const chunks: Uint8Array[] = []
      response.on('data', (chunk: Uint8Array) => chunks.push(chunk))
      response.on('end', () => reject(refusal(Buffer.concat(chunks).toString('utf8'), response.statusCode)))
    })
  })
}

function refusal(body: string, status: number | undefined): SandboxError {
  try {
    return fromProblem(JSON.parse(body), status)
  } catch {
    return fromProblem({}, status)
  }
}

/** Prints what arrives until the command's end, and returns its exit code. */
function conversation(socket: WebSocket): Promise<number> {
  let code = 125
  socket.on('message', (data: RawData, binary) => {
    if (binary) void passBytes('stdout', data as Buffer)
    else code = codeOf(String(data)) ?? code
  })
  return new Promise((resolve) => {
    socket.once('close', (_status, reason) => {
      if (reason.length > 0) err(`\r\nringfence: ${visible(reason.toString('utf8'))}\n`)
      resolve(code)
    })
    socket.on('error', () => socket.terminate())
  })
}

function codeOf(message: string): number | undefined {
  const { end } = JSON.parse(message) as { readonly end?: Outcome | { readonly kind: 'failed' } }
  return end && end.kind !== 'failed' ? exitCodeOf(end, constants.signals) : undefined
}

const sizeOfOurs = (): { readonly cols: number; readonly rows: number } => ({
  cols: process.stdout.columns || 80,
  rows: process.stdout.rows || 24,
})

/** A list of words as one shell line. */
export const shellLine = (argv: readonly string[]): string => argv.map(shellQuote).join(' ')
