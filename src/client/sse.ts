import { SandboxError } from '../model/errors.ts'
import { STREAM_ENDS, type StreamEnd } from '../model/stream-end.ts'

/** One server-sent event, as it came. */
export type Incoming = { readonly event: string; readonly data: string; readonly id: number | undefined }

/** Reads events from a response until it ends. */
export async function* readEvents(response: Response): AsyncGenerator<Incoming, void> {
  if (!response.body) return
  const reader = response.body.getReader()
  const decoder = new TextDecoder()
  let held = ''
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return
      held += decoder.decode(value, { stream: true })
      const blocks = held.split('\n\n')
      held = blocks.pop() ?? ''
      for (const block of blocks) {
        const event = parseEvent(block)
        if (event) yield event
      }
    }
  } finally {
    await reader.cancel().catch(() => {})
  }
}

function parseEvent(block: string): Incoming | undefined {
  let event = 'message'
  let id: number | undefined
  const data: string[] = []
  for (const line of block.split('\n')) {
    const [, name, value = ''] = /^([^:]*)(?:: ?(.*))?$/.exec(line) ?? []
    if (name === 'event') event = value
    else if (name === 'data') data.push(value)
    else if (name === 'id') id = Number(value)
  }
  return data.length > 0 ? { event, data: data.join('\n'), id } : undefined
}

/** Why the server ended the stream, when this event says so. */
export function streamEndIn({ event, data }: Incoming): StreamEnd | undefined {
  return event === 'cut' ? (JSON.parse(data) as StreamEnd) : undefined
}

/** The same as an error; a reason that a newer server gives is passed on in its words. */
export const errorOfStreamEnd = ({ reason, message }: StreamEnd): SandboxError =>
  new SandboxError(STREAM_ENDS[reason]?.error ?? 'unreachable', message)
