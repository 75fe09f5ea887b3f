import { useState } from 'react'
import { Field } from '../fields.tsx'
import { plain } from '../format.ts'
import { useClient } from '../live.ts'
import { said } from '../session.ts'
import { Button, Code, Empty, Panel } from '../ui.tsx'

/** Listening sockets as the sandbox's kernel lists them: address `…:1F90`, state `0A`. */
export function listeningIn(table: string): readonly number[] {
  const ports = table.split('\n').flatMap((line) => {
    const [, local = '', , state] = line.trim().split(/\s+/)
    return state === '0A' ? [Number.parseInt(local.split(':')[1] ?? '', 16)] : []
  })
  return [...new Set(ports.filter((port) => port > 0))].sort((a, b) => a - b)
}

type Asked = { readonly port: number; readonly status: number; readonly type: string; readonly text: string }

/** Which ports programs in it listen on, and what they answer. SECURITY: the answer is shown as text and never as a page. */
export function Ports({ id }: { readonly id: string }) {
  const client = useClient()
  const [ports, setPorts] = useState<readonly number[] | undefined>(undefined)
  const [problem, setProblem] = useState<string | undefined>(undefined)
  const [other, setOther] = useState('')
  const [asked, setAsked] = useState<Asked | undefined>(undefined)
  const look = async (): Promise<void> => {
    setProblem(undefined)
    try {
      const { files } = await client.get(id)
      const read = async (path: string): Promise<string> =>
        new TextDecoder().decode(await files.read(path).catch(() => new Uint8Array()))
      const tables = await Promise.all([read('/proc/net/tcp'), read('/proc/net/tcp6')])
      setPorts([...new Set(tables.flatMap(listeningIn))])
    } catch (error) {
      setProblem(said(error))
    }
  }
  const ask = async (port: number): Promise<void> => {
    setProblem(undefined)
    try {
      const answer = await client.port(id, port, '/')
      const text = (await answer.text()).slice(0, 100_000)
      setAsked({ port, status: answer.status, type: answer.headers.get('content-type') ?? '', text })
    } catch (error) {
      setProblem(said(error))
    }
  }
  return (
    <>
      <Panel
        title="Ports"
        aside={
          <Button onClick={() => void look()} tone={ports ? 'quiet' : 'main'}>
            Look for listening ports
          </Button>
        }
      >
        {problem && (
          <p role="alert" className="problem">
            ✕ {problem}
          </p>
        )}
        {ports === undefined ? (
          <Empty
            title="Programs in a sandbox can serve"
            command={`ringfence sandbox exec ${id} -c 'python3 -m http.server 8000'`}
          >
            Nobody outside reaches them but through here, with a key. Start one, then look:
          </Empty>
        ) : ports.length === 0 ? (
          <p className="dim quiet-line">Nothing listens in it right now.</p>
        ) : (
          <ul className="chips">
            {ports.map((port) => (
              <li key={port}>
                <code>{port}</code>
                <Button onClick={() => void ask(port)}>GET /</Button>
              </li>
            ))}
          </ul>
        )}
        <div className="run-line">
          <form
            onSubmit={(event) => {
              event.preventDefault()
              void ask(Number(other))
            }}
          >
            <Field
              label="Another port"
              hideLabel
              mono
              value={other}
              onChange={(text) => setOther(text.replace(/\D/g, ''))}
              placeholder="another port"
            />
            <Button onClick={() => {}} submit disabled={other === ''}>
              GET /
            </Button>
          </form>
        </div>
      </Panel>
      {asked && (
        <Panel
          title={`Port ${asked.port} answered ${asked.status}`}
          aside={<span className="dim">{plain(asked.type)}</span>}
        >
          {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
          <pre className="output" tabIndex={0} role="log" aria-label="The answer">
            {plain(asked.text)}
          </pre>
          <Code
            text={`curl -H "authorization: Bearer $RINGFENCE_API_KEY" ${location.origin}/v1/sandboxes/${id}/ports/${asked.port}/`}
          />
        </Panel>
      )}
    </>
  )
}
