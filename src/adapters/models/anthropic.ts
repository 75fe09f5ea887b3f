import { SandboxError } from '../../model/errors.ts'
import { boolean, list, number, object, oneOf, optional, type Shape, text } from '../../model/shape.ts'
import { clip } from '../capture.ts'
import { edit, guestPath, linesOf, readText, replaced, writeText } from '../operations/files.ts'
import { OPERATIONS } from '../operations/index.ts'
import {
  type Call,
  done,
  failure,
  type ImageType,
  perform,
  Question,
  type Result,
  unknownTool,
} from '../operations/operation.ts'
import type { AgentSession } from '../session.ts'

/** Anthropic's client tools: `bash_20250124`, `text_editor_20250728` and the names of `agent_toolset_20260401`. */

export type ToolUse = { readonly id: string; readonly name: string; readonly input: unknown }

type Content =
  | { readonly type: 'text'; readonly text: string }
  | {
      readonly type: 'image'
      readonly source: { readonly type: 'base64'; readonly media_type: ImageType; readonly data: string }
    }

/** The answer to a `tool_use` block. */
export type ToolResult = {
  readonly type: 'tool_result'
  readonly tool_use_id: string
  readonly content: Content[]
  readonly is_error?: boolean
}

const EDITOR_NAME = 'str_replace_based_edit_tool'
const content = text({ empty: true, max: 8 * 1024 * 1024 })
const lineNumber = number({ integer: true, min: -1 })

type Tool<A = unknown> = {
  readonly name: string
  readonly input: Shape<A>
  readonly run: (session: AgentSession, args: A, call: Call) => Promise<Result>
}
const tool = <A>(definition: Tool<A>): Tool => definition as unknown as Tool

const bash = tool({
  name: 'bash',
  input: object({
    command: optional(text()),
    restart: optional(boolean()),
    timeout_ms: optional(number({ integer: true, min: 1, max: 3_600_000 })),
  }),
  async run(session, { command, restart, timeout_ms }, call) {
    if (restart) return session.shell().restart()
    if (command === undefined) throw new SandboxError('no-command', '`command` or `restart` is missing')
    return session.shell().run(command, timeout_ms === undefined ? {} : { timeoutMs: timeout_ms }, call)
  },
})

const editorInput = object({
  command: oneOf('view', 'create', 'str_replace', 'insert'),
  path: text({ max: 4096 }),
  view_range: optional(list(lineNumber, 2)),
  file_text: optional(content),
  old_str: optional(content),
  new_str: optional(content),
  insert_line: optional(number({ integer: true, min: 0 })),
  insert_text: optional(content),
})
type EditorInput = ReturnType<(typeof editorInput)['parse']>

const EDITOR: Readonly<
  Record<EditorInput['command'], (session: AgentSession, args: EditorInput, max: number) => Promise<Result>>
> = {
  async view(session, { path, view_range }, max) {
    const sandbox = await session.sandbox()
    const { kind } = await sandbox.files.stat(guestPath(sandbox, path))
    if (kind === 'dir') return perform(OPERATIONS, session, 'file_list', { path, depth: 2 })
    const [from = 1, to] = view_range ?? []
    const { text: part } = linesOf(await readText(sandbox, path), from, to === -1 ? undefined : to)
    const numbered = part.split('\n').map((line, index) => `${String(from + index).padStart(6)}\t${line}`)
    return done(clip(numbered.join('\n'), max), { path })
  },
  async create(session, { path, file_text }) {
    await writeText(await session.sandbox(), path, needed(file_text, 'file_text'))
    return done(`file created at ${path}`, { path })
  },
  async str_replace(session, { path, old_str, new_str }) {
    await edit(session, path, (whole) => replaced(whole, needed(old_str, 'old_str'), new_str ?? '').text)
    return done(`${path} was changed`, { path })
  },
  async insert(session, { path, insert_line, insert_text, new_str }) {
    const at = needed(insert_line, 'insert_line')
    const added = needed(insert_text ?? new_str, 'insert_text')
    await edit(session, path, (whole) => inserted(whole, at, added))
    return done(`${path} was changed`, { path })
  },
}

/** Inserts text after line `at`; 0 is the beginning. */
function inserted(whole: string, at: number, added: string): string {
  const lines = whole.split('\n')
  const count = whole.endsWith('\n') ? lines.length - 1 : lines.length
  if (at > count)
    throw new SandboxError('invalid-input', `line ${at} is past the end; the file has ${count} lines`)
  const before = lines
    .slice(0, at)
    .map((line) => `${line}\n`)
    .join('')
  return `${before}${added}${added.endsWith('\n') || at === lines.length ? '' : '\n'}${lines.slice(at).join('\n')}`
}

function needed<T>(value: T | undefined, name: string): T {
  if (value !== undefined) return value
  throw new SandboxError('invalid-input', `\`${name}\` is missing`)
}

const editor = (max: number): Tool =>
  tool({
    name: EDITOR_NAME,
    input: editorInput,
    run: (session, args) => EDITOR[args.command](session, args, max),
  })

/** Maps the names of the agent toolset to our operations. */
const TOOLSET: readonly Tool[] = [
  tool({
    name: 'read',
    input: object({ file_path: text(), view_range: optional(list(lineNumber, 2)) }),
    run: (session, { file_path, view_range }) =>
      EDITOR.view(session, { command: 'view', path: file_path, ...(view_range && { view_range }) }, 120_000),
  }),
  tool({
    name: 'write',
    input: object({ file_path: text(), content }),
    run: (session, { file_path, content: data }) =>
      perform(OPERATIONS, session, 'file_write', { path: file_path, content: data }),
  }),
  tool({
    name: 'edit',
    input: object({
      file_path: text(),
      old_string: content,
      new_string: content,
      replace_all: optional(boolean()),
    }),
    run: (session, { file_path, old_string, new_string, replace_all = false }) =>
      perform(OPERATIONS, session, 'file_edit', {
        path: file_path,
        old_text: old_string,
        new_text: new_string,
        replace_all,
      }),
  }),
  tool({
    name: 'glob',
    input: object({ pattern: text(), path: optional(text()) }),
    run: (session, args) => perform(OPERATIONS, session, 'file_glob', args),
  }),
  tool({
    name: 'grep',
    input: object({ pattern: text(), path: optional(text()) }),
    run: (session, args, call) => perform(OPERATIONS, session, 'file_grep', args, call),
  }),
]

const ABOUT: Readonly<Record<string, string>> = {
  bash: 'Runs a command in a shell that keeps its directory and variables.',
  read: 'Reads a file.',
  write: 'Writes a file.',
  edit: 'Replaces text in a file.',
  glob: 'Finds files by name.',
  grep: 'Finds text in files.',
}

/** The tools of a session in Anthropic's service, under the names of its agent toolset. */
export const WORKER_TOOLS = [bash, ...TOOLSET].map(({ name, input }) => ({
  name,
  input,
  about: ABOUT[name] ?? name,
}))

/** Tool definitions for the Messages API, and the function that runs tool calls. */
export function anthropicTools(
  session: AgentSession,
  options: { readonly maxCharacters?: number } = {},
): {
  readonly tools: readonly [
    { readonly type: 'bash_20250124'; readonly name: 'bash' },
    { readonly type: 'text_editor_20250728'; readonly name: typeof EDITOR_NAME },
  ]
  readonly run: (use: ToolUse, call?: Call) => Promise<ToolResult>
  /** The same tools for the SDK's `toolRunner`, which calls them itself. */
  readonly runnable: [
    RunnableTool<'bash_20250124', 'bash'>,
    RunnableTool<'text_editor_20250728', typeof EDITOR_NAME>,
  ]
} {
  const table = [bash, editor(options.maxCharacters ?? 120_000), ...TOOLSET]
  const run = async (use: ToolUse, call: Call = {}): Promise<ToolResult> => {
    try {
      const found = table.find((one) => one.name === use.name)
      if (!found) throw unknownTool(table, use.name)
      return toolResult(use.id, await found.run(session, found.input.parse(use.input ?? {}, ''), call))
    } catch (error) {
      if (error instanceof Question && call.canAsk) throw error
      return toolResult(use.id, failure(error))
    }
  }
  const bashTool = { type: 'bash_20250124', name: 'bash' } as const
  const editorTool = { type: 'text_editor_20250728', name: EDITOR_NAME } as const
  return {
    tools: [bashTool, editorTool],
    run,
    runnable: [runnableOf(bashTool, run), runnableOf(editorTool, run)],
  }
}

/** A tool with the function that the SDK's `toolRunner` calls. */
export type RunnableTool<Type extends string, Name extends string> = {
  readonly type: Type
  readonly name: Name
  readonly parse: (input: unknown) => unknown
  readonly run: (
    input: unknown,
    context?: { readonly signal?: AbortSignal | null | undefined },
  ) => Promise<Content[]>
}

/** The SDK marks a result as an error if the tool throws. */
function runnableOf<Type extends string, Name extends string>(
  { type, name }: { readonly type: Type; readonly name: Name },
  run: (use: ToolUse, call?: Call) => Promise<ToolResult>,
): RunnableTool<Type, Name> {
  return {
    type,
    name,
    parse: (input) => input,
    async run(input, context) {
      const { content: shown, is_error } = await run(
        { id: '', name, input },
        { signal: context?.signal ?? undefined },
      )
      const [first] = shown
      if (is_error && first?.type === 'text') throw new Error(first.text)
      return shown
    },
  }
}

function toolResult(id: string, { ok, text: said, image }: Result): ToolResult {
  const shown: Content[] = [{ type: 'text', text: said || '[no output]' }]
  if (image)
    shown.push({ type: 'image', source: { type: 'base64', media_type: image.mime, data: image.base64 } })
  return { type: 'tool_result', tool_use_id: id, content: shown, ...(ok ? {} : { is_error: true }) }
}
