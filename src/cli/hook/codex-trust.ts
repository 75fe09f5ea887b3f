import { createInterface } from 'node:readline'
import { PassThrough } from 'node:stream'
import type { Ringfence } from '../../compose/compose.ts'
import { observeProgram } from '../../host/process/program.ts'
import { startProcess } from '../../host/process/run.ts'

/** Codex runs a hook only after its user has trusted it. We ask Codex whether it does, and never set it for the user. */

const TRUST_IT =
  'start `codex`, open `/hooks` and trust the ringfence hook; until then Codex runs tools without calling it'
const ASK_MS = 20_000
const MAX_OUTPUT = 8 * 1024 * 1024

type ListedHook = {
  readonly command?: string | null
  readonly enabled?: boolean
  readonly trustStatus?: string
}

/** The step left to do before Codex runs the hook; undefined if the hook is trusted. */
export async function codexTrust(command: string, ringfence: Ringfence): Promise<string | undefined> {
  const program = observeProgram('codex', ringfence.cwd, ringfence.env.PATH)
  if (program === null)
    return `\`codex\` is not on PATH, so it is unknown whether Codex trusts the hook: ${TRUST_IT}`
  const hooks = await listedHooks(program.path, ringfence).catch(() => undefined)
  if (hooks === undefined)
    return `this version of Codex does not report whether it trusts the hook: ${TRUST_IT}`
  const ours = hooks.find((one) => one.command === command)
  if (ours === undefined)
    return 'Codex does not load the hook from this file: check that the project is trusted and hooks are enabled (`[features]`)'
  if (ours.enabled === false)
    return 'the hook is disabled in Codex: start `codex`, open `/hooks` and enable it'
  return ours.trustStatus === 'trusted' || ours.trustStatus === 'managed' ? undefined : TRUST_IT
}

/** Asks Codex for its hooks over the editor protocol (one JSON object per line). Starts no session and calls no model. */
async function listedHooks(codex: string, { env, cwd }: Ringfence): Promise<readonly ListedHook[]> {
  const output = new PassThrough()
  const child = startProcess(
    { file: codex, args: ['app-server'], env, cwd, control: false },
    { wallMs: ASK_MS, outputBytes: MAX_OUTPUT },
    { stdin: 'pipe', output: (stream, chunk) => stream === 'stdout' && output.write(chunk) },
  )
  const send = (message: object): Promise<void> => child.write(Buffer.from(`${JSON.stringify(message)}\n`))
  void child.result.then(
    () => output.end(),
    () => output.end(),
  )
  try {
    await send({ id: 1, method: 'initialize', params: { clientInfo: { name: 'ringfence', version: '1' } } })
    for await (const line of createInterface({ input: output })) {
      const message = JSON.parse(line) as { readonly id?: number; readonly result?: unknown }
      if (message.id === 1) {
        await send({ method: 'initialized' })
        await send({ id: 2, method: 'hooks/list', params: { cwds: [cwd] } })
      }
      if (message.id === 2) return hooksIn(message.result)
    }
    throw new Error('no answer')
  } finally {
    child.endInput()
    child.signal('SIGTERM')
  }
}

function hooksIn(result: unknown): readonly ListedHook[] {
  const { data } = result as { readonly data: readonly { readonly hooks: readonly ListedHook[] }[] }
  return data.flatMap(({ hooks }) => hooks)
}
