import { EvalThrew, safeEval, safeEvalAsync } from '../eval/safe-eval.ts'
import { SandboxError } from '../model/errors.ts'
import { visible, visibleJson } from '../model/text/visible.ts'
import { numberOption, parseOptions, usage } from './options/options.ts'
import { err, out } from './terminal/output.ts'

const OPTIONS = {
  context: { type: 'string' },
  async: { type: 'boolean' },
  timeout: { type: 'string' },
  memory: { type: 'string' },
} as const

/** `ringfence eval EXPR`: prints the value as JSON; exit 124 when a limit stopped the code, 1 when the code threw. */
export async function evaluate(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('eval', args, OPTIONS)
  const [code, ...more] = positionals
  if (code === undefined || more.length > 0) throw usage('eval', 'eval takes one expression')
  const timeoutMs = numberOption('--timeout', values.timeout)
  const memoryMb = numberOption('--memory', values.memory)
  const options = {
    context: contextOf(values.context),
    ...(timeoutMs !== undefined && { timeoutMs }),
    ...(memoryMb !== undefined && { memoryMb }),
  }
  try {
    const value = values.async ? await safeEvalAsync(code, options) : safeEval(code, options)
    // JSON.stringify writes `null` for such values inside an array; do the same at the top level.
    out(`${visibleJson(value ?? null)}\n`)
    return 0
  } catch (error) {
    return show(error, values.json ?? false)
  }
}

function contextOf(text: string | undefined): Readonly<Record<string, unknown>> {
  if (text === undefined) return {}
  const parsed = parse(text)
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed))
    throw usage('eval', `--context takes a JSON object, not \`${text.slice(0, 60)}\``)
  return parsed as Readonly<Record<string, unknown>>
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    throw usage('eval', `--context takes JSON, not \`${text.slice(0, 60)}\``)
  }
}

/** Prints limits and exceptions of the evaluated code; other errors are handled by main.ts. */
function show(error: unknown, json: boolean): number {
  const limit =
    error instanceof SandboxError && (error.code === 'timeout' || error.code === 'resource-exhausted')
  if (!limit && !(error instanceof EvalThrew)) throw error
  const { code, message } = limit ? error : { code: 'threw', message: (error as Error).message }
  if (json) err(`${visibleJson({ error: { code, message } })}\n`)
  else err(`ringfence: ${code}: ${visible(message)}\n`)
  return limit ? 124 : 1
}
