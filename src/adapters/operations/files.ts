import { posix } from 'node:path'
import { SandboxError } from '../../model/errors.ts'
import { boolean, number, object, optional, text } from '../../model/shape.ts'
import { clip } from '../capture.ts'
import { applyDiff, type PatchStep, parsePatch } from '../models/v4a.ts'
import { READ_CHARS } from '../results.ts'
import type { AgentSession } from '../session.ts'
import type { ToolSandbox } from '../tool-sandbox.ts'
import { done, type ImageType, type Operation, operation, type Result, told } from './operation.ts'

const MAX_CONTENT = 8 * 1024 * 1024
const MAX_IMAGE = 5 * 1024 * 1024
const content = text({ empty: true, max: MAX_CONTENT })
const path = told(text({ max: 4096 }), 'a path in the sandbox, absolute or relative to the workspace')
const line = (about: string) => optional(told(number({ integer: true, min: 1 }), about))

/** The absolute path inside the sandbox. The sandbox enforces what can be accessed. */
export const guestPath = (sandbox: ToolSandbox, given: string): string =>
  posix.resolve(sandbox.workspace, given)

/** Reads a whole text file. */
export async function readText(sandbox: ToolSandbox, given: string): Promise<string> {
  const bytes = await sandbox.files.read(guestPath(sandbox, given))
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes)
  } catch {
    throw new SandboxError('invalid-input', `\`${given}\` is not a text file (${bytes.length} bytes)`, {
      hint: 'use `view_image` for images, and a command such as `file` or `xxd` for other files',
    })
  }
}

/** Writes a text file in the sandbox. */
export const writeText = (sandbox: ToolSandbox, given: string, data: string): Promise<void> =>
  sandbox.files.write(guestPath(sandbox, given), Buffer.from(data))

/** Lines `from` to `to`, 1-based and inclusive. */
export function linesOf(
  whole: string,
  from = 1,
  to?: number,
): { readonly text: string; readonly total: number } {
  const lines = whole.split('\n')
  if (lines.at(-1) === '') lines.pop()
  if (from > Math.max(1, lines.length))
    throw new SandboxError(
      'invalid-input',
      `line ${from} is past the end; the file has ${lines.length} lines`,
    )
  if (to !== undefined && to < from)
    throw new SandboxError('invalid-input', `the range ${from} to ${to} is empty`)
  return { text: lines.slice(from - 1, to).join('\n'), total: lines.length }
}

/** Replaces text that must occur exactly once, or at least once with `all`. */
export function replaced(
  whole: string,
  before: string,
  after: string,
  all = false,
): { readonly text: string; readonly count: number } {
  if (before === '') throw new SandboxError('invalid-input', 'the text to replace is empty')
  const count = whole.split(before).length - 1
  if (count === 0)
    throw new SandboxError('conflict', 'the text to replace is not in the file', {
      hint: 'read the file again and copy the text exactly, including whitespace; nothing was changed',
    })
  if (count > 1 && !all)
    throw new SandboxError('conflict', `the text to replace is in the file ${count} times`, {
      hint: 'include more surrounding lines, or replace all; nothing was changed',
    })
  return { text: whole.split(before).join(after), count }
}

/** Reads, changes and writes one file. */
export async function edit(
  session: AgentSession,
  given: string,
  change: (whole: string) => string,
): Promise<void> {
  const sandbox = await session.sandbox()
  await writeText(sandbox, given, change(await readText(sandbox, given)))
}

/** Computes every file before the first is written, so that a patch that does not apply changes nothing. */
export async function applyPatch(session: AgentSession, steps: readonly PatchStep[]): Promise<Result> {
  const sandbox = await session.sandbox()
  const seen = new Map<string, string | null>()
  for (const step of steps) await compute(sandbox, step, seen)
  for (const [file, whole] of seen) {
    if (whole === null) await sandbox.files.remove(file)
    else await sandbox.files.write(file, Buffer.from(whole))
  }
  const files = [...seen.keys()]
  return done(`changed ${files.join(', ')}`, { files })
}

async function compute(
  sandbox: ToolSandbox,
  step: PatchStep,
  seen: Map<string, string | null>,
): Promise<void> {
  const file = guestPath(sandbox, step.path)
  const current = async (): Promise<string> => {
    const known = seen.get(file)
    if (known === null) throw new SandboxError('file-not-found', `\`${step.path}\` was deleted by this patch`)
    return known ?? readText(sandbox, file)
  }
  if (step.kind === 'add') {
    const there = seen.has(file) ? seen.get(file) !== null : await exists(sandbox, file)
    if (there)
      throw new SandboxError('file-exists', `\`${step.path}\` already exists`, {
        hint: 'use *** Update File',
      })
    seen.set(file, step.text)
  } else if (step.kind === 'delete') {
    await current()
    seen.set(file, null)
  } else {
    const whole = step.diff.trim() === '' ? await current() : applyDiff(await current(), step.diff)
    if (step.moveTo !== undefined) seen.set(file, null)
    seen.set(step.moveTo === undefined ? file : guestPath(sandbox, step.moveTo), whole)
  }
}

async function exists(sandbox: ToolSandbox, file: string): Promise<boolean> {
  try {
    await sandbox.files.stat(file)
    return true
  } catch (error) {
    if (error instanceof SandboxError && error.code === 'file-not-found') return false
    throw error
  }
}

const MAGIC: readonly (readonly [ImageType, readonly number[]])[] = [
  ['image/png', [0x89, 0x50, 0x4e, 0x47]],
  ['image/jpeg', [0xff, 0xd8, 0xff]],
  ['image/gif', [0x47, 0x49, 0x46, 0x38]],
  ['image/webp', [0x52, 0x49, 0x46, 0x46]],
]

/** Reads an image; the type is detected from its first bytes, not from its name. */
export async function viewImage(session: AgentSession, given: string): Promise<Result> {
  const sandbox = await session.sandbox()
  const bytes = await sandbox.files.read(guestPath(sandbox, given))
  const found = MAGIC.find(([, magic]) => magic.every((byte, index) => bytes[index] === byte))
  if (!found) throw new SandboxError('invalid-input', `\`${given}\` is not a PNG, JPEG, GIF or WebP image`)
  if (bytes.length > MAX_IMAGE)
    throw new SandboxError('too-large', `the image has ${bytes.length} bytes; the limit is ${MAX_IMAGE}`)
  const [mime] = found
  const image = { mime, base64: Buffer.from(bytes).toString('base64') }
  return { ...done(`${mime}, ${bytes.length} bytes`, { mime, bytes: bytes.length }), image }
}

/** Tools that read and change files. */
export const fileOperations: readonly Operation[] = [
  operation({
    name: 'file_read',
    title: 'Read a file',
    effect: 'looks',
    about: 'Reads a text file, or some of its lines.',
    input: object({ path, start_line: line('first line, from 1'), end_line: line('last line, included') }),
    output: {
      type: 'object',
      properties: {
        content: { type: 'string' },
        total_lines: { type: 'integer' },
        truncated: { type: 'boolean' },
      },
      required: ['content', 'total_lines', 'truncated'],
    },
    async run(session, { path: given, start_line, end_line }) {
      const { text: part, total } = linesOf(
        await readText(await session.sandbox(), given),
        start_line,
        end_line,
      )
      const shown = clip(part, READ_CHARS * 4)
      return done(shown, { content: shown, total_lines: total, truncated: shown.length < part.length })
    },
  }),
  operation({
    name: 'file_write',
    title: 'Write a file',
    effect: 'writes',
    about: 'Writes a whole text file and creates missing parent directories.',
    input: object({ path, content }),
    output: {
      type: 'object',
      properties: { path: { type: 'string' }, bytes: { type: 'integer' } },
      required: ['path', 'bytes'],
    },
    async run(session, { path: given, content: data }) {
      const sandbox = await session.sandbox()
      await writeText(sandbox, given, data)
      const bytes = Buffer.byteLength(data)
      return done(`wrote ${bytes} bytes to ${given}`, { path: guestPath(sandbox, given), bytes })
    },
  }),
  operation({
    name: 'file_edit',
    title: 'Edit a file',
    effect: 'changes',
    about:
      'Replaces exact text in a file. The old text must occur exactly once, unless `replace_all` is set.',
    input: object({ path, old_text: content, new_text: content, replace_all: optional(boolean()) }),
    output: { type: 'object', properties: { replaced: { type: 'integer' } }, required: ['replaced'] },
    async run(session, { path: given, old_text, new_text, replace_all }) {
      let count = 0
      await edit(session, given, (whole) => {
        const change = replaced(whole, old_text, new_text, replace_all)
        count = change.count
        return change.text
      })
      return done(`replaced ${count} in ${given}`, { replaced: count })
    },
  }),
  operation({
    name: 'apply_patch',
    title: 'Apply a patch',
    effect: 'changes',
    about:
      'Adds, changes, moves and deletes files with one patch in the V4A format (*** Begin Patch … *** End Patch).',
    input: object({ patch: told(text({ max: MAX_CONTENT }), 'the whole patch') }),
    output: {
      type: 'object',
      properties: { files: { type: 'array', items: { type: 'string' } } },
      required: ['files'],
    },
    run: (session, { patch }) => applyPatch(session, parsePatch(patch)),
  }),
  operation({
    name: 'view_image',
    title: 'View an image',
    effect: 'looks',
    about: 'Shows a PNG, JPEG, GIF or WebP file.',
    input: object({ path }),
    output: {
      type: 'object',
      properties: { mime: { type: 'string' }, bytes: { type: 'integer' } },
      required: ['mime', 'bytes'],
    },
    run: (session, { path: given }) => viewImage(session, given),
  }),
]
