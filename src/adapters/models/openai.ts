import { SandboxError } from '../../model/errors.ts'
import { boolean, number, object, optional, text } from '../../model/shape.ts'
import { clip } from '../capture.ts'
import { applyPatch } from '../operations/files.ts'
import { OPERATIONS } from '../operations/index.ts'
import { type Call, failure, perform, type Result, unknownTool } from '../operations/operation.ts'
import { isRunning, type Process, waitFor } from '../processes.ts'
import { READ_CHARS } from '../results.ts'
import type { AgentSession } from '../session.ts'
import { coerced, parseLenientObject } from './lenient-json.ts'
import { addedText, parsePatch } from './v4a.ts'

/** OpenAI's tools: `shell`, `apply_patch`, and the pair `exec_command` and `write_stdin`. */

export type ShellAction = {
  readonly commands: readonly string[]
  readonly timeoutMs?: number
  readonly timeout_ms?: number
  readonly maxOutputLength?: number
  readonly max_output_length?: number
}
/** The output of one command of a `shell` call. */
export type ShellOutput = {
  stdout: string
  stderr: string
  outcome: { type: 'exit'; exitCode: number | null } | { type: 'timeout' }
}
/** One operation of an `apply_patch` call. */
export type PatchOperation =
  | { readonly type: 'create_file'; readonly path: string; readonly diff: string }
  | {
      readonly type: 'update_file'
      readonly path: string
      readonly diff: string
      readonly moveTo?: string
      readonly move_to?: string
    }
  | { readonly type: 'delete_file'; readonly path: string }
/** The answer to an `apply_patch` call. */
export type PatchResult = { status: 'completed' | 'failed'; output: string }

/** Runs one command of the `shell` tool. Denials are returned on stderr, so that the model reads them. */
async function shellCommand(
  session: AgentSession,
  command: string,
  action: ShellAction,
  call: Call,
): Promise<ShellOutput> {
  const max = action.maxOutputLength ?? action.max_output_length ?? READ_CHARS
  const timeoutMs = action.timeoutMs ?? action.timeout_ms
  try {
    const { stdout, stderr, outcome } = await session.run(command, timeoutMs ? { timeoutMs } : {}, call)
    const timeout = outcome.kind === 'stopped' && outcome.limit === 'wall'
    const exitCode = outcome.kind === 'exited' ? outcome.code : 137
    return {
      stdout: clip(stdout, max),
      stderr: clip(stderr, max),
      outcome: timeout ? { type: 'timeout' } : { type: 'exit', exitCode },
    }
  } catch (error) {
    return { stdout: '', stderr: failure(error).text, outcome: { type: 'exit', exitCode: 126 } }
  }
}

/** One operation of the `apply_patch` tool. */
export async function patchFile(session: AgentSession, operation: PatchOperation): Promise<PatchResult> {
  try {
    const { text: output } = await applyPatch(session, [stepOf(operation)])
    return { status: 'completed', output }
  } catch (error) {
    return { status: 'failed', output: failure(error).text }
  }
}

function stepOf(operation: PatchOperation): Parameters<typeof applyPatch>[1][number] {
  const { type, path } = operation
  if (type === 'delete_file') return { kind: 'delete', path }
  if (type === 'create_file') return { kind: 'add', path, text: addedText(operation.diff) }
  if (type !== 'update_file') throw new SandboxError('invalid-input', `unknown operation \`${String(type)}\``)
  const moveTo = operation.moveTo ?? operation.move_to
  return { kind: 'update', path, diff: operation.diff, ...(moveTo ? { moveTo } : {}) }
}

const execInput = object({
  cmd: text(),
  workdir: optional(text()),
  shell: optional(text()),
  login: optional(boolean()),
  tty: optional(boolean()),
  yield_time_ms: optional(number({ integer: true, min: 0, max: 60_000 })),
  max_output_tokens: optional(number({ integer: true, min: 1 })),
})
const stdinInput = object({
  session_id: number({ integer: true, min: 1 }),
  chars: optional(text({ empty: true })),
  yield_time_ms: optional(number({ integer: true, min: 0, max: 60_000 })),
  max_output_tokens: optional(number({ integer: true, min: 1 })),
})

/** Starts a command and waits until it exits or the yield time is over. */
export async function execCommand(session: AgentSession, given: unknown, call: Call = {}): Promise<Result> {
  const asked = execInput.parse(given, '')
  const options = { cwd: asked.workdir, stdinOpen: asked.tty === true, terminal: asked.tty }
  const started = Date.now()
  const process = await session.start(asked.cmd, options, call)
  await waitFor(process, asked.yield_time_ms ?? 10_000, call.signal)
  return chunk(process, started, asked.max_output_tokens)
}

/** Writes to a command that `exec_command` started and returns its new output. */
export async function writeStdin(session: AgentSession, given: unknown, call: Call = {}): Promise<Result> {
  const asked = stdinInput.parse(given, '')
  const process = session.processes.get(asked.session_id)
  const started = Date.now()
  if (asked.chars && isRunning(process)) await process.running.write(asked.chars)
  await waitFor(process, asked.yield_time_ms ?? 250, call.signal)
  return chunk(process, started, asked.max_output_tokens)
}

/** The result format that Codex and the Agents SDK use. */
function chunk(process: Process, started: number, tokens?: number): Result {
  const output = clip(process.output.take(), tokens ? tokens * 4 : READ_CHARS)
  const outcome = process.ended?.outcome
  const code = outcome?.kind === 'exited' ? outcome.code : 137
  const state = isRunning(process)
    ? `Process running with session ID ${process.id}`
    : `Process exited with code ${code}`
  const seconds = ((Date.now() - started) / 1000).toFixed(4)
  const said = `Wall time: ${seconds} seconds\n${state}\nOutput:\n${output}`
  return {
    ok: true,
    text: said,
    data: {
      output,
      session_id: isRunning(process) ? process.id : null,
      exit_code: isRunning(process) ? null : code,
    },
  }
}

const functionTool = (name: string, description: string, parameters: Record<string, unknown>) =>
  ({ type: 'function', name, description, parameters, strict: false }) as const

/** Tool definitions for the Responses API, and the function that turns a call item into its output item. */
export function openaiTools(session: AgentSession) {
  const byName: Readonly<Record<string, (args: unknown, call: Call) => Promise<Result>>> = {
    exec_command: (args, call) =>
      execCommand(session, coerced(parseLenientObject(args), execInput.schema), call),
    write_stdin: (args, call) =>
      writeStdin(session, coerced(parseLenientObject(args), stdinInput.schema), call),
    apply_patch: (args) => applyPatch(session, parsePatch(patchIn(args))),
    view_image: (args, call) => perform(OPERATIONS, session, 'view_image', parseLenientObject(args), call),
  }
  const shell = async (action: ShellAction, call: Call = {}): Promise<{ output: ShellOutput[] }> => {
    const output: ShellOutput[] = []
    for (const command of action.commands) output.push(await shellCommand(session, command, action, call))
    return { output }
  }
  return {
    tools: [
      functionTool(
        'exec_command',
        'Runs a command; returns its output, or a session ID if it is still running.',
        {
          ...execInput.schema,
        },
      ),
      functionTool('write_stdin', 'Writes to a running session and returns its new output.', {
        ...stdinInput.schema,
      }),
      functionTool('view_image', 'Shows an image file.', {
        type: 'object',
        properties: { path: { type: 'string' } },
        required: ['path'],
        additionalProperties: false,
      }),
    ],
    /** The Agents SDK's `Shell`, for `shellTool({ shell })`. */
    shell: { run: (action: ShellAction) => shell(action) },
    /** The Agents SDK's `Editor`, for `applyPatchTool({ editor })`. */
    editor: {
      createFile: (operation: PatchOperation) => patchFile(session, operation),
      updateFile: (operation: PatchOperation) => patchFile(session, operation),
      deleteFile: (operation: PatchOperation) => patchFile(session, operation),
    },
    /** Any call item of the Responses API: function, shell, apply_patch or custom. */
    async run(item: ResponseItem, call: Call = {}): Promise<ResponseOutput> {
      const { call_id = '' } = item
      if (item.type === 'shell_call' && item.action) {
        const { output } = await shell(item.action, call)
        return { type: 'shell_call_output', call_id, output: output.map(wireOutput) }
      }
      if (item.type === 'apply_patch_call' && item.operation)
        return { type: 'apply_patch_call_output', call_id, ...(await patchFile(session, item.operation)) }
      const type = item.type === 'custom_tool_call' ? 'custom_tool_call_output' : 'function_call_output'
      const result = await named(
        byName,
        item.name ?? '',
        item.type === 'custom_tool_call' ? item.input : item.arguments,
        call,
      )
      return { type, call_id, output: outputOf(result) }
    },
  }
}

/** The item that answers a call. */
export type ResponseOutput =
  | {
      type: 'shell_call_output'
      call_id: string
      output: {
        stdout: string
        stderr: string
        outcome: { type: 'exit'; exit_code: number } | { type: 'timeout' }
      }[]
    }
  | { type: 'apply_patch_call_output'; call_id: string; status: 'completed' | 'failed'; output: string }
  | {
      type: 'function_call_output' | 'custom_tool_call_output'
      call_id: string
      output: string | ShownContent[]
    }

type ShownContent =
  | { type: 'input_text'; text: string }
  | { type: 'input_image'; image_url: string; detail: 'auto' }

/** An item of the Responses API that calls a tool. */
export type ResponseItem = {
  readonly type: string
  readonly call_id?: string | undefined
  readonly name?: string | undefined
  readonly arguments?: unknown
  readonly input?: unknown
  readonly action?: ShellAction | undefined
  readonly operation?: PatchOperation | undefined
}

async function named(
  table: Readonly<Record<string, (args: unknown, call: Call) => Promise<Result>>>,
  name: string,
  args: unknown,
  call: Call,
): Promise<Result> {
  try {
    const run = Object.hasOwn(table, name) ? table[name] : undefined
    if (!run)
      throw unknownTool(
        Object.keys(table).map((known) => ({ name: known })),
        name,
      )
    return await run(args, call)
  } catch (error) {
    return failure(error)
  }
}

/** The patch as plain text or in an object. */
function patchIn(args: unknown): string {
  if (typeof args === 'string' && args.includes('*** ') && !args.trimStart().startsWith('{')) return args
  const { patch, input } = parseLenientObject(args)
  const found = patch ?? input
  if (typeof found === 'string') return found
  throw new SandboxError('invalid-input', '`patch` is missing')
}

const wireOutput = ({ stdout, stderr, outcome }: ShellOutput) => ({
  stdout,
  stderr,
  outcome: outcome.type === 'exit' ? { type: 'exit' as const, exit_code: outcome.exitCode ?? 137 } : outcome,
})

const outputOf = ({ text: said, image }: Result): string | ShownContent[] =>
  image
    ? [
        { type: 'input_text', text: said },
        { type: 'input_image', image_url: `data:${image.mime};base64,${image.base64}`, detail: 'auto' },
      ]
    : said
