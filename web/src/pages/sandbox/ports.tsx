import { type FormEvent, useState } from 'react'
import type { ConsoleClient } from '../../../../src/client/console.ts'
import { Button } from '../../components/button.tsx'
import { CopyableCode } from '../../components/copyable-code.tsx'
import { EmptyState } from '../../components/empty-state.tsx'
import { TextField } from '../../components/fields.tsx'
import { ErrorMessage } from '../../components/page.tsx'
import { Panel } from '../../components/panel.tsx'
import { errorText } from '../../data/error-text.ts'
import { useClient } from '../../data/live-context.ts'
import { safeText } from '../../format.ts'

/** Listening ports of the sandbox and their HTTP responses. SECURITY: a response is shown as text, never as a page. */
export function Ports({ id }: { readonly id: string }) {
  const { ports, response, error, scan, request } = usePorts(id)
  return (
    <>
      <Panel
        title="Ports"
        aside={
          <Button onClick={scan} tone={ports ? 'quiet' : 'primary'}>
            Find listening ports
          </Button>
        }
      >
        <ErrorMessage text={error} />
        {ports ? <PortList ports={ports} onRequest={request} /> : <NotScanned id={id} />}
        <PortForm onRequest={request} />
      </Panel>
      {response && <ResponsePanel id={id} response={response} />}
    </>
  )
}

type PortResponse = {
  readonly port: number
  readonly status: number
  readonly type: string
  readonly text: string
}

function usePorts(id: string) {
  const client = useClient()
  const [ports, setPorts] = useState<readonly number[] | undefined>(undefined)
  const [response, setResponse] = useState<PortResponse | undefined>(undefined)
  const [error, setError] = useState<string | undefined>(undefined)
  const run = async (work: () => Promise<void>): Promise<void> => {
    setError(undefined)
    await work().catch((problem: unknown) => setError(errorText(problem)))
  }
  const scan = (): void => void run(async () => setPorts(await findPorts(client, id)))
  const request = (port: number): void => void run(async () => setResponse(await get(client, id, port)))
  return { ports, response, error, scan, request }
}

async function findPorts(client: ConsoleClient, id: string): Promise<readonly number[]> {
  const { files } = await client.get(id)
  const read = async (path: string): Promise<string> =>
    new TextDecoder().decode(await files.read(path).catch(() => new Uint8Array()))
  const tables = await Promise.all([read('/proc/net/tcp'), read('/proc/net/tcp6')])
  return [...new Set(tables.flatMap(listeningIn))]
}

/** Ports of listening sockets in `/proc/net/tcp`: local address `…:1F90`, state `0A`. */
function listeningIn(table: string): readonly number[] {
  const ports = table.split('\n').flatMap((line) => {
    const [, local = '', , state] = line.trim().split(/\s+/)
    return state === '0A' ? [Number.parseInt(local.split(':')[1] ?? '', 16)] : []
  })
  return [...new Set(ports.filter((port) => port > 0))].sort((a, b) => a - b)
}

const MAX_BODY = 100_000

async function get(client: ConsoleClient, id: string, port: number): Promise<PortResponse> {
  const response = await client.port(id, port, '/')
  const text = (await response.text()).slice(0, MAX_BODY)
  return { port, status: response.status, type: response.headers.get('content-type') ?? '', text }
}

const NotScanned = ({ id }: { readonly id: string }) => (
  <EmptyState
    title="Servers in this sandbox"
    command={`ringfence sandbox exec ${id} -c 'python3 -m http.server 8000'`}
  >
    Their ports can be reached only through Ringfence, with an API key. To try it, start a server:
  </EmptyState>
)

type RequestProps = { readonly onRequest: (port: number) => void }

function PortList({ ports, onRequest }: { readonly ports: readonly number[] } & RequestProps) {
  if (ports.length === 0) return <p className="dim note">No listening ports.</p>
  return (
    <ul className="chips">
      {ports.map((port) => (
        <li key={port}>
          <code>{port}</code>
          <Button onClick={() => onRequest(port)}>GET /</Button>
        </li>
      ))}
    </ul>
  )
}

function PortForm({ onRequest }: RequestProps) {
  const [port, setPort] = useState('')
  const submit = (event: FormEvent): void => {
    event.preventDefault()
    onRequest(Number(port))
  }
  return (
    <form className="inline-form" onSubmit={submit}>
      <TextField
        label="Port"
        hideLabel
        mono
        value={port}
        onChange={(text) => setPort(text.replace(/\D/g, ''))}
        placeholder="Other port"
      />
      <Button disabled={port === ''}>GET /</Button>
    </form>
  )
}

function ResponsePanel({ id, response }: { readonly id: string; readonly response: PortResponse }) {
  const { port, status, type, text } = response
  const url = `${location.origin}/v1/sandboxes/${id}/ports/${port}/`
  return (
    <Panel title={`Port ${port}: HTTP ${status}`} aside={<span className="dim">{safeText(type)}</span>}>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable by keyboard */}
      <pre className="output" tabIndex={0} role="log" aria-label="Response">
        {safeText(text)}
      </pre>
      <CopyableCode text={`curl -H "authorization: Bearer $RINGFENCE_API_KEY" ${url}`} />
    </Panel>
  )
}
