import type { Config } from '../../model/config.ts'
import type { PathVerdict } from '../../model/decision.ts'
import { SandboxError } from '../../model/errors.ts'
import { either, type Infer, list, object, oneOf, optional, text } from '../../model/shape.ts'
import { visible } from '../../model/text/visible.ts'
import { PATH_OPS, type PathRequest } from '../../policy/paths/paths.ts'
import { judgeHere, policiesFor } from '../../supervisor/judge-path.ts'
import { parseOptions } from '../options/options.ts'
import type { CliIo } from '../terminal/io.ts'

const rootShape = either(object({ path: text(), mode: optional(oneOf('ro', 'rw')) }), text())
const lineShape = object({
  path: text(),
  op: oneOf(...PATH_OPS),
  to: optional(text()),
  target: optional(text()),
  via: optional(text()),
  policy: object({
    allowed: list(rootShape),
    blocked: optional(list(text())),
    protected: optional(list(text())),
  }),
})
type Line = Infer<typeof lineShape>

/** Loads a configuration file; without a file, the current configuration. */
export type LoadConfig = (file?: string) => Promise<Config>

const OPTIONS = {
  op: { type: 'string' },
  workspace: { type: 'string', short: 'w' },
  to: { type: 'string' },
  target: { type: 'string' },
  via: { type: 'string' },
  batch: { type: 'boolean' },
} as const

type Values = ReturnType<typeof parseOptions<typeof OPTIONS>>['values']

/**
 * `ringfence check path P --op OP [--workspace W]`, or `--batch` with one JSON request on each line of stdin.
 */
export async function checkPath(
  args: readonly string[],
  io: CliIo,
  loadConfig?: LoadConfig,
): Promise<number> {
  const { values, positionals } = parseOptions('check', args, OPTIONS)
  if (values.batch) return checkPathBatch(io)
  const request = requestOf(values, positionals)
  const config = (await loadConfig?.(values.policy ?? values.config)) ?? {}
  const verdicts = policiesFor(config, request.op, values.workspace).map((policy) =>
    judgeHere(policy, request),
  )
  const verdict = verdicts.find((each) => each.verdict === 'deny') ?? (verdicts[0] as PathVerdict)
  io.out(
    io.json || values.json
      ? `${JSON.stringify(verdict)}\n`
      : `${verdict.verdict}: ${visible(verdict.reason)}\n`,
  )
  return verdict.verdict === 'allow' ? 0 : 4
}

function requestOf({ op, to, target, via }: Values, words: readonly string[]): PathRequest {
  const [path] = words
  if (path === undefined || words.length > 1) {
    throw new SandboxError('invalid-input', 'check path needs exactly one path', {
      hint: 'ringfence check path /srv/project/a.txt --op read',
    })
  }
  return {
    path,
    op: oneOf(...PATH_OPS).parse(op ?? 'read', '--op'),
    ...(to === undefined ? {} : { to }),
    ...(target === undefined ? {} : { target }),
    ...(via === undefined ? {} : { via }),
  }
}

async function checkPathBatch(io: CliIo): Promise<number> {
  for await (const line of linesOf(process.stdin)) {
    if (line.trim() !== '') io.out(jsonLine(answerPathLine(line)))
  }
  return 0
}

/**
 * Splits a stream into lines at `\n` only: `node:readline` also splits at U+2028, which JSON strings may
 * contain.
 */
export async function* linesOf(stream: NodeJS.ReadableStream): AsyncGenerator<string> {
  let rest = ''
  stream.setEncoding('utf8')
  for await (const chunk of stream) {
    const lines = (rest + String(chunk)).split('\n')
    rest = lines.pop() ?? ''
    yield* lines
  }
  if (rest !== '') yield rest
}

/**
 * One line of JSON in ASCII: some readers treat U+2028 or U+0085 inside a string as a line break.
 */
export function jsonLine(value: unknown): string {
  const escaped = (unit: string): string => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`
  return `${JSON.stringify(value).replace(/[\u007f-\uffff]/g, escaped)}\n`
}

/** One answer for one line of `--batch`; a line that cannot be parsed is denied, never dropped. */
export function answerPathLine(line: string): PathVerdict & { readonly id: unknown; readonly us: number } {
  let id: unknown = null
  const started = performance.now()
  let verdict: PathVerdict
  try {
    const { id: given, ...fields } = JSON.parse(line) as { id?: unknown }
    id = given ?? null
    verdict = judgeLine(lineShape.parse(fields, ''))
  } catch (error) {
    verdict = { verdict: 'deny', reason: error instanceof Error ? error.message : 'invalid line' }
  }
  return { id, ...verdict, us: Math.round((performance.now() - started) * 1000) }
}

function judgeLine({ policy, ...request }: Line): PathVerdict {
  const allowed = policy.allowed.map((root) =>
    typeof root === 'string'
      ? { path: root, mode: 'rw' as const }
      : { path: root.path, mode: root.mode ?? 'rw' },
  )
  return judgeHere({ allowed, blocked: policy.blocked ?? [], protected: policy.protected ?? [] }, request)
}
