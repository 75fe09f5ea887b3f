import { SandboxError } from '../../model/errors.ts'
import type { AgentSession } from '../session.ts'
import { type Params, text } from './params.ts'

/** Codex's `http/request`: curl in the sandbox, so that the policy judges it and the proxy carries it. */

const MAX_BODY = 8 * 1024 * 1024
const MAX_TIME_MS = 120_000

type Header = { readonly name: string; readonly value: string }

/** Sends one HTTP request from inside the sandbox. */
export async function httpRequest(session: AgentSession, params: Params): Promise<object> {
  if (params.streamResponse === true)
    throw new SandboxError('unsupported', 'streamed HTTP responses are not supported')
  const url = text(params, 'url')
  if (!/^https?:\/\//.test(url))
    throw new SandboxError('invalid-input', '`url` must begin with http:// or https://')
  const body = typeof params.bodyBase64 === 'string' ? Buffer.from(params.bodyBase64, 'base64') : undefined
  const timeoutMs =
    typeof params.timeoutMs === 'number' ? Math.min(params.timeoutMs, MAX_TIME_MS) : MAX_TIME_MS
  const argv = [
    ...['curl', '-sS', '-i', '--suppress-connect-headers', '--max-filesize', String(MAX_BODY)],
    ...[
      '-X',
      text(params, 'method'),
      ...(params.redirectPolicy === 'stop' ? [] : ['-L', '--max-redirs', '5']),
    ],
    ...headersOf(params).flatMap(({ name, value }) => ['-H', `${name}: ${value}`]),
    ...(body ? ['--data-binary', '@-'] : []),
    ...['--', url],
  ]
  const { outcome, stdout, stderr } = await session.run(
    argv,
    { timeoutMs, ...(body ? { stdin: body.toString('utf8') } : {}) },
    {},
  )
  if (outcome.kind !== 'exited' || outcome.code !== 0)
    throw new SandboxError('unreachable', stderr.trim().slice(0, 500) || 'the request failed')
  return responseOf(stdout)
}

function headersOf({ headers }: Params): readonly Header[] {
  return (Array.isArray(headers) ? (headers as readonly Params[]) : []).flatMap(
    ({ name, value, valueEnvVar }) => {
      // SECURITY: a header whose value is a variable of this machine would hand out the variable.
      if (valueEnvVar !== undefined && valueEnvVar !== null)
        throw new SandboxError('unsupported', 'headers from environment variables are not supported')
      return typeof name === 'string' && typeof value === 'string' ? [{ name, value }] : []
    },
  )
}

/** Redirects and interim answers come before the last one. */
function responseOf(output: string): object {
  let rest = output
  let head = ''
  while (/^HTTP\/[\d.]+ \d{3}/.test(rest)) {
    const end = rest.search(/\r?\n\r?\n/)
    if (end < 0) break
    head = rest.slice(0, end)
    rest = rest.slice(end).replace(/^\r?\n\r?\n/, '')
  }
  const [status = '', ...lines] = head.split(/\r?\n/)
  const headers = lines.map((line) => {
    const at = line.indexOf(':')
    return { name: line.slice(0, at), value: line.slice(at + 1).trim() }
  })
  return {
    status: Number(/ (\d{3})/.exec(status)?.[1] ?? 0),
    headers,
    bodyBase64: Buffer.from(rest).toString('base64'),
  }
}
