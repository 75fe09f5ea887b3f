import { useEffect, useRef, useState } from 'react'
import { errorText } from '../../../data/error-text.ts'
import { useClient } from '../../../data/live-context.ts'
import { safeText } from '../../../format.ts'

/** The output of a command as it arrives. SECURITY: shown as text only. */
export function CommandOutput({
  sandboxId,
  execId,
}: {
  readonly sandboxId: string
  readonly execId: string
}) {
  const { text, endReason } = useOutput(sandboxId, execId)
  const box = useRef<HTMLPreElement>(null)
  // biome-ignore lint/correctness/useExhaustiveDependencies: scrolls to the end when the text grows
  useEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight
  }, [text])
  return (
    <>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable by keyboard */}
      <pre className="output" ref={box} tabIndex={0} role="log" aria-label="Output">
        {text === '' ? <span className="dim">(no output)</span> : withoutEscapes(text)}
      </pre>
      {endReason !== '' && (
        <p className="dim" role="status">
          {safeText(endReason)}
        </p>
      )}
    </>
  )
}

const MAX_CHARACTERS = 200_000

/** The end of the output, and why the stream ended if the command did not end by itself. */
function useOutput(sandboxId: string, execId: string) {
  const client = useClient()
  const [text, setText] = useState('')
  const [endReason, setEndReason] = useState('')
  useEffect(() => {
    const stop = new AbortController()
    const decoder = new TextDecoder()
    const follow = async (): Promise<void> => {
      const sandbox = await client.get(sandboxId)
      for await (const event of sandbox.attach(execId, 0, stop.signal)) {
        if (event.type === 'stdout' || event.type === 'stderr')
          setText((before) => (before + decoder.decode(event.data, { stream: true })).slice(-MAX_CHARACTERS))
        if (event.type === 'end') setEndReason(event.result.cut?.message ?? '')
      }
    }
    follow().catch((error: unknown) => !stop.signal.aborted && setEndReason(errorText(error)))
    return () => stop.abort()
  }, [client, sandboxId, execId])
  return { text, endReason }
}

/** Removes terminal escape sequences: colors and cursor movements mean nothing here. */
const withoutEscapes = (text: string): string =>
  safeText(
    text
      .replace(/\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])/g, '')
      .replace(/\r\n?/g, '\n'),
  )
