import type { StartedProcess } from '../../host/guest/process.ts'
import { SandboxError } from '../../model/errors.ts'
import { CollectedBytes } from '../../model/files/collected-bytes.ts'
import type { RemoteRequest } from './sandbox.ts'

type Bytes = AsyncIterable<Uint8Array> | Iterable<Uint8Array>

/** Runs a remote program and streams its output; a reader that stops early kills the program. */
export async function* streamOf(
  start: (request: RemoteRequest) => StartedProcess,
  argv: readonly string[],
  input?: Bytes,
): AsyncGenerator<Uint8Array> {
  const queue: { readonly chunk: Uint8Array; readonly taken: () => void }[] = []
  let said = ''
  let wake = (): void => {}
  let over = false
  const process = start({
    argv,
    env: { PATH: '/usr/local/bin:/usr/bin:/bin', LC_ALL: 'C.UTF-8' },
    cwd: '/',
    stdin: input !== undefined,
    held: false,
    onOutput: (stream, chunk) => {
      if (stream === 'stderr') said += said.length < 4096 ? Buffer.from(chunk).toString('utf8') : ''
      else
        return new Promise<void>((taken) => {
          queue.push({ chunk, taken })
          wake()
        })
      return undefined
    },
  })
  const fed = feed(process, input)
  fed.catch(() => {})
  const finished = process.ended.finally(() => {
    over = true
    wake()
  })
  try {
    for (;;) {
      for (let next = queue.shift(); next; next = queue.shift()) {
        yield next.chunk
        next.taken()
      }
      if (over) break
      await new Promise<void>((resolve) => {
        wake = resolve
        if (over || queue.length > 0) resolve()
      })
    }
    const { exit, lost } = await finished
    if (lost !== undefined) throw new SandboxError('wrong-state', `the sandbox is gone: ${lost}`)
    if (exit?.signaled || exit?.code !== 0)
      throw new SandboxError(
        'invalid-input',
        `\`${argv[0]}\` failed in the sandbox: ${said.trim().slice(0, 300)}`,
      )
    await fed
  } finally {
    for (const { taken } of queue) taken()
    if (!over) process.kill()
  }
}

async function feed(process: StartedProcess, input: Bytes | undefined): Promise<void> {
  if (input === undefined) return
  for await (const piece of inPieces(input)) await process.write(piece)
  process.endInput()
}

/** Each write is a round trip, so small chunks are joined. */
const PIECE = 256 * 1024

/** The input in chunks of bounded size. */
export async function* inPieces(input: Bytes): AsyncGenerator<Uint8Array> {
  let waiting = new CollectedBytes()
  for await (const chunk of input) {
    waiting.add(chunk)
    if (waiting.size < PIECE) continue
    yield waiting.all()
    waiting = new CollectedBytes()
  }
  if (waiting.size > 0) yield waiting.all()
}
